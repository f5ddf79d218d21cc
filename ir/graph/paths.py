"""Longest paths. Legend: N ops, E edges."""

from __future__ import annotations

from operator import add

import numpy as np

from hsdag.ir.graph.computation_graph import Csr, FloatArray, IntArray


def longest_before(
    order: IntArray, inputs: Csr, op_costs: FloatArray, edge_costs: FloatArray | None = None
) -> FloatArray:
    """Return [N] the cost of the longest path that leads to each op, without its own cost; 0 where no edge leads.

    Args:
        order: [N] a topological order; reversed, for the longest path that follows each op.
        inputs: The predecessors of each op; with a reversed order, the successors.
        op_costs: [N] costs of ops.
        edge_costs: [E] costs of edges by index; 0 by default.

    O(N + E).
    """
    indptr, indices = inputs.indptr.tolist(), inputs.indices.tolist()
    edges = [0.0] * len(indices) if edge_costs is None else edge_costs[inputs.edges].tolist()
    longest, behind = [0.0] * len(order), [0.0] * len(order)
    for v, cost in zip(order.tolist(), op_costs[order].tolist(), strict=True):
        first, last = indptr[v], indptr[v + 1]
        if first < last:
            longest[v] = max(map(add, [behind[u] for u in indices[first:last]], edges[first:last]))
        behind[v] = longest[v] + cost
    return np.array(longest, dtype=np.float64)
