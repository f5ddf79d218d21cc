"""Computation graphs as networkx has them, to compare with."""

from __future__ import annotations

import networkx as nx

from hsdag.ir.graph.computation_graph import ComputationGraph


def as_networkx(graph: ComputationGraph) -> nx.MultiDiGraph:
    """The graph with op indices as nodes and one edge per input port."""
    other = nx.MultiDiGraph(list(zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True)))
    other.add_nodes_from(range(graph.num_ops))
    return other
