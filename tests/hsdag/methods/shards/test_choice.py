"""Choosing shards: the cheapest sequence of ways is found, and nothing is proposed where syncs cost more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir.graph.build import graph_of
from hsdag.ir.shards.regions import OpShapes, Region
from hsdag.ir.shards.rewrite import shapes_of, shard
from hsdag.methods.shards.choice import ShardChooser, Sharding
from hsdag.methods.shards.division import ShardCosts, even_shares
from hsdag.methods.shards.proposals import NEAR_PRICES, propose
from hsdag.methods.shards.ways import EVERYWHERE, Layout
from hsdag.models.networks import llama_decoder
from hsdag.models.registry import build_model
from hsdag.models.sizes import DecoderSizes
from hsdag.runtime.costs.shard_costs import sharded_costs, simulated_s
from hsdag.runtime.costs.work_conserving_costs import PartTable, WorkConservingCosts
from hsdag.runtime.problem.schedule_problem import CostSource
from tests.hsdag.ir.shards.random_shards import LARGEST_DIFFERENCE, difference, inputs_of, outputs_of
from tests.hsdag.methods.searches import not_none

RNG = np.random.default_rng(0)


def weights(*shape: int) -> ov.Node:
    return op.constant(RNG.standard_normal(shape).astype(np.float32))


def mlps(count: int, width: int = 64, hidden: int = 256, rows: int = 256, *, is_post: bool = False) -> ov.Model:
    """Residual feed-forward blocks in a row, as those of transformers are, with a norm before each.

    Or one after each, over all rows, which no region by rows has.
    """

    def norm(x: Any) -> Any:
        return op.mvn(x, op.constant(np.array([1, 2] if is_post else [2])), True, 1e-6, "inside_sqrt")

    x = parameter = op.parameter([1, rows, width], np.float32)
    for _ in range(count):
        inner = op.gelu(op.matmul(x if is_post else norm(x), weights(width, hidden), False, False), "erf")
        x = op.add(x, op.matmul(inner, weights(hidden, width), False, False))
        x = norm(x) if is_post else x
    return ov.Model([op.result(x)], [parameter], "mlps")


def convolutions(count: int, size: int = 32, channels: int = 8, batch: int = 1) -> ov.Model:
    x = parameter = op.parameter([batch, channels, size, size], np.float32)
    for _ in range(count):
        x = op.relu(op.convolution(x, weights(channels, channels, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1]))
    return ov.Model([op.result(x)], [parameter], "convolutions")


def shapes_in(model: ov.Model) -> OpShapes:
    return shapes_of(model, graph_of(model))


def costs_of(shapes: OpShapes, launch_s: float = 1e-5, speeds: tuple[float, ...] = (1.0, 1.0)) -> ShardCosts:
    graph = shapes.graph
    seconds = graph.flops / 1e10 + graph.output_bytes / 1e10
    return ShardCosts(seconds[:, None] / np.array(speeds), np.ones(len(speeds)), launch_s, 1e-10)


def every_cost(chooser: ShardChooser) -> Iterator[float]:
    """Of all sequences of ways, one after another."""
    end, finder = len(chooser.segments.main), chooser.ways()
    ways = cache(finder.of)
    pending: list[tuple[int, Layout, float]] = [(0, EVERYWHERE, 0.0)]
    while pending:
        i, layout, seconds = pending.pop()
        if i == end:
            yield seconds + finder.sync_s(end, layout, EVERYWHERE)
        for j in range(i + 1, end + 1):
            for way in ways(i, j):
                step = way.compute_s + way.sync_s + finder.sync_s(i, layout, way.reads)
                pending.append((j, way.end, seconds + step))


@pytest.mark.parametrize("launch_s", [1e-6, 3e-5, 3e-4])
@pytest.mark.parametrize("speeds", [(1.0, 1.0), (1.0, 3.0)])
@pytest.mark.parametrize("make", [lambda: mlps(2), lambda: convolutions(3)], ids=["mlps", "convolutions"])
def test_no_sequence_of_ways_is_cheaper(
    make: Callable[[], ov.Model], speeds: tuple[float, float], launch_s: float
) -> None:
    shapes = shapes_in(make())
    chooser = ShardChooser(shapes, costs_of(shapes, launch_s, speeds))
    least = min(every_cost(chooser))
    found = chooser.best()
    assert (least if found is None else found.predicted_s) == pytest.approx(least)
    first = {next(iter(r.shares)) for r in (found.regions if found else ()) if r.scheme != "replicated"}
    assert first <= {int(np.argmax(speeds))}  # which adds to its part of a sum


@pytest.mark.parametrize(("stride", "cuts"), [(1, ["AvgPool", "AvgPool"]), (2, ["Relu", "AvgPool"] * 2)])
def test_a_cut_stays_where_what_follows_changes_the_size(stride: int, cuts: list[str]) -> None:
    x = parameter = op.parameter([1, 8, 32, 32], np.float32)
    for _ in range(2):
        x = op.relu(op.convolution(x, weights(8, 8, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1]))
        x = op.avg_pool(x, [stride, stride], [1, 1], [1, 1], [3, 3], True, "floor", "explicit")
    shapes = shapes_in(ov.Model([op.result(x)], [parameter], "pools"))
    found = ShardChooser(shapes, costs_of(shapes)).segments.cuts
    assert [shapes.op(v).type for v in found] == cuts


@pytest.mark.parametrize(
    ("num", "price", "handed_on"), [(2, 0.5, 3 / 4 + 3 / 16), (3, 1.0, (1 + 86 / 256 + (1 + 22 / 64) / 4) / 2)]
)
def test_columns_are_written_by_the_device_that_has_most_and_all_of_them_read(
    num: int, price: float, handed_on: float
) -> None:
    """Two products, whose results have 262,144 and 65,536 bytes; a price of syncs changes no prediction."""
    shapes = shapes_in(mlps(1, is_post=True))
    costs = costs_of(shapes, 1e-7, (1.0,) * num)
    best = not_none(ShardChooser(shapes, costs, schemes=["columns"]).best(price))
    assert best.predicted_s - best.bound_s == pytest.approx(2 * 1e-7 + 262_144 * handed_on * costs.s_per_byte)


@pytest.mark.usefixtures("weights_take_no_time")
@pytest.mark.parametrize("shares", [(0.75, 0.25), (0.5, 0.5, 0.0)])
def test_shares_that_are_given_are_kept_and_the_longest_counts(shares: tuple[float, ...]) -> None:
    shapes = shapes_in(mlps(1))
    costs = costs_of(shapes, 1e-9, (1.0,) * len(shares))
    chooser = ShardChooser(shapes, costs, shares, ["rows"])
    best = not_none(chooser.best())
    region, figures = best.regions[0], chooser.divider.figures(best.regions[0])
    alone_s = costs.time_s[list(region.ops), 0].sum()
    assert list(region.shares.values()) == [(0, 256 * shares[0]), (256 * shares[0], 256)]
    assert (figures.whole_s, figures.bound_s) == pytest.approx((alone_s, alone_s / 2))
    assert figures.divided_s == pytest.approx(alone_s * shares[0])
    assert figures.sync_s == pytest.approx(costs.sync_s(65_536) + costs.sync_s(65_536 * shares[0]))
    whole_s = [figures.divided_s + each * figures.sync_s for each in (0, 1, 2)]
    assert [replace(figures, whole_s=each).pays for each in whole_s] == [False, False, True]


@pytest.mark.parametrize(
    ("bounds", "speeds", "wait", "expected"),
    [
        ([0, 3, 16], (1.0, 1.0), [0, 0], [7, 16]),
        ([0, 7, 16], (1.0, 1.0), [0, 3], [9, 16]),
        ([0, 4, 11, 16], (0.8, 1.0, 1.0), [0, 0, 0], [4, 10, 16]),
    ],
)
def test_bounds_are_moved_by_a_grain_as_long_as_the_last_device_ends_earlier(
    bounds: list[int], speeds: tuple[float, ...], wait: list[int], expected: list[int]
) -> None:
    shapes = shapes_in(mlps(1))
    costs = costs_of(shapes, 1e-9, speeds)
    chooser = ShardChooser(shapes, costs, schemes=["rows"])
    best = not_none(chooser.best())
    grain_s = costs.time_s[list(best.regions[0].ops), 1].sum() / 16
    made = not_none(
        chooser.divider._balanced(best.regions[0], 16, [16 * bound for bound in bounds], grain_s * np.array(wait))
    )
    assert [last / 16 for _, last in made[0].shares.values()] == expected


def test_what_is_pinned_is_not_divided_and_all_else_is() -> None:
    shapes = shapes_in(mlps(2))
    products = [v for v in range(shapes.graph.num_ops) if shapes.op(v).type == "MatMul"]
    (best, *_) = propose(shapes, costs_of(shapes, 1e-7), {products[0]: 1, products[1]: 0})
    assert [best.devices[v] for v in products[:2]] == [1, 0]
    assert {v for region in best.regions for v in region.ops} & set(products) == set(products[2:])
    assert propose(shapes, costs_of(shapes, 1e-7), {v: v % 2 for v in range(shapes.graph.num_ops)}) == []


def test_equal_blocks_are_solved_once_where_their_times_differ_by_no_more_than_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Counter[str]()
    region = OpShapes.region

    def counted(*given: Any) -> Region | None:
        asked["regions"] += 1
        return region(*given)

    monkeypatch.setattr(OpShapes, "region", counted)

    def solved(count: int, noise: float, slow: float = 1.0) -> int:
        shapes, rng = shapes_in(mlps(count)), np.random.default_rng(0)
        costs = costs_of(shapes)
        costs.time_s[:] *= np.exp(noise * rng.standard_normal(costs.time_s.shape))
        costs.time_s[shapes.graph.num_ops // 2 :] *= slow
        chooser = ShardChooser(shapes, costs)
        asked.clear()
        found = not_none(chooser.best())
        divided = {v for each in found.regions if each.scheme != "replicated" for v in each.ops}
        assert sum(shapes.op(v).type == "MatMul" for v in divided) == 2 * count
        return asked["regions"]

    assert solved(8, 0.0) == solved(12, 0.0) == solved(12, 0.02)
    assert solved(12, 0.02, slow=2.0) > solved(12, 0.02)


def test_segments_whose_weights_are_made_otherwise_are_not_equal() -> None:
    x = parameter = op.parameter([1, 256, 64], np.float32)
    for is_small in (False, False, True, False):
        scaled = op.multiply(op.convert(op.constant(np.ones((64, 64), np.int8)), "f32"), weights(64, 1))
        x = op.matmul(x, scaled if is_small else weights(64, 64), False, False)
    shapes = shapes_in(ov.Model([op.result(x)], [parameter], "products"))
    assert ShardChooser(shapes, costs_of(shapes)).segments.kinds == [0, 1, 2, 1]


def simulation(model: ov.Model, costs: ShardCosts) -> Callable[[Sharding], float]:
    """What the executor's simulation says of ways to divide a model."""
    graph, num = graph_of(model), costs.time_s.shape[1]
    figures = np.repeat([1.0, costs.launch_s, costs.s_per_byte / 2], [num, num, 2 * num])
    own = WorkConservingCosts(PartTable(graph, costs.time_s), figures, CostSource.MEASURED)

    def simulated(way: Sharding) -> float:
        found = shard(model, graph, way.regions, way.devices, "ABC"[:num])
        return simulated_s(sharded_costs(own, found), found.devices)

    return simulated


@pytest.mark.parametrize(
    "speeds",
    [(1.0, 2.0), (2.0, 1.0, 1.0), *(pytest.param((s, 1.0), marks=pytest.mark.slow) for s in (1.0, 1.5, 4.0))],
)
@pytest.mark.parametrize(
    "make",
    [lambda: mlps(3), lambda: mlps(3, hidden=1024, is_post=True), lambda: convolutions(2, 64, 64)],
    ids=["rows", "hidden columns", "convolutions"],
)
def test_devices_come_near_to_their_harmonic_bound_equal_or_not(
    make: Callable[[], ov.Model], speeds: tuple[float, ...]
) -> None:
    """Simulated, of unequal devices, which divide all work and never wait."""
    model = make()
    shapes = shapes_in(model)
    costs = costs_of(shapes, 3e-6, speeds)
    (best, *_) = propose(shapes, costs, prices=NEAR_PRICES, predict=simulation(model, costs), trials=20)
    alone_s = costs.time_s[np.array(shapes.runs)].sum(axis=0)
    assert 1.0 <= best.predicted_s * float((1.0 / alone_s).sum()) <= 1.15


def test_what_lies_between_sums_is_computed_everywhere_where_that_saves_a_sync() -> None:
    model = mlps(3, hidden=1024, rows=32, is_post=True)
    shapes = shapes_in(model)
    costs = costs_of(shapes, speeds=(1.0, 1.0, 1.0))
    (best, *_) = propose(shapes, costs, predict=simulation(model, costs))
    everywhere = {v for region in best.regions if region.scheme == "replicated" for v in region.ops}
    assert "MVN" in {shapes.op(v).type for v in everywhere}
    assert {region.scheme for region in best.regions} >= {"hidden", "replicated"}


@pytest.mark.usefixtures("weights_take_no_time")
@pytest.mark.parametrize(("batch", "axis"), [(1, 2), (3, 2), (4, 0)])
def test_a_batch_is_divided_by_images_where_shares_come_out_even(batch: int, axis: int) -> None:
    shapes = shapes_in(convolutions(3, batch=batch))
    best = not_none(ShardChooser(shapes, costs_of(shapes, 1e-7)).best())
    assert {axis for region in best.regions for axis in region.axes} == {axis}


def test_light_ops_beside_rows_are_computed_by_every_device() -> None:
    x = parameter = op.parameter([1, 8, 32, 32], np.float32)
    gate = op.sigmoid(op.reduce_mean(x, op.constant(np.array([1, 2, 3])), True))
    x = op.multiply(op.convolution(x, weights(8, 8, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1]), gate)
    shapes = shapes_in(ov.Model([op.result(x)], [parameter], "gate"))
    best = not_none(ShardChooser(shapes, costs_of(shapes, 1e-7), schemes=["rows"]).best())
    found = [(region.scheme, [shapes.op(v).type for v in region.ops]) for region in best.regions]
    assert found == [("rows", ["Convolution", "Multiply"]), ("replicated", ["ReduceMean", "Sigmoid"])]


def test_attention_is_divided_by_heads_with_the_variables_that_it_reads_or_stays_whole() -> None:
    shapes = shapes_in(build_model("tiny_stateful_llama_int4"))
    types, costs = shapes.graph.op_types, costs_of(shapes, 1e-9)
    kept = {v for v, name in enumerate(types) if name in ("ReadValue", "ScaledDotProductAttention")}
    best = not_none(ShardChooser(shapes, costs).best(has_home=False))
    every = {"heads": 4, "hidden": 4, "columns": 1, "replicated": 1}
    assert Counter(region.scheme for region in best.regions) == every
    for region in best.regions:
        assert len(kept & set(region.ops)) == (3 if region.scheme == "heads" else 0)
    repeated = Counter(types[v] for v in best.regions[-1].ops)
    assert (repeated["ReduceMean"], repeated["LogicalAnd"], repeated["Assign"]) == (9, 1, 0)
    best = not_none(ShardChooser(shapes, costs, schemes=["hidden"]).best())
    assert not kept & {v for region in best.regions for v in region.ops}
    assert not any(best.devices[v] for v in kept)


def test_a_cut_tensor_is_sent_where_its_layout_is_not_the_one_that_is_wanted() -> None:
    """A result that is whole at the end needs no sync, nor do other bounds of one axis."""
    shapes = shapes_in(mlps(1))
    costs = costs_of(shapes)
    ways = ShardChooser(shapes, costs).ways()
    halves, quarter = (1, 128, 256), (1, 64, 256)
    sent = [(3, (0,), (1,)), (3, (1,), halves), (3, halves, (1,)), (3, halves, (2, 32, 64)), (4, halves, EVERYWHERE)]
    kept = [(0, (0,), (1,)), (3, EVERYWHERE, (1,)), (3, (0,), (0,)), (3, halves, quarter), (4, (1,), EVERYWHERE)]
    for cases, seconds in ((sent, costs.sync_s(4 * 256 * 64)), (kept, 0.0)):
        assert [ways.sync_s(*each) for each in cases] == [seconds] * 5
    rows = {way.end: way.reads for way in ways.of(3, 4) if len(way.end) > 1}
    assert rows == {layout: layout for layout in (halves, (2, 32, 64))}


def test_branches_are_parted_where_a_few_rows_of_their_results_read_nearly_all() -> None:
    x = parameter = op.parameter([1, 64, 14, 14], np.float32)

    def convolution(x: Any, kernel: int) -> Any:
        return op.relu(op.convolution(x, weights(64, 64, kernel, kernel), [1, 1], *[[kernel // 2] * 2] * 2, [1, 1]))

    x = convolution(x, 1)
    for _ in range(3):
        x = op.add(*(convolution(convolution(x, 7), 7) for _ in range(2)))
    model = ov.Model([op.result(x)], [parameter], "branches")
    shapes = shapes_in(model)
    costs = costs_of(shapes, 1e-6)
    (best, *_) = propose(shapes, costs, predict=simulation(model, costs))
    large = [v for v in range(len(best.devices)) if shapes.op(v).type == "Convolution" and shapes.graph.flops[v] > 1e7]
    assert len(large) == 12
    assert not {v for region in best.regions for v in region.ops} & set(large)
    assert sorted(best.devices[v] for v in large) == [0] * 6 + [1] * 6
    graph, inputs = graph_of(model), inputs_of(model, np.random.default_rng(0))
    found = shard(model, graph, best.regions, best.devices, "AB")
    assert difference(outputs_of(found.model, inputs), outputs_of(model, inputs)) < LARGEST_DIFFERENCE
    parted = [
        [way for way in ShardChooser(shapes, costs_of(shapes, 1e-6, (1.0, 0.8)), *given).ways().of(1, 2) if way.placed]
        for given in ((), ((0.5, 0.5),), (None, ["rows"]))
    ]
    (way,), *without = parted
    branch_s = costs.time_s[[v for v, d in way.placed.items() if d == 0], 0].sum()
    end_s = costs.time_s[[shapes.op(v).type == "Add" for v in range(len(best.devices))], 0][0]
    assert (way.compute_s, way.sync_s) == pytest.approx((1.25 * (branch_s + end_s), costs.sync_s(4 * 64 * 14 * 14)))
    assert without == [[], []]


def test_what_a_piece_takes_however_small_counts_for_every_piece() -> None:
    shapes = shapes_in(mlps(1, rows=64))
    costs = costs_of(shapes, 1e-9, (1.0, 1.0))
    choosers = [ShardChooser(shapes, replace(costs, fixed_s=share * costs.time_s)) for share in (0.0, 0.5)]
    cheap, dear = (not_none(chooser.best()) for chooser in choosers)
    assert dear.bound_s == pytest.approx(1.5 * cheap.bound_s, rel=0.05)


@pytest.mark.parametrize(
    ("whole_s", "wait_s", "shares"),
    [
        ([1.0, 1.0], [0.0, 0.0], [0.5, 0.5]),
        ([1.0, 1.0], [0.0, 0.2], [0.6, 0.4]),
        ([1.0, 3.0], [0.0, 0.0], [0.75, 0.25]),
        ([1.0, 1.0], [0.0, 1.5], [1.0, 0.0]),
        ([1.0, 1.0, 1.0], [0.0, 0.1, 0.9], [0.55, 0.45, 0.0]),
    ],
)
def test_shares_are_those_with_which_devices_end_together(
    whole_s: list[float], wait_s: list[float], shares: list[float]
) -> None:
    assert even_shares(np.array(whole_s), np.array(wait_s)) == pytest.approx(np.array(shares))


ARC_B70 = {"decoding": (1, 21.53, 7.02), "prefill": (512, 445.8, 394.1)}
"""Tokens at a time, and tokens a second of 27B weights by one Arc B70 and by tensors over two (llama.cpp, PR 26409)."""


@pytest.mark.parametrize("phase", ARC_B70)
def test_cards_without_a_direct_link_are_left_whole_models_and_with_one_they_divide_them(phase: str) -> None:
    """SIMULATED, by a decoder of two layers, which stand for two of 64, each 5,120 wide.

    Syncs over PCIe, two in each layer, take what the two cards took beside half of what one takes.
    """
    layers, hidden, held = 2, 64, {"decoding": 1, "prefill": 8}
    layer_s = {name: count / rate / 64 for name, (count, rate, _) in ARC_B70.items()}
    sync_s = {name: (count / rate / 64 - layer_s[name] / 2) / 2 for name, (count, _, rate) in ARC_B70.items()}
    bytes_of = {name: 4.0 * 5120 * count for name, (count, _, _) in ARC_B70.items()}
    per_byte = (sync_s["prefill"] - sync_s["decoding"]) / (bytes_of["prefill"] - bytes_of["decoding"])
    larger = bytes_of[phase] / (4 * hidden * held[phase])
    sizes = DecoderSizes(layers, hidden, 4, 2, 128, vocabulary=64, tokens=held[phase])
    model = llama_decoder("decoder", sizes).build(0)
    shapes = shapes_in(model)
    work = np.where(shapes.runs, shapes.graph.flops, 0.0)
    seconds = np.tile((layers * layer_s[phase] * work / work.sum())[:, None], 2)
    pcie = ShardCosts(seconds, np.ones(2), sync_s["decoding"], larger * per_byte)
    assert propose(shapes, pcie, predict=simulation(model, pcie)) == []
    linked = ShardCosts(seconds, np.ones(2), 1e-5, larger / 300e9)
    assert propose(shapes, replace(linked, slowdown=np.full(2, 2.1))) == []  # which eats the gain
    (best, *_) = propose(shapes, linked)
    assert best.predicted_s < 0.62 * layers * layer_s[phase]
