"""Degrees, positions, shapes, op types and levels, each against its formula."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.features import (
    b_levels,
    degree_one_hot,
    in_degrees,
    op_type_mean,
    op_type_one_hot,
    out_degrees,
    output_shape,
    positional_encoding,
    t_levels,
)
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.coarsen import coarsen
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.ir.graph.partition import Partition

DIAMOND = graph_from_edges(
    ["A", "B", "B", "C"], [(0, 1), (0, 2), (1, 3), (2, 3), (2, 3)], shapes=[(1,), (2, 3), (4,), ()]
)


def random_graph(seed: int) -> ComputationGraph:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 12))
    return graph_from_edges(["X"] * n, [(u, v) for v in range(n) for u in range(v) if rng.random() < 0.3])


def test_degrees_count_parallel_edges_once() -> None:
    assert in_degrees(DIAMOND).tolist() == [0, 1, 1, 2]
    assert out_degrees(DIAMOND).tolist() == [2, 1, 1, 0]


@given(st.integers(0, 1000))
def test_degrees_agree_with_networkx(seed: int) -> None:
    graph = random_graph(seed)
    simple = nx.DiGraph(graph.to_networkx())
    assert in_degrees(graph).tolist() == [simple.in_degree(v) for v in range(graph.num_ops)]
    assert out_degrees(graph).tolist() == [simple.out_degree(v) for v in range(graph.num_ops)]


def test_degree_one_hot_has_a_column_per_degree_that_occurs() -> None:
    assert degree_one_hot(np.array([0, 5, 1, 5])).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]]


def test_positions_are_encoded_from_one_on() -> None:
    encoding = positional_encoding(graph_from_edges(["X"] * 3, [(0, 1), (1, 2)]), 4)
    assert encoding[2] == pytest.approx([np.sin(3), np.cos(3), np.sin(3 / 100), np.cos(3 / 100)])
    assert encoding[0] == pytest.approx([np.sin(1), np.cos(1), np.sin(1 / 100), np.cos(1 / 100)])


def test_positions_follow_the_topological_order_not_the_numbering() -> None:
    backwards = graph_from_edges(["X"] * 3, [(2, 1), (1, 0)])
    assert positional_encoding(backwards)[2] == pytest.approx(positional_encoding(graph_from_edges(["X"], []))[0])


@pytest.mark.parametrize("size", [0, 1, 7])
def test_an_odd_encoding_size_is_refused(size: int) -> None:
    with pytest.raises(OptionError, match="even size"):
        positional_encoding(DIAMOND, size)


def test_shapes_are_padded_and_logarithmic() -> None:
    assert output_shape(DIAMOND, raw=True).tolist() == [[1, 0], [2, 3], [4, 0], [0, 0]]
    assert output_shape(DIAMOND)[1] == pytest.approx([np.log(3), np.log(4)])


def test_types_are_one_hot_over_the_sorted_vocabulary() -> None:
    assert op_type_one_hot(DIAMOND).tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]]
    assert op_type_one_hot(DIAMOND, ["C", "Z"]).tolist() == [[0, 0], [0, 0], [0, 0], [1, 0]]


def test_a_groups_type_is_the_mean_of_its_members() -> None:
    coarse = coarsen(DIAMOND, Partition(np.array([0, 0, 0, 1]), 2))
    assert op_type_mean(coarse) == pytest.approx(np.array([[1 / 3, 2 / 3, 0], [0, 0, 1]]))


@given(st.integers(0, 1000))
def test_levels_are_longest_paths(seed: int) -> None:
    graph = random_graph(seed)
    rng = np.random.default_rng(seed)
    op_cost, edge_cost = rng.random(graph.num_ops), rng.random(graph.num_edges)
    cost = {(int(s), int(d)): float(c) for s, d, c in zip(graph.edge_src, graph.edge_dst, edge_cost, strict=True)}
    simple = nx.DiGraph(graph.to_networkx())

    def length(path: list[int]) -> float:
        return float(sum(op_cost[v] for v in path)) + sum(cost[pair] for pair in itertools.pairwise(path))

    for v in range(graph.num_ops):
        to_v = [p for u in range(graph.num_ops) for p in nx.all_simple_paths(simple, u, v) if u != v] + [[v]]
        from_v = [p for u in range(graph.num_ops) for p in nx.all_simple_paths(simple, v, u) if u != v] + [[v]]
        assert t_levels(graph, op_cost, edge_cost)[v] == pytest.approx(max(map(length, to_v)) - op_cost[v])
        assert b_levels(graph, op_cost, edge_cost)[v] == pytest.approx(max(map(length, from_v)))
