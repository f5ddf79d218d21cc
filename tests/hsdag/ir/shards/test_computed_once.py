"""What a second device would compute otherwise is computed once: random numbers, in bodies too, and unknown ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo

from hsdag.base.errors import PlacementError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.state import computed_once, results_by_chance
from hsdag.ir.shards.regions import Region
from hsdag.ir.shards.rewrite import shapes_of, shard
from hsdag.methods.shards.choice import ShardChooser, Sharding
from hsdag.methods.shards.division import ShardCosts
from hsdag.methods.shards.proposals import with_repeated
from tests.hsdag.ir.shards.random_shards import number
from tests.hsdag.runtime.executor.python_ops import PythonOp

ROWS = 64


def drawn(rows: int = ROWS) -> Any:
    """Random numbers, a row for each."""
    return op.random_uniform(op.constant(np.array([rows, 1])), number(0.0), number(1.0), "f32", 1, 2)


def chosen_by_chance() -> Any:
    odds = op.constant(np.full((ROWS, 4), 0.25, np.float32))
    return op.convert(op.multinomial(odds, op.constant(np.int64(1)), "i32", True, False, 1, 2), "f32")


def drawn_in_a_loop() -> Any:
    body = ov.Model([op.result(op.constant(True)), op.result(drawn())], [], "body")
    loop = op.loop(op.constant(np.int64(1)), op.constant(True))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 0])
    return loop.get_iter_value(body.get_results()[1].output(0), -1)


def drawn_in_a_branch() -> Any:
    branch = op.if_op(op.constant(True))
    results = [op.result(drawn()), op.result(op.constant(np.ones((ROWS, 1), np.float32)))]
    branch.set_then_body(ov.Model([results[0]], [], "then"))
    branch.set_else_body(ov.Model([results[1]], [], "else"))
    return branch.set_output(*results)


class UnknownOp(PythonOp):
    """Of no opset, so that nobody knows what it does."""


DRAWING: dict[str, Callable[[], Any]] = {
    "RandomUniform": drawn,
    "Multinomial": chosen_by_chance,
    "Loop": drawn_in_a_loop,
    "If": drawn_in_a_branch,
    "UnknownOp": lambda: UnknownOp([op.constant(np.ones((ROWS, 1), np.float32))]),
}


def noisy(make: Callable[[], Any]) -> ov.Model:
    """Two products of all rows, and noise between them."""
    x, square = op.parameter([ROWS, 16], np.float32), op.constant(np.eye(16, dtype=np.float32))
    y = op.add(op.matmul(x, square, False, False), make())
    return ov.Model([op.result(op.matmul(op.relu(y), square, False, False))], [x], "noisy")


@pytest.mark.parametrize("kind", DRAWING)
def test_no_copy_of_a_random_op_is_made_where_a_model_is_divided(kind: str) -> None:
    model = noisy(DRAWING[kind])
    graph = graph_of(model)
    shapes = shapes_of(model, graph)
    costs = ShardCosts(np.tile(graph.flops[:, None] / 1e9 + 1e-9, 2), np.ones(2), 0.0, 0.0)
    ways = [ShardChooser(shapes, costs).best(has_home=has_home) for has_home in (False, True)]
    assert all(way is not None and len(way.regions) for way in ways)
    for way in (w for found in ways if found for w in (found, with_repeated(shapes, found))):
        made = shard(model, graph, way.regions, way.devices, "AB")
        assert graph_of(made.model).op_types.count(kind) == 1
        assert made.graph.op_types.count("MatMul") == 4  # it is divided


@pytest.mark.parametrize("kind", DRAWING)
def test_a_copy_of_a_random_op_is_refused_and_never_follows_its_readers(kind: str) -> None:
    model = noisy(DRAWING[kind])
    graph = graph_of(model)
    once = np.flatnonzero(computed_once(graph)).tolist()
    assert [graph.op_types[v] for v in once] == [kind]
    assert not colocate(graph).floating[once].any()
    everywhere = Region("replicated", tuple(once), (None,), {0: (0, 1), 1: (0, 1)})
    with pytest.raises(PlacementError, match="would give every device something else"):
        shard(model, graph, [everywhere], [0] * graph.num_ops, "AB")


def test_no_copy_of_a_random_op_is_made_between_divided_ops() -> None:
    """By ways that have all devices repeat what lies there."""
    x, square = op.parameter([ROWS, 16], np.float32), op.constant(np.eye(16, dtype=np.float32))
    odds = op.softmax(op.matmul(x, square, False, False), 1)
    tokens = op.convert(op.multinomial(odds, op.constant(np.int64(16)), "i32", True, False, 1, 2), "f32")
    model = ov.Model([op.result(op.matmul(op.relu(tokens), square, False, False))], [x], "sampled")
    graph = graph_of(model)
    shapes = shapes_of(model, graph)
    products = [v for v, kind in enumerate(graph.op_types) if kind == "MatMul"]
    halves = {0: (0, ROWS // 2), 1: (ROWS // 2, ROWS)}
    way = Sharding(tuple(Region("rows", (v,), (0,), halves) for v in products), (0,) * graph.num_ops, 0.0, 0.0)
    found = with_repeated(shapes, way)
    assert {graph.op_types[v] for v in found.regions[-1].ops} == {"Softmax", "Convert", "Relu"}
    assert shard(model, graph, found.regions, found.devices, "AB").graph.op_types.count("Multinomial") == 1


def test_a_body_that_draws_nothing_may_be_computed_twice() -> None:
    body = ov.Model([op.result(op.constant(True)), op.result(op.constant(np.float32(1)))], [], "body")
    loop = op.loop(op.constant(np.int64(1)), op.constant(True))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 0])
    value = loop.get_iter_value(body.get_results()[1].output(0), -1)
    x = op.parameter([4], np.float32)
    assert not computed_once(graph_of(ov.Model([op.result(op.add(x, value))], [x], "calm"))).any()


def test_a_graph_without_bodies_is_judged_by_the_types_of_its_ops() -> None:
    graph = graph_of(noisy(drawn))
    plain = replace(graph, is_function=np.ones(graph.num_ops, np.bool_))
    assert computed_once(plain).tolist() == computed_once(graph).tolist()


def test_what_depends_on_random_numbers_also_does_through_a_variable() -> None:
    x, info = op.parameter([ROWS, 1], np.float32), VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([ROWS, 1]), ov.Type.f32, "kept"
    kept = Variable(info)
    before = op.read_value(op.constant(np.zeros((ROWS, 1), np.float32)), kept)
    stored = op.assign(op.add(x, drawn()), kept)
    results = [op.result(op.tanh(before)), op.result(op.sin(x))]
    graph = graph_of(ov.Model(results, [stored], [x], "state"))
    found = [graph.op_types[graph.predecessors.of(v)[0]] for v in results_by_chance(graph)]
    assert found == ["Tanh"]
