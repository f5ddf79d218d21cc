"""Graphs of more than one batch of searches, and selections of columns."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from hsdag.features import feature_matrix, fractal_dimension, op_type_one_hot, t_levels
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import graph_from_edges


@pytest.mark.parametrize("num_ops", [63, 64, 65, 128, 200])
def test_every_op_of_a_cycle_has_the_dimension_of_a_cycle(num_ops: int) -> None:
    cycle = graph_from_edges(["X"] * num_ops, [(v, v + 1) for v in range(num_ops - 1)] + [(0, num_ops - 1)])
    radii = np.arange(1, num_ops // 2 + 1)
    slope = np.polyfit(np.log(radii), np.log(np.minimum(2 * radii, num_ops - 1)), 1)[0]
    assert fractal_dimension(cycle) == pytest.approx(np.full(num_ops, slope))


def test_components_larger_than_a_batch_do_not_mix() -> None:
    rng = np.random.default_rng(0)
    pairs = [(int(rng.integers(0, v)), v) for v in range(1, 150)]
    both = graph_from_edges(["X"] * 300, pairs + [(150 + s, 150 + d) for s, d in pairs])
    undirected = nx.Graph(pairs)
    for v in range(0, 150, 7):
        distances = np.array([d for d in nx.single_source_shortest_path_length(undirected, v).values() if d])
        radii = np.arange(1, distances.max() + 1)
        counts = [(distances <= r).sum() for r in radii]
        slope = np.polyfit(np.log(radii), np.log(counts), 1)[0]
        assert fractal_dimension(both)[[v, 150 + v]] == pytest.approx([slope, slope])


def test_a_radius_below_one_is_refused() -> None:
    with pytest.raises(OptionError, match="max_radius must be at least 1"):
        fractal_dimension(graph_from_edges(["X"], []), 0)


def test_a_vocabulary_with_a_type_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="names 'X' twice"):
        op_type_one_hot(graph_from_edges(["X"], []), ["X", "Y", "X"])


def test_selecting_a_group_that_was_dropped_is_refused() -> None:
    matrix = feature_matrix(graph_from_edges(["X"] * 3, [(0, 1), (1, 2)])).without(["fractal"])
    with pytest.raises(OptionError, match="'fractal' is not in this matrix"):
        matrix.select(["fractal"])


def test_a_selection_is_what_was_computed_alone() -> None:
    graph = graph_from_edges(["X", "Y", "X"], [(0, 1), (1, 2)])
    selected, alone = feature_matrix(graph).select(["op_type"]), feature_matrix(graph, ["op_type"])
    assert selected.names == alone.names == ("op_type:X", "op_type:Y")
    assert np.array_equal(selected.values, alone.values)


def test_levels_refuse_costs_of_another_graph() -> None:
    with pytest.raises(ValueError, match="expected 0 edge costs"):
        t_levels(graph_from_edges(["X"], []), np.ones(1), np.ones(2))


def test_a_graph_without_ops_has_no_rows() -> None:
    assert feature_matrix(graph_from_edges([], [])).values.shape[0] == 0
