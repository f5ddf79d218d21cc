"""Degrees, positions, shapes and fractal dimensions, each against its formula."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.features.columns import degrees, fractal_dimension, one_hot, output_shape, positional_encoding
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from tests.networks import as_networkx

DIAMOND = graph_from_edges(
    ["A", "B", "B", "C"], [(0, 1), (0, 2), (1, 3), (2, 3), (2, 3)], shapes=[(1,), (2, 3), (4,), ()]
)


def test_degrees_count_parallel_edges_once_and_columns_are_what_occurs() -> None:
    assert [column.tolist() for column in degrees(DIAMOND)] == [[0, 1, 1, 2], [2, 1, 1, 0]]
    assert one_hot(np.array([0, 5, 1, 5])).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 0, 1]]
    assert output_shape(DIAMOND) == pytest.approx(np.log([[2, 1], [3, 4], [5, 1], [1, 1]]))


def test_positions_are_encoded_from_one_on_along_the_topological_order() -> None:
    encoding = positional_encoding(graph_from_edges(["X"] * 3, [(2, 1), (1, 0)]), 4)
    assert encoding[0] == pytest.approx([np.sin(3), np.cos(3), np.sin(3 / 100), np.cos(3 / 100)])
    assert encoding[2] == pytest.approx([np.sin(1), np.cos(1), np.sin(1 / 100), np.cos(1 / 100)])


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
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < density]
    graph = graph_from_edges(["X"] * n, edges + edges[:2])
    expected = [slope(graph, v, radius) for v in range(graph.num_ops)]
    assert fractal_dimension(graph, radius) == pytest.approx(expected, abs=1e-9)
