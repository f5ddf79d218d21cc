"""Fractal dimension: how fast an op's neighbourhood grows with its radius.

Legend: N ops, E edges. Sources are searched 64 at a time: bit b of a word belongs to source b of the batch.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import reverse_cuthill_mckee

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray

Int32Array = NDArray[np.int32]
Words = NDArray[np.uint64]

BATCH = 64  # sources per batch: the bits of a word
PLANES = 32  # bits of a bit-sliced counter, enough for 2^32 - 1 ops
TERMS = 5  # sums of the regression: m, sum x, sum y, sum xx, sum xy


def fractal_dimension(graph: ComputationGraph, max_radius: int | None = None) -> FloatArray:
    """[N] slope of the least-squares line of log N(v, r) against log r, r = 1..ecc(v) (HSDAG Eq. 4).

    Distances are hops in the undirected graph, N(v, r) is the number of other ops within r hops of v, and
    ecc(v) the distance to the furthest op of v's component. An op with fewer than two distinct distances
    has dimension 0. ``max_radius`` ends the regression at that radius, which bounds the work on very
    large graphs; None is exact. Time O(N (N + E)) at worst, memory O(N + E).
    Raises OptionError when ``max_radius`` is below 1.
    """
    if max_radius is not None and max_radius < 1:
        raise OptionError(f"max_radius must be at least 1, or None for the exact dimension, not {max_radius}")
    num_ops = graph.num_ops
    dimension = np.zeros(num_ops)
    if graph.num_edges == 0:
        return dimension
    ends = np.concatenate([graph.edge_src, graph.edge_dst]), np.concatenate([graph.edge_dst, graph.edge_src])
    adjacency = coo_array((np.ones(len(ends[0]), dtype=np.int8), ends), shape=(num_ops, num_ops)).tocsr()
    # Neighbours numbered close together share a batch, and their searches then share most of their frontiers.
    order = reverse_cuthill_mckee(adjacency, symmetric_mode=True)
    compact = adjacency[order][:, order].tocsr()
    radius = num_ops if max_radius is None else max_radius
    dimension[order] = _slopes(compact.indptr.astype(np.int32), compact.indices.astype(np.int32), radius)
    return dimension


@numba.njit(cache=True, nogil=True)
def _expand(
    indptr: Int32Array, indices: Int32Array, frontier: Int32Array, size: int, words: Words, reached: Int32Array
) -> int:
    """Move every search of the batch one hop on; list the ops newly reached and return their number.

    The columns of ``words`` [N, 3] are, for each op, the searches that have seen it, that stand on it,
    and that step on it now.
    """
    count = 0
    for i in range(size):
        v = frontier[i]
        here = words[v, 1]
        words[v, 1] = 0
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            fresh = here & ~words[u, 0]
            if fresh:
                if words[u, 2] == 0:
                    reached[count] = u
                    count += 1
                words[u, 2] |= fresh
    return count


@numba.njit(cache=True, nogil=True)
def _settle(reached: Int32Array, size: int, words: Words, planes: Words) -> None:
    """Stand on the ops newly reached, and count them for each search.

    ``planes`` [32] is a counter per bit: bit b of planes[j] is binary digit j of search b's count.
    """
    planes[:] = 0
    for i in range(size):
        u = reached[i]
        carry = words[u, 2]
        words[u, 0] |= carry
        words[u, 1] = carry
        words[u, 2] = 0
        digit = 0
        while carry:
            overflow = planes[digit] & carry
            planes[digit] ^= carry
            carry = overflow
            digit += 1


@numba.njit(cache=True, nogil=True)
def _add_points(planes: Words, radius: int, logs: FloatArray, mass: IntArray, sums: FloatArray) -> None:
    """Add the point (log radius, log mass) to the regression of every search that reached new ops."""
    x = logs[radius]
    for b in range(len(mass)):
        new = np.int64(0)
        for digit in range(PLANES):
            new |= np.int64((planes[digit] >> np.uint64(b)) & np.uint64(1)) << digit
        if new:
            mass[b] += new
            y = logs[mass[b]]
            sums[b, 0] += 1
            sums[b, 1] += x
            sums[b, 2] += y
            sums[b, 3] += x * x
            sums[b, 4] += x * y


@numba.njit(cache=True, nogil=True)
def _slopes(indptr: Int32Array, indices: Int32Array, max_radius: int) -> FloatArray:
    """[N] slope of log mass against log radius for every op as the source of a breadth-first search."""
    n = len(indptr) - 1
    logs = np.log(np.maximum(np.arange(n + 1), 1).astype(np.float64))
    words = np.empty((n, 3), np.uint64)
    frontier, reached = np.empty(n, np.int32), np.empty(n, np.int32)
    planes = np.empty(PLANES, np.uint64)
    slopes = np.zeros(n)
    for start in range(0, n, BATCH):
        width = min(BATCH, n - start)
        words[:] = 0
        mass, sums = np.zeros(width, np.int64), np.zeros((width, TERMS))
        for b in range(width):
            words[start + b, 0] = words[start + b, 1] = np.uint64(1) << np.uint64(b)
            frontier[b] = start + b
        size, radius = width, 0
        while size > 0 and radius < max_radius:
            radius += 1
            size = _expand(indptr, indices, frontier, size, words, reached)
            _settle(reached, size, words, planes)
            _add_points(planes, radius, logs, mass, sums)
            frontier, reached = reached, frontier
        for b in range(width):
            m, x, y, xx, xy = sums[b, 0], sums[b, 1], sums[b, 2], sums[b, 3], sums[b, 4]
            if m >= 2:
                slopes[start + b] = (m * xy - x * y) / (m * xx - x * x)
    return slopes
