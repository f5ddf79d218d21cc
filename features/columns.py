"""The columns of node features: degrees, op types, positions, shapes, fractal dimensions (HSDAG, section 2.3).

Legend: N ops (or groups of a coarse graph), E edges, V distinct values, T op types, d columns of a place,
R largest rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.computation_graph import ComputationGraph, Csr, FloatArray, IntArray
from hsdag.ir.graph.partition import Partition
from hsdag.ir.kernels import kernel, run

WAVELENGTH_BASE = 10_000.0  # HSDAG Eq. 5


def degrees(graph: ComputationGraph) -> tuple[IntArray, IntArray]:
    """[N] numbers of distinct producers and of distinct consumers of each op.

    The paper's adjacency matrix is binary (Definition 2.1), so ports that read the same op count once.
    """
    pairs = Partition.identity(graph.num_ops).quotient_edges(graph.edge_src, graph.edge_dst)
    out, into = (np.bincount(ends, minlength=graph.num_ops).astype(np.int64) for ends in pairs)
    return into, out


def one_hot(values: NDArray[np.generic]) -> FloatArray:
    """[N, V] one-hot of ``values`` [N] over the distinct ones, ascending (HSDAG Eq. 3 and after)."""
    return np.asarray(np.equal.outer(values, np.unique(values)), dtype=np.float64)


def op_type_mean(coarse: CoarseGraph) -> FloatArray:
    """[N, T] mean of the one-hots of each group's members (HSDAG App. G)."""
    total = np.zeros((coarse.partition.num_groups, len(set(coarse.fine.op_types))))
    np.add.at(total, coarse.partition.labels, one_hot(np.array(coarse.fine.op_types)))
    return np.asarray(total / total.sum(axis=1, keepdims=True))


def positional_encoding(graph: ComputationGraph, d_pos: int = 16) -> FloatArray:
    """[N, d] PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos of the same (HSDAG Eq. 5).

    ``pos`` runs from 1 to N along ``graph.topological_order``; ``d_pos`` is even, for sines and cosines come in pairs.
    """
    pos = (graph.position + 1).astype(np.float64)
    angles = pos[:, None] / WAVELENGTH_BASE ** (np.arange(0, d_pos, 2) / d_pos)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(graph.num_ops, d_pos)


def output_shape(graph: ComputationGraph) -> FloatArray:
    """[N, R] log(1 + size) of each axis of the op's first output, zero beyond its rank (HSDAG §2.3).

    The paper takes the sizes themselves. They run from 1 to 1e5 in one graph and would swamp the columns
    beside them, hence the logarithm, which keeps the padding at 0.
    """
    return np.log1p(graph.shapes.astype(np.float64))


def fractal_dimension(graph: ComputationGraph, max_radius: int | None = None) -> FloatArray:
    """[N] slope of the least-squares line of log N(v, r) against log r, r = 1..ecc(v) (HSDAG Eq. 4).

    Distances are hops in the undirected graph, N(v, r) is the number of other ops within r hops of v, and
    ecc(v) the distance to the furthest op of v's component. An op with fewer than two distinct distances
    has dimension 0. ``max_radius`` (at least 1) ends the regression at that radius, which bounds the work on large
    graphs; None is exact. Time O(N (N + E)) at worst, memory O(N + E).
    """
    ends = (graph.edge_src, graph.edge_dst)
    near = Csr.build(graph.num_ops, np.concatenate(ends), np.concatenate(ends[::-1]))
    radius = graph.num_ops if max_radius is None else max_radius
    slopes: FloatArray = run(_slopes, 0.1 * graph.num_ops * len(near.indices), near.indptr, near.indices, radius)
    return slopes


@kernel
def _slopes(indptr: IntArray, indices: IntArray, max_radius: int) -> FloatArray:
    """[N] slope of log mass against log radius for every op as the source of a breadth-first search."""
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
