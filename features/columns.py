"""Compute the columns of node features: degrees, op types, positions, shapes, fractal dimensions (HSDAG, section 2.3).

Legend: N ops (or groups of a coarse graph), E edges, V distinct values, T op types, d columns of the positional
encoding, R largest rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hsdag.base.kernels import kernel, run_kernel
from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.computation_graph import ComputationGraph, Csr, FloatArray, IntArray
from hsdag.ir.graph.partition import Partition

WAVELENGTH_BASE = 10_000.0  # HSDAG Eq. 5


def degrees(graph: ComputationGraph) -> tuple[IntArray, IntArray]:
    """Return the numbers of distinct producers and of distinct consumers of each op, [N] each.

    The paper's adjacency matrix is binary (Definition 2.1), so an op that is read by several ports counts once.
    """
    pairs = Partition.identity(graph.num_ops).quotient_edges(graph.edge_src, graph.edge_dst)
    out, into = (np.bincount(ends, minlength=graph.num_ops).astype(np.int64) for ends in pairs)
    return into, out


def one_hot(values: NDArray[np.generic]) -> FloatArray:
    """Return the one-hot encoding [N, V] of ``values`` [N], distinct values ascending (HSDAG Eq. 3 and after)."""
    return np.asarray(np.equal.outer(values, np.unique(values)), dtype=np.float64)


def op_type_mean(coarse: CoarseGraph) -> FloatArray:
    """Return the mean of the op-type one-hots of each group's members, [N, T] (HSDAG App. G)."""
    total = np.zeros((coarse.partition.num_groups, len(set(coarse.fine.op_types))))
    np.add.at(total, coarse.partition.labels, one_hot(np.array(coarse.fine.op_types)))
    return np.asarray(total / total.sum(axis=1, keepdims=True))


def positional_encoding(graph: ComputationGraph, d_pos: int = 16) -> FloatArray:
    """Return the encoding [N, d]: sin(pos / 10000^(2i/d)) in column 2i and its cosine in column 2i + 1 (HSDAG Eq. 5).

    ``pos`` runs from 1 to N along ``graph.topological_order``; ``d_pos``, the number of columns d, must be even.
    """
    pos = (graph.position + 1).astype(np.float64)
    angles = pos[:, None] / WAVELENGTH_BASE ** (np.arange(0, d_pos, 2) / d_pos)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(graph.num_ops, d_pos)


def output_shape(graph: ComputationGraph) -> FloatArray:
    """Return log(1 + size) of each axis of the op's first output, [N, R], zero beyond its rank (HSDAG §2.3).

    The paper uses the sizes themselves. They range from 1 to 1e5 within a graph and would swamp the other columns; the
    logarithm prevents that and keeps the padding at 0.
    """
    return np.log1p(graph.shapes.astype(np.float64))


def fractal_dimension(graph: ComputationGraph, max_radius: int | None = None) -> FloatArray:
    """Return the least-squares slope of log N(v, r) over log r for r = 1..ecc(v), [N] (HSDAG Eq. 4).

    Distances are hops in the undirected graph. N(v, r) is the number of other ops within r hops of v, and ecc(v) the
    distance to the farthest op of v's component. An op with fewer than two distinct distances has dimension 0. Takes
    O(N (N + E)) time in the worst case and O(N + E) memory.

    Args:
        max_radius: End the regression at this radius, at least 1, to bound the work on large graphs; None is exact.
    """
    ends = (graph.edge_src, graph.edge_dst)
    near = Csr.build(graph.num_ops, np.concatenate(ends), np.concatenate(ends[::-1]))
    radius = graph.num_ops if max_radius is None else max_radius
    slopes: FloatArray = run_kernel(_slopes, 0.1 * graph.num_ops * len(near.indices), near.indptr, near.indices, radius)
    return slopes


@kernel
def _slopes(indptr: IntArray, indices: IntArray, max_radius: int) -> FloatArray:
    """Return the slope of log mass over log radius, [N], by a breadth-first search from every op."""
    n = len(indptr) - 1
    logs = np.log(np.maximum(np.arange(n + 1), 1).astype(np.float64))
    seen_from, queue = np.full(n, -1), np.empty(n, np.int64)
    slopes = np.zeros(n)
    for source in range(n):
        seen_from[source], queue[0] = source, source
        begin, end, radius = 0, 1, 0
        m, x, y, xx, xy = 0.0, 0.0, 0.0, 0.0, 0.0  # sums of the regression
        while begin < end and radius < max_radius:
            last = end
            radius += 1
            for v in queue[begin:last]:
                for u in indices[indptr[v] : indptr[v + 1]]:
                    if seen_from[u] != source:
                        seen_from[u], queue[end] = source, u
                        end += 1
            begin = last
            if end > last:
                r, mass = logs[radius], logs[end - 1]
                m, x, y, xx, xy = m + 1, x + r, y + mass, xx + r * r, xy + r * mass
        if m >= 2:
            slopes[source] = (m * xy - x * y) / (m * xx - x * x)
    return slopes
