"""Graphs of networkx as computation graphs, and back."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

import hsdag


def test_nodes_edges_and_their_attributes_are_taken_over() -> None:
    given = nx.DiGraph()
    given.add_node("in", op_type="Parameter", shape=(2, 3))
    given.add_node("mul", op_type="MatMul", output_bytes=8, weight_bytes=40, flops=12)
    given.add_edge("in", "mul")
    given.add_edge("in", "out", bytes=5)
    given.add_edge("mul", "out")
    found = hsdag.from_networkx(given, "mine")
    assert (found.name, found.op_names, found.op_types) == ("mine", ("in", "mul", "out"), ("Parameter", "MatMul", "Op"))
    edges = zip(found.edge_src.tolist(), found.edge_dst.tolist(), found.edge_bytes.tolist(), strict=True)
    assert {*edges} == {(0, 1, 24), (0, 2, 5), (1, 2, 8)}
    assert (found.weight_bytes.tolist(), found.flops.tolist()) == ([0, 40, 0], [0.0, 12.0, 0.0])
    assert np.array_equal(found.topological_order, [0, 1, 2])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (nx.Graph([("a", "b")]), "has to be directed"),
        (nx.DiGraph([(1, "1")]), "the same name"),
        (nx.DiGraph([("a", "b"), ("b", "a")]), "cycle"),
    ],
)
def test_what_is_no_graph_of_ops_is_refused(given: nx.Graph, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        hsdag.from_networkx(given)
