"""Longest paths. Legend: N ops, E edges."""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph.computation_graph import Csr, FloatArray, IntArray
from hsdag.ir.kernels import bare, run


def longest_before(order: IntArray, inputs: Csr, op_costs: FloatArray, edge_costs: FloatArray) -> FloatArray:
    """[N] cost of the longest path that leads to each op, its own cost left out; 0 where no edge leads there.

    ``order`` [N] puts every op behind its ``inputs``: a topological order and the predecessors, or both reversed for
    the longest path that follows each op. ``op_costs`` is [N], ``edge_costs`` [E] by index of the edge. O(N + E).
    """
    ordered = np.array(order, dtype=np.int64, order="C")
    costs, edges = np.array(op_costs, dtype=np.float64), np.array(edge_costs, dtype=np.float64)[inputs.edges]
    longest, steps = np.zeros(len(ordered)), 0.1 * (len(ordered) + len(edges))
    run(_longest_before, steps, ordered, inputs.indptr, inputs.indices, costs, edges, longest)
    return longest


@bare
def _longest_before(
    order: IntArray,
    indptr: IntArray,
    indices: IntArray,
    op_costs: FloatArray,
    edge_costs: FloatArray,
    longest: FloatArray,
) -> None:
    for v in order:
        if indptr[v] < indptr[v + 1]:
            longest[v] = -np.inf
            for k in range(indptr[v], indptr[v + 1]):
                u = indices[k]
                longest[v] = max(longest[v], longest[u] + op_costs[u] + edge_costs[k])
