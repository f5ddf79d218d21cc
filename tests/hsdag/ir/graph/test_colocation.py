"""Co-location: every rule on a small model, and the acyclic quotient on random graphs."""

from __future__ import annotations

import networkx as nx
import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openvino import opset13 as op

from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import Colocation, colocate, kept_compressed
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges


class Sets:
    """The co-location sets of a model, asked by op names."""

    def __init__(self, model: ov.Model) -> None:
        self.graph = graph_of(model)
        self.constraints: Colocation = colocate(self.graph)

    def together(self, *names: str) -> bool:
        return len({int(self.constraints.sets.labels[self.graph.index_of[name]]) for name in names}) == 1

    def floats(self, name: str) -> bool:
        return bool(self.constraints.floating[self.graph.index_of[name]])


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, dtype=np.float32)


def test_a_shared_constant_lies_with_its_first_consumer_and_ties_nothing() -> None:
    x = op.parameter([2, 2], np.float32, name="x")
    w = op.constant(ones(2, 2), name="w")
    first = op.matmul(x, w, False, False, name="first")
    sets = Sets(ov.Model([op.matmul(first, w, False, False, name="second")], [x], "m"))
    assert sets.together("w", "first")
    assert not sets.together("first", "second")


def test_only_edges_of_data_are_kept_between_sets() -> None:
    x, y = (op.parameter([2, 2], np.float32, name=name) for name in "xy")
    w = op.constant(ones(2, 2), name="w")
    model = ov.Model([op.relu(op.matmul(v, w, False, False, name=f"mm{i}")) for i, v in enumerate((x, y))], [x, y], "m")
    sets = Sets(model)
    names = sets.graph.op_names
    kept = np.flatnonzero(sets.constraints.edge_kept)
    assert len(kept) == sets.graph.num_edges - 2
    assert "w" not in {names[sets.graph.edge_src[e]] for e in kept}


@pytest.mark.parametrize("consumer", ["matmul", "convolution", "gather"])
def test_a_weight_decompression_chain_lies_with_its_consumer(consumer: str) -> None:
    weights = op.constant(np.ones((4, 4), dtype=np.uint8), name="w")
    wide = op.convert(weights, np.float32, name="convert")
    scaled = op.multiply(op.subtract(wide, op.constant(ones(4, 1), name="zero"), name="sub"), ones(4, 1), name="mul")
    shape = {"matmul": [4, 4], "convolution": [4, 4, 1, 1], "gather": [4, 4]}[consumer]
    weight = op.reshape(scaled, op.constant(shape, name="shape"), special_zero=False, name="reshape")
    if consumer == "gather":
        x = op.parameter([3], np.int64, name="x")
        last = op.gather(weight, x, op.constant(0), name="use")
    elif consumer == "matmul":
        x = op.parameter([4, 4], np.float32, name="x")
        last = op.matmul(x, weight, False, False, name="use")
    else:
        x = op.parameter([1, 4, 5, 5], np.float32, name="x")
        last = op.convolution(x, weight, [1, 1], [0, 0], [0, 0], [1, 1], name="use")
    sets = Sets(ov.Model([last], [x], "m"))
    assert sets.together("w", "convert", "zero", "sub", "mul", "shape", "reshape", "use")
    assert all(sets.floats(name) for name in ("w", "convert", "sub", "mul", "reshape"))


def stateful() -> ov.Model:
    x = op.parameter([1, 2], np.float32, name="x")
    read = op.read_value(op.constant(ones(1, 2), name="init"), "state", np.float32, [1, 2], name="read")
    between = op.relu(op.add(read, x, name="add"), name="relu")
    assign = op.assign(between, "state")
    assign.set_friendly_name("assign")
    return ov.Model([op.result(op.tanh(x, name="tanh"), name="out")], [assign], [x], "m")


def test_a_variable_and_what_lies_between_its_ops_are_one_set() -> None:
    sets = Sets(stateful())
    assert sets.together("x", "read", "add", "relu", "assign")
    assert not sets.together("read", "tanh")


def test_a_parameter_read_first_by_shape_of_lies_with_its_first_reader_of_data() -> None:
    x = op.parameter([2, 3], np.float32, name="x")
    shape = op.shape_of(x, name="shape")
    y = op.relu(x, name="relu")
    sets = Sets(ov.Model([op.reshape(y, shape, special_zero=False, name="reshape")], [x], "m"))
    assert sets.together("x", "relu")


def test_a_body_is_part_of_its_op() -> None:
    x = op.parameter([3, 1, 2], np.float32, name="x")
    inner = op.parameter([1, 1, 2], np.float32, name="inner")
    body = ov.Model([op.relu(inner, name="inside")], [inner], "body")
    loop = op.tensor_iterator()
    loop.set_body(body)
    loop.set_sliced_input(inner, x.output(0), 0, 1, 1, -1, 0)
    out = loop.get_concatenated_slices(body.results[0].output(0), 0, 1, 1, -1, 0)
    loop.set_friendly_name("loop")
    model = ov.Model([op.result(out, name="out")], [x], "m")
    sets = Sets(model)
    assert "inside" not in sets.graph.index_of
    assert sets.together("x", "loop", "out")


@pytest.mark.parametrize("kind", ["random", "multinomial", "if"])
def test_random_numbers_and_branches_are_never_copied(kind: str) -> None:
    x = op.parameter([2], np.float32, name="x")
    if kind == "random":
        source = op.random_uniform(
            op.constant([2]), op.constant(np.float32(0)), op.constant(np.float32(1)), "f32", name="source"
        ).output(0)
    elif kind == "multinomial":
        probabilities = op.constant(ones(1, 4))
        source = op.multinomial(probabilities, op.constant([2]), "f32", False, False, name="source").output(0)
    else:
        branch = op.if_op(op.constant(True))
        bodies = [ov.Model([op.constant(ones(2) * i)], [], f"b{i}") for i in (0, 1)]
        branch.set_then_body(bodies[1])
        branch.set_else_body(bodies[0])
        branch.set_friendly_name("source")
        source = branch.set_output(bodies[1].results[0], bodies[0].results[0])
    sets = Sets(ov.Model([op.add(op.multiply(x, source), source)], [x], "m"))
    assert not sets.floats("source")


@given(data=st.data())
def test_the_quotient_over_kept_edges_is_acyclic(
    dags: st.SearchStrategy[ComputationGraph], data: st.DataObject
) -> None:
    graph = data.draw(dags)
    constraints = colocate(graph)
    label = constraints.sets.labels.tolist()
    edges = zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), constraints.edge_kept.tolist(), strict=True)
    quotient = nx.DiGraph((label[s], label[d]) for s, d, kept in edges if kept and label[s] != label[d])
    assert nx.is_directed_acyclic_graph(quotient)


@given(data=st.data())
def test_an_op_floats_exactly_when_no_data_reaches_it(
    dags: st.SearchStrategy[ComputationGraph], data: st.DataObject
) -> None:
    graph = data.draw(dags)
    other = nx.DiGraph(graph.to_networkx())
    other.remove_edges_from([(u, v) for u, v in other.edges if graph.op_types[v] == "ShapeOf"])
    floating = colocate(graph).floating
    for v in range(graph.num_ops):
        sources = {u for u in nx.ancestors(other, v) | {v} if other.in_degree(u) == 0}
        known = {graph.op_types[u] for u in sources} <= {"Constant", "ShapeOf"}
        assert bool(floating[v]) is (known and len(graph.successors.of(v)) > 0)


def test_a_quantised_weight_is_kept_compressed_and_a_computed_one_is_not() -> None:
    types = ["Constant", "FakeQuantize", "Constant", "Sqrt", "Parameter", "Add", "Add"]
    graph = graph_from_edges(types, [(0, 1), (2, 3), (1, 5), (4, 5), (3, 6), (5, 6)])
    assert np.flatnonzero(kept_compressed(graph)).tolist() == [1]
