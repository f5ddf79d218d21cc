"""ComputationGraph: neighbour lists, orders, conversions, and what it refuses."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.base.errors import FileFormatError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.computation_graph import (
    BoolArray,
    ComputationGraph,
    fact_of_graph,
    graph_from_edges,
    ranked_order,
    topological_order,
)
from hsdag.ir.graph.graph_file import read_graph_file, write_graph_file
from hsdag.models import build_model
from tests.networks import as_networkx


def diamond() -> ComputationGraph:
    return graph_from_edges(["Parameter", "Relu", "Tanh", "Add"], [(0, 1), (0, 2), (1, 3), (2, 3)], shapes=[(2, 3)] * 4)


@given(data=st.data())
def test_neighbour_lists_are_those_of_networkx(dags: st.SearchStrategy[ComputationGraph], data: st.DataObject) -> None:
    graph = data.draw(dags)
    other = as_networkx(graph)
    for v in range(graph.num_ops):
        assert sorted(graph.successors.of(v).tolist()) == sorted(d for _, d in other.out_edges(v))
        assert sorted(graph.predecessors.of(v).tolist()) == sorted(s for s, _ in other.in_edges(v))
        at = slice(graph.successors.indptr[v], graph.successors.indptr[v + 1])
        assert (graph.edge_src[graph.successors.edges[at]] == v).all()
        assert (graph.edge_dst[graph.successors.edges[at]] == graph.successors.indices[at]).all()


@given(pairs=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=16))
def test_topological_order_exists_exactly_for_acyclic_graphs(pairs: list[tuple[int, int]]) -> None:
    other = nx.DiGraph(pairs)
    other.add_nodes_from(range(8))
    table = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    if nx.is_directed_acyclic_graph(other):
        place = np.argsort(topological_order(8, table[:, 0], table[:, 1]))
        assert all(place[s] < place[d] for s, d in pairs)
    else:
        with pytest.raises(ValueError, match=r"^[1-8] ops lie on or behind a cycle"):
            topological_order(8, table[:, 0], table[:, 1])


def test_sizes_follow_shapes_and_edges() -> None:
    graph = graph_from_edges(["A", "B", "C"], [], shapes=[(1, 2, 3), (4,), ()])
    assert [graph.shape_of(v) for v in range(3)] == [(1, 2, 3), (4,), ()]
    assert diamond().edge_bytes.tolist() == [24] * 4
    assert diamond().edge_dst_port.tolist() == [0, 0, 0, 1]
    assert (diamond().mean_degree, graph_from_edges([], []).mean_degree) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"op_types": ("A",)}, "every op column"),
        ({"edge_bytes": np.zeros(1, np.int64)}, "every edge column"),
        ({"op_names": ("a", "a", "b", "c")}, "not unique"),
        ({"edge_dst": np.asarray([1, 2, 3, 4])}, "leaves the graph"),
        ({"edge_dst": np.asarray([1, 2, 3, -1])}, "leaves the graph"),
        ({"edge_src": np.asarray([-1, 0, 1, 2])}, "leaves the graph"),
        ({"edge_src": np.asarray([0, 0, 1, 4])}, "leaves the graph"),
        ({"edge_src": np.asarray([0, 0, 1, 3])}, "consumer before its producer"),
        ({"topological_order": np.asarray([0, 1, 1, 3])}, "not a permutation"),
        ({"topological_order": np.asarray([3, 0, 1, 2])}, "consumer before its producer"),
    ],
)
def test_inconsistent_columns_are_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(diamond(), **change)  # type: ignore[arg-type]


COMPUTED: list[str] = []


@fact_of_graph
def is_relu(graph: ComputationGraph) -> BoolArray:
    COMPUTED.append(graph.name)
    return np.array([op_type == "Relu" for op_type in graph.op_types])


def test_a_fact_is_computed_once_for_each_graph_goes_with_it_to_other_processes_and_cannot_be_changed() -> None:
    COMPUTED.clear()
    graph, other = diamond(), replace(diamond(), name="other", op_types=("Parameter", "Relu", "Relu", "Add"))
    assert [is_relu(each).tolist().count(True) for each in (graph, other, graph, other)] == [1, 2, 1, 2]
    assert is_relu(pickle.loads(pickle.dumps(graph))).tolist() == is_relu(graph).tolist()
    assert COMPUTED == ["graph", "other"]
    with pytest.raises(ValueError, match="read-only"):
        is_relu(graph)[0] = True


@given(st.integers(0, 1000))
def test_an_order_by_rank_is_the_lexicographic_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    src, dst = np.nonzero(np.triu(rng.random((9, 9)) < 0.3, 1))
    name, rank = rng.permutation(9), rng.integers(0, 4, 9)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(9))
    graph.add_edges_from(zip(name[src].tolist(), name[dst].tolist(), strict=True))
    wanted = nx.lexicographical_topological_sort(graph, key=lambda v: rank[v])
    assert ranked_order(9, name[src], name[dst], rank).tolist() == list(wanted)


def test_every_column_of_a_graph_comes_back_from_its_file_and_an_edge_that_leaves_it_is_named(tmp_path: Path) -> None:
    path, graph = tmp_path / "graph.json", graph_of(build_model("tiny_stateful_llama_int4"))
    write_graph_file(graph, path)
    found = read_graph_file(path)
    for name in ComputationGraph.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(found, name), getattr(graph, name), err_msg=name)
    document = json.loads(path.read_text())
    document["edge_dst"][0] = graph.num_ops
    path.write_text(json.dumps(document))
    with pytest.raises(FileFormatError, match=r"graph\.json: an edge of graph .* leaves the graph"):
        read_graph_file(path)
