"""Degrees, positions, shapes, op types and fractal dimensions, each against its formula."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.features.columns import (
    degree_one_hot,
    fractal_dimension,
    in_degrees,
    op_type_mean,
    op_type_one_hot,
    out_degrees,
    output_shape,
    positional_encoding,
)
from hsdag.ir.graph.coarsen import coarsen
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.ir.graph.partition import Partition
from hsdag.ir.kernels import INTERPRETED_VARIABLE
from tests.networks import as_networkx

DIAMOND = graph_from_edges(
    ["A", "B", "B", "C"], [(0, 1), (0, 2), (1, 3), (2, 3), (2, 3)], shapes=[(1,), (2, 3), (4,), ()]
)


def random_graph(seed: int, density: float = 0.15) -> ComputationGraph:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < density]
    return graph_from_edges(["X"] * n, edges + edges[:2])


@given(st.integers(0, 1000))
def test_degrees_count_parallel_edges_once(seed: int) -> None:
    graph = random_graph(seed)
    simple = nx.DiGraph(as_networkx(graph))
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


def test_shapes_are_padded_and_logarithmic() -> None:
    assert output_shape(DIAMOND) == pytest.approx(np.log([[2, 1], [3, 4], [5, 1], [1, 1]]))


def test_types_are_one_hot_over_the_sorted_types() -> None:
    assert op_type_one_hot(DIAMOND).tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]]


def test_a_groups_type_is_the_mean_of_its_members() -> None:
    coarse = coarsen(DIAMOND, Partition(np.array([0, 0, 0, 1]), 2))
    assert op_type_mean(coarse) == pytest.approx(np.array([[1 / 3, 2 / 3, 0], [0, 0, 1]]))


def slope(graph: ComputationGraph, v: int, max_radius: int | None) -> float:
    """The fractal dimension of op v by shortest paths of networkx."""
    undirected = nx.Graph(as_networkx(graph).to_undirected())
    distances = [d for u, d in nx.single_source_shortest_path_length(undirected, v).items() if u != v]
    radii = range(1, min(max(distances, default=0), max_radius or graph.num_ops) + 1)
    if len(radii) < 2:
        return 0.0
    counts = [sum(d <= r for d in distances) for r in radii]
    return float(np.polyfit(np.log(list(radii)), np.log(counts), 1)[0])


@given(st.integers(0, 10_000), st.none() | st.integers(1, 5), st.sampled_from([0.15, 0.07]))
def test_the_fractal_dimension_is_the_slope_over_hop_distances_up_to_a_radius(
    seed: int, radius: int | None, density: float
) -> None:
    graph = random_graph(seed, density)
    expected = [slope(graph, v, radius) for v in range(graph.num_ops)]
    assert fractal_dimension(graph, radius) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("steps", ["0", "inf"])
def test_the_end_of_a_path_has_dimension_one(monkeypatch: pytest.MonkeyPatch, steps: str) -> None:
    monkeypatch.setenv(INTERPRETED_VARIABLE, steps)
    path = graph_from_edges(["X"] * 50, [(i, i + 1) for i in range(49)])
    assert fractal_dimension(path)[[0, 49]] == pytest.approx([1.0, 1.0])


def test_the_leaves_of_a_star_see_one_then_all() -> None:
    star = graph_from_edges(["X"] * 9, [(0, i) for i in range(1, 9)])
    assert fractal_dimension(star) == pytest.approx([0.0] + [np.log(8) / np.log(2)] * 8)
