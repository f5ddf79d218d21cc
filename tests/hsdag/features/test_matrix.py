"""The feature matrix: groups side by side, left out by name."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.features import GROUPS, STRUCTURE_GROUPS, feature_matrix
from hsdag.features.columns import fractal_dimension, op_type_mean
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.coarsen import placement_units
from hsdag.ir.graph.computation_graph import graph_from_edges

GRAPH = graph_from_edges(
    ["Parameter", "Convolution", "Relu", "MatMul", "Add", "Result"],
    [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)],
    shapes=[(1, 3, 8, 8)] * 5 + [(1, 3)],
)


def test_groups_stand_side_by_side_in_their_order_and_columns_have_names() -> None:
    matrix = feature_matrix(GRAPH)
    assert tuple(matrix.columns) == GROUPS
    ends = [matrix.columns[name].stop for name in GROUPS]
    assert [matrix.columns[name].start for name in GROUPS] == [0, *ends[:-1]]
    assert matrix.values.shape == (GRAPH.num_ops, ends[-1]) == (GRAPH.num_ops, len(matrix.names))
    assert matrix.values[:, matrix.names.index("fractal")] == pytest.approx(fractal_dimension(GRAPH))
    assert matrix.values[:, matrix.names.index("op_type:Relu")].tolist() == [0, 0, 1, 0, 0, 0]
    assert matrix.values[:, matrix.names.index("out_degree:2")].tolist() == [0, 1, 0, 0, 0, 0]
    assert matrix.values[:, matrix.names.index("in_degree:2")].tolist() == [0, 0, 0, 0, 1, 0]


@pytest.mark.parametrize("dropped", [("output_shape",), ("positional",), STRUCTURE_GROUPS])
def test_every_ablation_of_table_3_leaves_the_other_columns_alone(dropped: tuple[str, ...]) -> None:
    full, rest = feature_matrix(GRAPH), [name for name in GROUPS if name not in dropped]
    ablated = feature_matrix(GRAPH, rest)
    assert list(ablated.columns) == rest
    for name in rest:
        assert np.array_equal(ablated.values[:, ablated.columns[name]], full.values[:, full.columns[name]])


def test_a_coarse_graph_has_the_mean_type_of_its_groups() -> None:
    units = placement_units(GRAPH)
    matrix = feature_matrix(units)
    assert len(matrix.values) == units.graph.num_ops
    assert matrix.values[:, matrix.columns["op_type"]] == pytest.approx(op_type_mean(units))


def test_an_unknown_group_is_answered_with_the_choices() -> None:
    with pytest.raises(OptionError, match="choose from op_type"):
        feature_matrix(GRAPH, ["colour"])


def test_large_graphs_look_at_a_limited_radius_and_say_so() -> None:
    n = 5_001
    chain = graph_from_edges(["X"] * n, [(i, i + 1) for i in range(n - 1)])
    matrix = feature_matrix(chain, ["fractal"])
    assert matrix.fractal_radius == 32
    assert matrix.values[0, 0] == pytest.approx(1.0)
    assert feature_matrix(GRAPH).fractal_radius is None


def test_a_graph_without_ops_has_no_rows() -> None:
    assert feature_matrix(graph_from_edges([], [])).values.shape[0] == 0
