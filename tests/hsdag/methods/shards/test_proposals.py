"""Proposing shards: ways change one thing at a time, compute what the model computes, and are kept where faster."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from functools import partial

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir.graph.build import graph_of
from hsdag.ir.shards.regions import Region
from hsdag.ir.shards.rewrite import shard
from hsdag.methods.shards.choice import Sharding
from hsdag.methods.shards.proposals import improved_division, with_repeated
from tests.hsdag.ir.shards.random_shards import LARGEST_DIFFERENCE, difference, inputs_of, outputs_of
from tests.hsdag.methods.searches import not_none
from tests.hsdag.methods.shards.test_choice import convolutions, mlps, shapes_in, weights


def by_rows(model: ov.Model) -> Sharding:
    """Its convolutions with their activations as one region of 32 rows; what follows is computed by both devices."""
    shapes = shapes_in(model)
    graph = shapes.graph
    last = max(v for v in range(graph.num_ops) if graph.op_types[v] == "Convolution") + 1
    whole = shapes.region("rows", last, 2)
    assert whole is not None
    rest = tuple(v for v in range(last + 1, graph.num_ops) if shapes.runs[v])
    regions = [Region("rows", whole.ops, whole.axes, {0: (0, 16), 1: (16, 32)})]
    regions += [Region("replicated", rest, (None,) * len(rest), {0: (0, 1), 1: (0, 1)})] * bool(rest)
    return Sharding(tuple(regions), (0,) * graph.num_ops, np.inf, 0.0)


def normed() -> ov.Model:
    """Three convolutions over 32 rows, and ops of which none is divided."""
    x = parameter = op.parameter([1, 8, 32, 32], np.float32)
    for _ in range(3):
        x = op.relu(op.convolution(x, weights(8, 8, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1]))
    x = op.tanh(op.mvn(x, op.constant(np.array([1, 2, 3])), True, 1e-6, "inside_sqrt"))
    return ov.Model([op.result(op.add(x, op.abs(x)))], [parameter], "normed")


def test_all_ways_that_are_tried_compute_what_the_model_computes() -> None:
    model, rng, tried = normed(), np.random.default_rng(0), list[Sharding]()
    inputs, graph = inputs_of(model, rng), graph_of(model)
    wanted = outputs_of(model, inputs)

    def predict(way: Sharding) -> float:
        found = shard(model, graph, way.regions, way.devices, "AB")
        assert difference(outputs_of(found.model, inputs), wanted) <= LARGEST_DIFFERENCE
        assert way not in tried
        tried.append(way)
        return -len(tried)

    best = improved_division(shapes_in(model), by_rows(model), predict, (), 30)
    assert len(tried) == 30
    assert best == tried[-1]  # every one was faster than the one before


def work_of(model: ov.Model, way: Sharding) -> float:
    """What all devices compute, in whole ops; a result is one."""
    return sum(shard(model, graph_of(model), way.regions, way.devices, "AB", fills=False).work)


def apart(model: ov.Model) -> Sharding:
    """The first convolution by rows and the second by channels, each with its activation; no other op is divided."""
    start = by_rows(model)
    pairs = [start.regions[0].ops[k : k + 2] for k in (0, 2)]
    regions = [replace(start.regions[0], ops=pair, axes=(axis,) * 2) for pair, axis in zip(pairs, (2, 1), strict=True)]
    return replace(start, regions=tuple(regions))


@pytest.mark.usefixtures("weights_take_no_time")
@pytest.mark.parametrize(
    ("start", "predict", "least", "trials"),
    [
        (by_rows, work_of, 7.0, 60),
        (by_rows, lambda _, way: abs(way.regions[-1].shares[0][1] - 8), 0.0, 600),
        (apart, lambda _, way: len(way.regions) - sum(len(region.ops) for region in way.regions), -5.0, 60),
    ],
)
def test_changes_lead_to_the_fastest_way(
    start: Callable[[ov.Model], Sharding], predict: Callable[[ov.Model, Sharding], float], least: float, trials: int
) -> None:
    """One without rows that both devices compute, with a bound at a quarter, and with all ops in one region."""
    model = convolutions(3, channels=32)
    begin = start(model)
    assert predict(model, begin) > least
    halves = partial(replace, shares={0: (0, 16), 1: (16, 32)})
    found = improved_division(shapes_in(model), begin, lambda way: predict(model, way), (), trials, halves)
    assert found.predicted_s == predict(model, found) == pytest.approx(least)


def repeated(way: Sharding) -> list[int]:
    return [v for region in way.regions if region.scheme == "replicated" for v in region.ops]


def tried(model: ov.Model, start: Sharding, pinned: Container[int] = ()) -> list[Sharding]:
    """The ways that differ from the first in one change, none of which is faster."""
    found: list[Sharding] = []

    def slower(way: Sharding) -> float:
        found.append(way)
        return 1.0

    improved_division(shapes_in(model), replace(start, predicted_s=0.0), slower, pinned, 60)
    return found


def test_what_is_computed_everywhere_goes_to_one_device_with_what_alone_reads_it_and_perhaps_beyond_a_kernel() -> None:
    x = parameter = op.parameter([1, 8, 32, 32], np.float32)
    x = op.tanh(op.relu(op.convolution(x, weights(8, 8, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1])))
    x = op.abs(op.matmul(op.sigmoid(x), weights(32, 32), False, False))
    model = ov.Model([op.result(op.add(op.exp(x), op.floor(x)))], [parameter], "followed")
    types, start = graph_of(model).op_types, by_rows(model)
    ways = [way for way in tried(model, start, {types.index("Floor")}) if way.regions[0] == start.regions[0]]
    assert all({*repeated(way)} == {*repeated(start)}.difference(np.flatnonzero(way.devices)) for way in ways)
    moved = {" ".join(types[v] for v in np.flatnonzero(way.devices)) for way in ways}
    near, beyond = {"Tanh Sigmoid", "Sigmoid"}, {"Tanh Sigmoid MatMul Abs", "Sigmoid MatMul Abs"}
    assert moved == {*near, *beyond, "MatMul Abs", "Abs", "Exp Add", "Add"}


def test_a_region_that_ends_earlier_has_its_shares_in_proportion() -> None:
    x = parameter = op.parameter([1, 8, 64, 64], np.float32)
    for stride in (1, 2):
        x = op.relu(op.convolution(x, weights(8, 8, 3, 3), [stride] * 2, [1, 1], [1, 1], [1, 1]))
    ways = tried(ov.Model([op.result(x)], [parameter], "strided"), by_rows(ov.Model([op.result(x)], [parameter])))
    assert [{0: (0, 32), 1: (32, 64)}, {0: (0, 16), 1: (16, 32)}] in [[r.shares for r in w.regions] for w in ways]


def at_home(model: ov.Model) -> Sharding:
    """The hidden columns of its blocks by two devices, the second of which adds first, and all else on the first."""
    shapes, ends = shapes_in(model), [v for v, kind in enumerate(graph_of(model).op_types) if kind == "MatMul"][1::2]
    regions = [not_none(shapes.region("hidden", end, None)) for end in ends]
    shared = tuple(replace(region, shares={1: (192, 256), 0: (0, 192)}) for region in regions)
    return Sharding(shared, (0,) * shapes.graph.num_ops, np.inf, 0.0)


def test_a_bound_moves_in_one_region_or_in_all_that_are_divided_alike() -> None:
    start = at_home(model := mlps(3, is_post=True))
    other = replace(start.regions[2], shares={1: (128, 256), 0: (0, 128)})
    ways = tried(model, replace(start, regions=(*start.regions[:2], other)))
    bounds = {tuple(each.shares[0][1] for each in way.regions) for way in ways if len(way.regions) == 3}
    assert any(first == second != 192 and third == 128 for first, second, third in bounds)
    assert any(first == 192 != second for first, second, _ in bounds)


def test_all_devices_compute_what_lies_between_divided_ops_but_one_adds_to_its_part_of_a_sum() -> None:
    model = mlps(3, is_post=True)
    graph, start = graph_of(model), at_home(model)
    norms, adds = ([v for v, each in enumerate(graph.op_types) if each == kind] for kind in ("MVN", "Add"))
    assert norms[1] not in repeated(with_repeated(shapes_in(model), start, {norms[1]}))
    way = with_repeated(shapes_in(model), start)
    found = shard(model, graph, way.regions, way.devices, "AB")
    where = {v: {d for u, d in zip(found.origin, found.devices, strict=True) if u == v} for v in (*norms, *adds)}
    assert where == {**{v: {0, 1} for v in norms[:2]}, **{v: {1} for v in adds[:2]}, norms[2]: {0}, adds[2]: {0}}
    inputs = inputs_of(model, np.random.default_rng(0))
    assert difference(outputs_of(found.model, inputs), outputs_of(model, inputs)) <= LARGEST_DIFFERENCE
