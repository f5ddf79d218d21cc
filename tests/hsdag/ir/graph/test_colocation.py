"""Co-location: every rule on a small model, and the acyclic quotient on random graphs."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openvino import opset13 as op

from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import Colocation, colocate, held_bytes, kept_compressed, widened
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from tests.networks import as_networkx


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
    kept = {sets.graph.op_names[u] for u in sets.graph.edge_src[sets.constraints.edge_kept]}
    assert kept == {"x", "first", "second"}


def test_a_weight_decompression_chain_lies_with_its_reader() -> None:
    weights = op.constant(np.ones((4, 4), dtype=np.uint8), name="w")
    wide = op.convert(weights, np.float32, name="convert")
    scaled = op.multiply(op.subtract(wide, op.constant(ones(4, 1), name="zero"), name="sub"), ones(4, 1), name="mul")
    weight = op.reshape(scaled, op.constant([4, 4], name="shape"), special_zero=False, name="reshape")
    x = op.parameter([4, 4], np.float32, name="x")
    sets = Sets(ov.Model([op.matmul(x, weight, False, False, name="use")], [x], "m"))
    assert sets.together("w", "convert", "zero", "sub", "mul", "shape", "reshape", "use")
    assert all(sets.floats(name) for name in ("w", "convert", "sub", "mul", "reshape"))


@pytest.mark.parametrize("kind", ["RandomUniform", "Multinomial", "If"])
def test_random_numbers_and_branches_are_never_copied(kind: str) -> None:
    graph = graph_from_edges(["Constant", kind, "Parameter", "Add"], [(0, 1), (1, 3), (2, 3)])
    assert colocate(graph).floating.tolist() == [True, False, False, False]


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
    other = nx.DiGraph(as_networkx(graph))
    other.remove_edges_from([(u, v) for u, v in other.edges if graph.op_types[v] == "ShapeOf"])
    floating = colocate(graph).floating
    for v in range(graph.num_ops):
        sources = {u for u in nx.ancestors(other, v) | {v} if other.in_degree(u) == 0}
        known = {graph.op_types[u] for u in sources} <= {"Constant", "ShapeOf"}
        assert bool(floating[v]) is (known and len(graph.successors.of(v)) > 0)


@pytest.mark.parametrize(
    ("op_type", "stored", "wide", "size_bytes", "kept"),
    [
        ("Convert", "u8", "f32", 8, [1, 3]),  # and what is computed from it
        ("Ceiling", "u8", "f32", 8, []),
        ("Convert", "u8", "i32", 8, []),
        ("Convert", "f16", "f32", 4098, [1, 3]),
        ("Convert", "f16", "f32", 4096, []),  # which saves next to nothing
        ("Convert", "f32", "f64", 4098, []),
        ("FakeQuantize", "f32", "f32", 8, [1, 3]),
    ],
)
def test_a_weight_is_kept_compressed_where_that_saves_memory_or_it_is_quantised(
    op_type: str, stored: str, wide: str, size_bytes: int, kept: list[int]
) -> None:
    types = ["Constant", op_type, "Constant", "Multiply", "Parameter", "Add"]
    edges = [(0, 1), (1, 3), (2, 3), (3, 5), (4, 5)]
    graph = graph_from_edges(types, edges, output_bytes=[size_bytes // 2, *[size_bytes] * 5])
    found = kept_compressed(replace(graph, element_types=(stored, *[wide] * 5)))
    assert np.flatnonzero(found).tolist() == kept
    wide_already = replace(graph, element_types=(stored, *[wide] * 5), output_bytes=np.full(6, size_bytes))
    assert kept_compressed(wide_already).any() == (kept != [] and stored != "f16")


def test_a_device_holds_the_weights_of_its_ops_and_constants_that_they_read_and_widens_halves_at_times() -> None:
    graph = graph_from_edges(
        ["Constant", "Constant", "Add", "Add", "Parameter"], [(0, 2), (4, 2), (0, 3), (1, 3), (2, 3)]
    )
    graph = replace(graph, element_types=("f16", "f32", "f16", "f16", "f16"), weight_bytes=np.array([100, 30, 7, 1, 0]))
    assert widened(graph).weight_bytes.tolist() == [200, 30, 7, 1, 0]
    held = held_bytes(graph, np.array([1, 1, 0, 1, 0]), np.array([False, True]))
    assert held.tolist() == [100 + 7, 200 + 30 + 1]
