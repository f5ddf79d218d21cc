"""Choosing shards: the cheapest sequence of ways is found, and nothing is proposed where syncs cost more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir.graph.build import graph_of
from hsdag.ir.shards.regions import Shapes
from hsdag.ir.shards.rewrite import shapes_of
from hsdag.methods.sharding import EVERYWHERE, Layout, ShardChooser, ShardCosts, propose

RNG = np.random.default_rng(0)


def weights(*shape: int) -> ov.Node:
    return op.constant(RNG.standard_normal(shape).astype(np.float32))


def mlps(count: int, width: int = 64, hidden: int = 256, rows: int = 32) -> Shapes:
    """Residual feed-forward blocks in a row, as those of transformers are."""
    x = parameter = op.parameter([1, rows, width], np.float32)
    for _ in range(count):
        normal = op.mvn(x, op.constant(np.array([2])), True, 1e-6, "inside_sqrt")
        inner = op.gelu(op.matmul(normal, weights(width, hidden), False, False), "erf")
        x = op.add(x, op.matmul(inner, weights(hidden, width), False, False))
    model = ov.Model([op.result(x)], [parameter], "mlps")
    return shapes_of(model, graph_of(model))[1]


def convolutions(count: int) -> Shapes:
    x = parameter = op.parameter([1, 8, 32, 32], np.float32)
    for _ in range(count):
        x = op.relu(op.convolution(x, weights(8, 8, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1]))
    model = ov.Model([op.result(x)], [parameter], "convolutions")
    return shapes_of(model, graph_of(model))[1]


def costs_of(shapes: Shapes, launch_s: float = 1e-5, speeds: tuple[float, ...] = (1.0, 1.0)) -> ShardCosts:
    graph = shapes.graph
    seconds = graph.flops / 1e10 + graph.output_bytes / 1e10
    return ShardCosts(seconds[:, None] / np.array(speeds), np.ones(len(speeds)), launch_s, 1e-10)


def every_cost(chooser: ShardChooser) -> Iterator[float]:
    """Of all sequences of ways, one after another."""
    end = len(chooser._segments)
    pending: list[tuple[int, Layout, float]] = [(0, EVERYWHERE, 0.0)]
    while pending:
        i, layout, seconds = pending.pop()
        if i == end:
            yield seconds + chooser._sync_s(end, layout, EVERYWHERE)
        for j in range(i + 1, end + 1):
            for way in chooser._ways(i, j):
                step = way.compute_s + way.sync_s + chooser._sync_s(i, layout, way.reads)
                pending.append((j, way.end, seconds + step))


@pytest.mark.parametrize("launch_s", [1e-6, 3e-5, 3e-4])
@pytest.mark.parametrize("make", [lambda: mlps(2), lambda: convolutions(3)], ids=["mlps", "convolutions"])
def test_no_sequence_of_ways_is_cheaper(make: Callable[[], Shapes], launch_s: float) -> None:
    shapes = make()
    chooser = ShardChooser(shapes, costs_of(shapes, launch_s))
    least = min(every_cost(chooser))
    found = chooser.best()
    assert (least if found is None else found.predicted_s) == pytest.approx(least)


def test_a_chain_of_blocks_is_divided_where_syncs_are_cheap_and_left_whole_where_they_are_not() -> None:
    shapes = mlps(3)
    whole_s = costs_of(shapes).time_s[:, 0].sum()
    (best, *_) = propose(shapes, costs_of(shapes, 1e-7))
    assert best.predicted_s < 0.6 * whole_s
    assert propose(shapes, costs_of(shapes, 1.0)) == []


def test_shares_follow_the_speeds_of_devices() -> None:
    shapes = mlps(2, rows=64)
    (best, *_) = propose(shapes, costs_of(shapes, 1e-7, (3.0, 1.0)))
    divided = [region for region in best.regions if region.scheme != "replicated"]
    for region in divided:
        first, second = (last - begin for begin, last in region.shares.values())
        assert first / (first + second) == pytest.approx(0.75, abs=0.1)
    assert divided


def test_a_slow_down_that_eats_the_gain_leaves_the_model_whole() -> None:
    shapes = mlps(2)
    costs = costs_of(shapes, 1e-7)
    assert propose(shapes, ShardCosts(costs.time_s, np.array([2.1, 2.1]), costs.launch_s, costs.s_per_byte)) == []
