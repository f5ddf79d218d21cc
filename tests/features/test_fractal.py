"""Fractal dimension against shortest paths by networkx, and in closed form."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.features import fractal_dimension
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges


def random_graph(seed: int, density: float = 0.15) -> ComputationGraph:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < density]
    return graph_from_edges(["X"] * n, edges + edges[:2])


def by_shortest_paths(graph: ComputationGraph, v: int, max_radius: int | None = None) -> float:
    undirected = nx.Graph(graph.to_networkx().to_undirected())
    distances = [d for u, d in nx.single_source_shortest_path_length(undirected, v).items() if u != v]
    radii = range(1, min(max(distances, default=0), max_radius or graph.num_ops) + 1)
    if len(radii) < 2:
        return 0.0
    counts = [sum(d <= r for d in distances) for r in radii]
    return float(np.polyfit(np.log(list(radii)), np.log(counts), 1)[0])


@given(st.integers(0, 10_000))
def test_it_is_the_slope_over_hop_distances(seed: int) -> None:
    graph = random_graph(seed)
    expected = [by_shortest_paths(graph, v) for v in range(graph.num_ops)]
    assert fractal_dimension(graph) == pytest.approx(expected, abs=1e-9)


@given(st.integers(0, 1_000), st.integers(2, 5))
def test_a_radius_cuts_the_regression_short(seed: int, radius: int) -> None:
    graph = random_graph(seed, 0.07)
    expected = [by_shortest_paths(graph, v, radius) for v in range(graph.num_ops)]
    assert fractal_dimension(graph, radius) == pytest.approx(expected, abs=1e-9)


def test_the_end_of_a_path_has_dimension_one() -> None:
    path = graph_from_edges(["X"] * 50, [(i, i + 1) for i in range(49)])
    assert fractal_dimension(path)[[0, 49]] == pytest.approx([1.0, 1.0])


def test_the_leaves_of_a_star_see_one_then_all() -> None:
    star = graph_from_edges(["X"] * 9, [(0, i) for i in range(1, 9)])
    expected = [0.0] + [np.log(8) / np.log(2)] * 8
    assert fractal_dimension(star) == pytest.approx(expected)


def test_ops_with_one_distance_or_none_have_dimension_zero() -> None:
    assert fractal_dimension(graph_from_edges(["X"] * 3, [(0, 1)])).tolist() == [0.0, 0.0, 0.0]
    complete = graph_from_edges(["X"] * 5, [(u, v) for v in range(5) for u in range(v)])
    assert fractal_dimension(complete).tolist() == [0.0] * 5


@given(st.integers(0, 1_000))
def test_it_does_not_depend_on_how_ops_are_numbered(seed: int) -> None:
    graph = random_graph(seed)
    shuffled = np.random.default_rng(seed).permutation(graph.num_ops)
    edges = list(zip(shuffled[graph.edge_src].tolist(), shuffled[graph.edge_dst].tolist(), strict=True))
    other = graph_from_edges(["X"] * graph.num_ops, edges)
    assert fractal_dimension(other)[shuffled] == pytest.approx(fractal_dimension(graph))
