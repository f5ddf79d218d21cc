"""Co-location: every rule on a small model, the acyclic quotient on random graphs, and what of a state is repeated."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.graph.colocation import (
    colocate,
    kept_compressed,
    read_by_repeated,
    repeated_ops,
    resident_weight_bytes,
    widened,
)
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.ir.graph.partition import Partition
from tests.networks import as_networkx


@pytest.mark.parametrize(
    ("types", "edges", "labels"),
    [
        ("Parameter Constant MatMul MatMul", [(0, 2), (1, 2), (2, 3), (1, 3)], [0, 0, 0, 1]),
        ("Constant Convert Constant Multiply Parameter MatMul", [(0, 1), (1, 3), (2, 3), (4, 5), (3, 5)], [0] * 6),
        ("Constant Parameter ReadValue Add Relu Assign Tanh", [(0, 2), (1, 3), (2, 3), (3, 4), (4, 5), (1, 6)],
         [0, 0, 0, 0, 0, 0, 1]),
        ("Parameter ShapeOf Relu Reshape", [(0, 1), (0, 2), (2, 3), (1, 3)], [0, 1, 0, 1]),
    ],
    ids=[
        "a shared constant with its first consumer",
        "a decompression with its reader",
        "a variable with what is between its ops",
        "a parameter with its first reader of data",
    ],
)  # fmt: skip
def test_what_lies_together(types: str, edges: list[tuple[int, int]], labels: list[int]) -> None:
    graph = graph_from_edges(types.split(), edges)
    graph = replace(graph, variables=tuple("v" * (t in ("ReadValue", "Assign")) for t in graph.op_types))
    found = colocate(graph)
    assert Partition.from_labels(found.sets.labels).labels.tolist() == labels
    floats = np.isin(graph.op_types, ["Constant", "Convert", "Multiply", "ShapeOf"])
    assert found.floating.tolist() == floats.tolist()
    assert found.edge_kept.tolist() == (~floats[graph.edge_src]).tolist()


@pytest.mark.parametrize("kind", ["RandomUniform", "Multinomial", "If"])
def test_random_numbers_and_branches_are_never_copied(kind: str) -> None:
    graph = graph_from_edges(["Constant", kind, "Parameter", "Add"], [(0, 1), (1, 3), (2, 3)])
    assert colocate(graph).floating.tolist() == [True, False, False, False]


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
    held = resident_weight_bytes(graph, np.array([1, 1, 0, 1, 0]), np.array([False, True]))
    assert held.tolist() == [100 + 7, 200 + 30 + 1]


def test_cache_and_attention_of_a_layer_are_one_set_and_layers_are_not(llama_graph: ComputationGraph) -> None:
    labels = colocate(llama_graph).sets.labels
    sets = set()
    for layer in range(4):
        at = f"model.layers.{layer}.self_attn"
        names = [f"{at}.{of}/{what}" for of in ("key", "value") for what in ("read", "past", "all", "wide", "assign")]
        found = {int(labels[llama_graph.index_of[name]]) for name in (*names, f"{at}/attention", f"{at}/key/shape")}
        assert len(found) == 1
        sets |= found
    assert len(sets) == 4


def test_cheap_ops_of_inputs_shapes_and_constants_that_are_no_tables_are_repeated_where_something_reads_them() -> None:
    types = "Parameter Cos Sin ReadValue Add Relu Constant Gather Constant Add ShapeOf ShapeOf Concat Concat".split()
    edges = [(0, 1), (0, 2), (1, 4), (3, 4), (0, 5), (6, 7), (0, 7), (8, 9), (0, 9), (0, 10), (5, 11),
             (10, 12), (7, 12), (10, 13), (11, 13), *((v, 4) for v in (9, 12, 13))]  # fmt: skip
    shapes = [(5, 3) if v == 6 else (1, 3) for v in range(len(types))]
    graph = graph_from_edges(types, edges, shapes=shapes)
    variables, is_dynamic = tuple("v" * (t == "ReadValue") for t in types), np.ones(len(types), np.bool_)
    graph = replace(graph, variables=variables, is_dynamic=is_dynamic)
    assert np.flatnonzero(repeated_ops(graph)).tolist() == [1, 9, 10, 13]
    sources = {v: sorted(graph.edge_src[own].tolist()) for v, own in enumerate(read_by_repeated(graph)) if own}
    assert sources == {1: [0], 4: [0, 11], 9: [0], 10: [0], 12: [0], 13: [0, 11]}
    assert not repeated_ops(replace(graph, variables=("",) * len(types))).any()
