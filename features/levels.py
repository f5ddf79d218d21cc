"""Schedule levels: t-level and b-level of every op, the longest paths before and after it.

The names are those of the scheduling literature (Kwok and Ahmad). The DOPPLER paper uses them the other way
round: what it calls a b-level path leads to an entry op, and its t-level path to an exit op.

Legend: N ops, E edges.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray
from hsdag.ir.kernels import longest_before


def t_levels(graph: ComputationGraph, op_costs_s: FloatArray, edge_costs_s: FloatArray) -> FloatArray:
    """[N] seconds of the longest path from an entry op to each op, without the op's own cost; entries have 0.

    ``op_costs_s`` is [N], ``edge_costs_s`` [E]. O(N + E). Raises ValueError for other lengths or NaN.
    """
    ops, edges = _checked_costs(graph, op_costs_s, edge_costs_s)
    return longest_before(graph.topological_order, graph.predecessors, ops, edges)


def b_levels(graph: ComputationGraph, op_costs_s: FloatArray, edge_costs_s: FloatArray) -> FloatArray:
    """[N] seconds of the longest path from each op to an exit op, with the op's own cost.

    ``op_costs_s`` is [N], ``edge_costs_s`` [E]. O(N + E). Raises ValueError for other lengths or NaN.
    """
    ops, edges = _checked_costs(graph, op_costs_s, edge_costs_s)
    return ops + longest_before(graph.topological_order[::-1], graph.successors, ops, edges)


def _checked_costs(
    graph: ComputationGraph, op_costs_s: FloatArray, edge_costs_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    ops, edges = np.array(op_costs_s, dtype=np.float64), np.array(edge_costs_s, dtype=np.float64)
    for what, costs, count in (("op", ops, graph.num_ops), ("edge", edges, graph.num_edges)):
        if costs.shape != (count,):
            raise ValueError(f"expected {count} {what} costs for graph {graph.name!r}, not {costs.shape}")
        if np.isnan(costs).any():
            raise ValueError(f"{what} {int(np.isnan(costs).argmax())} of graph {graph.name!r} has a cost of NaN")
    return ops, edges
