"""The matrix of features: its groups of columns, their order and names, and what is left out."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.features import GROUPS, STRUCTURE_GROUPS, feature_matrix
from hsdag.features.columns import fractal_dimension, output_shape, positional_encoding
from hsdag.ir.graph.coarsen import coarsen
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.graph.partition import Partition

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
    assert matrix.values[:, matrix.columns["positional"]] == pytest.approx(positional_encoding(GRAPH), abs=1e-6)
    assert matrix.values[:, matrix.columns["output_shape"]] == pytest.approx(output_shape(GRAPH))
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


def test_large_graphs_look_at_a_limited_radius_and_say_so() -> None:
    n = 5_001
    chain = graph_from_edges(["X"] * n, [(i, i + 1) for i in range(n - 1)])
    matrix = feature_matrix(chain, ["fractal"])
    assert matrix.fractal_radius == 32
    assert matrix.values[0, 0] == pytest.approx(1.0)
    assert feature_matrix(GRAPH).fractal_radius is None


def test_a_groups_type_is_the_mean_of_its_members() -> None:
    graph = graph_from_edges(["A", "B", "B", "C"], [(0, 1), (0, 2), (1, 3), (2, 3)])
    coarse = coarsen(graph, Partition(np.array([0, 0, 0, 1]), 2))
    matrix = feature_matrix(coarse)
    assert matrix.values[:, matrix.columns["op_type"]] == pytest.approx(np.array([[1 / 3, 2 / 3, 0], [0, 0, 1]]))
    assert matrix.names[:3] == ("op_type:A", "op_type:B", "op_type:C")
