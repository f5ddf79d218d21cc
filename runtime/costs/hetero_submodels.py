"""The submodels that HETERO makes of a placement, and what crosses between them; no device is asked.

HETERO joins neighbouring ops of one device to a submodel and cuts a submodel again where it would wait for
itself, through another one. These are its rules, followed here to the letter, since a submodel costs a launch
and every tensor that leaves one, also to another on the same device, costs a conversion.

Legend: N ops of the graph, M of them compute on data, K data edges, D devices, B placements, W words of a bit set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from hsdag.ir.colocation import floating_ops
from hsdag.ir.graph import BoolArray, ComputationGraph, FloatArray, IntArray

Words = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Crossings:
    """What placements make HETERO do.

    A tensor crosses once to every other device that reads it, and, on the diagonal, once to other submodels on its
    own device if it goes nowhere else: to leave a submodel is what costs, as measured on CPU devices.
    """

    launches: IntArray  # [B, D] submodels on each device
    num: IntArray  # [B, D, D]
    size_bytes: FloatArray  # [B, D, D]


class SubmodelCollector:
    """Splits placements of one graph as HETERO does.

    Ops that float (constants, arithmetic on shapes) have a copy beside every reader when a placement is
    applied, so they neither join nor part submodels and are left out.
    """

    def __init__(self, graph: ComputationGraph) -> None:
        self.num_ops = graph.num_ops
        floating = floating_ops(graph)
        self._ops = np.array([v for v in graph.topological_order.tolist() if not floating[v]], dtype=np.int64)
        position = np.full(graph.num_ops, -1, dtype=np.int64)
        position[self._ops] = np.arange(len(self._ops))
        edges = np.flatnonzero(~floating[graph.edge_src] & ~floating[graph.edge_dst])
        edges = edges[np.lexsort((graph.edge_dst_port[edges], position[graph.edge_dst[edges]]))]
        self._src = position[graph.edge_src[edges]]
        dst = position[graph.edge_dst[edges]]
        self._indptr = np.searchsorted(dst, np.arange(len(self._ops) + 1)).astype(np.int64)
        by_tensor = np.lexsort((graph.edge_src_port[edges], self._src))
        tensors = np.stack((self._src, graph.edge_src_port[edges]))[:, by_tensor]
        first = np.ones(len(edges), dtype=np.bool_)
        first[1:] = (tensors[:, 1:] != tensors[:, :-1]).any(axis=0)
        self._tensor_edges = by_tensor.astype(np.int64)  # [K] edges, those of one tensor in a row
        self._tensor_start = np.append(np.flatnonzero(first), len(edges)).astype(np.int64)
        self._dst = dst
        self._edge_bytes = graph.edge_bytes[edges].astype(np.float64)

    def submodel_of(self, devices: IntArray) -> IntArray:
        """[N] submodel of every op under the placement [N] of ops; -1 for ops that float.

        Submodels are numbered by their first op in topological order.
        """
        label = _split(devices[self._ops], self._indptr, self._src, self._dst)
        submodels = np.full(self.num_ops, -1, dtype=np.int64)
        submodels[self._ops] = np.unique(label, return_inverse=True)[1].reshape(-1)
        return submodels

    def crossings(self, devices: IntArray, num_devices: int) -> Crossings:
        """Launches and crossings of placements [B, N] of ops, in O(B (M + K) W) for most of them."""
        num = len(devices)
        launches = np.zeros((num, num_devices), dtype=np.int64)
        count = np.zeros((num, num_devices, num_devices), dtype=np.int64)
        size_bytes = np.zeros((num, num_devices, num_devices))
        _count(
            np.ascontiguousarray(devices[:, self._ops]),
            self._indptr,
            self._src,
            self._dst,
            self._tensor_edges,
            self._tensor_start,
            self._edge_bytes,
            launches,
            count,
            size_bytes,
        )
        return Crossings(launches, count, size_bytes)


@numba.njit(cache=True, nogil=True)
def _count(
    placements: IntArray,
    indptr: IntArray,
    src: IntArray,
    dst: IntArray,
    tensor_edges: IntArray,
    tensor_start: IntArray,
    edge_bytes: FloatArray,
    launches: IntArray,
    count: IntArray,
    size_bytes: FloatArray,
) -> None:
    """Fill the last three tables, one row per placement."""
    for b in range(len(placements)):
        device = placements[b]
        label = _split(device, indptr, src, dst)
        reached = np.full(launches.shape[1], -1, dtype=np.int64)  # the last tensor that crossed to a device
        for v in range(len(label)):
            if label[v] == v:
                launches[b, device[v]] += 1
        for t in range(len(tensor_start) - 1):
            first = tensor_edges[tensor_start[t]]
            home, stays, goes = device[src[first]], False, False
            for i in range(tensor_start[t], tensor_start[t + 1]):
                e = tensor_edges[i]
                away = device[dst[e]]
                if away == home:
                    stays = stays or label[dst[e]] != label[src[e]]
                elif reached[away] != t:
                    reached[away] = t
                    goes = True
                    count[b, home, away] += 1
                    size_bytes[b, home, away] += edge_bytes[e]
            if stays and not goes:
                count[b, home, home] += 1
                size_bytes[b, home, home] += edge_bytes[first]


@numba.njit(cache=True, nogil=True)
def _split(device: IntArray, indptr: IntArray, src: IntArray, dst: IntArray) -> IntArray:
    """[M] first op of every op's submodel.

    Boundaries are the edges between devices, and then, round by round, those over which a submodel would wait
    for itself, until none is left.
    """
    boundary = np.zeros(len(src), dtype=np.bool_)
    alike = True
    for e in range(len(src)):
        boundary[e] = device[src[e]] != device[dst[e]]
        alike = alike and not boundary[e]
    label = _components(boundary, src, dst, len(device))
    while not alike and _cut_cycles(label, boundary, indptr, src):
        label = _components(boundary, src, dst, len(device))
    return label


@numba.njit(cache=True, nogil=True)
def _components(boundary: BoolArray, src: IntArray, dst: IntArray, num_ops: int) -> IntArray:
    """[M] smallest op that each is joined to by edges that are no boundaries."""
    parent = np.arange(num_ops)
    for e in range(len(src)):
        if not boundary[e]:
            a, b = src[e], dst[e]
            while parent[a] != a:
                parent[a] = parent[parent[a]]
                a = parent[a]
            while parent[b] != b:
                parent[b] = parent[parent[b]]
                b = parent[b]
            parent[max(a, b)] = min(a, b)
    for v in range(num_ops):
        parent[v] = parent[parent[v]]  # parents are smaller, hence settled before
    return parent


@numba.njit(cache=True, nogil=True)
def _cut_cycles(label: IntArray, boundary: BoolArray, indptr: IntArray, src: IntArray) -> bool:
    """Add the boundaries of one round; whether there were any.

    An entrance is a boundary edge, or an op without inputs. Of all entrances that an op depends on, ``own`` keeps
    those into its submodel, ``left`` the boundary edges out of it: where there are any of these, the submodel waits
    for itself. Such an op is cut from an input that knows nothing of that detour but shares an entrance with it.
    """
    deps, own, left, entered, sender = _dependencies(label, boundary, indptr, src)
    num_words = deps.shape[1]
    shared = np.zeros(num_words, dtype=np.uint64)
    found = False
    for v in range(len(label)):
        mine = label[v]
        if not _meet(deps[v], left[mine], deps[v], left[mine]):
            continue
        shared[:] = 0
        for bit in range(len(entered)):
            if sender[bit] < 0 or not (deps[v, bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1):
                continue
            if label[sender[bit]] == mine:
                shared |= deps[sender[bit]] & own[mine]
            elif label[entered[bit]] == mine:
                shared |= deps[entered[bit]] & own[mine]
        for e in range(indptr[v], indptr[v + 1]):
            u = src[e]
            knows = _meet(deps[v], left[mine], deps[u], left[label[u]])
            if not boundary[e] and not knows and _meet(shared, shared, deps[u], own[label[u]]):
                boundary[e] = True
                found = True
    return found


@numba.njit(cache=True, nogil=True)
def _meet(a: Words, b: Words, c: Words, d: Words) -> bool:
    """Whether four sets have a member in common."""
    for w in range(len(a)):  # noqa: SIM110 - compiled
        if a[w] & b[w] & c[w] & d[w]:
            return True
    return False


@numba.njit(cache=True, nogil=True)
def _dependencies(
    label: IntArray, boundary: BoolArray, indptr: IntArray, src: IntArray
) -> tuple[Words, Words, Words, IntArray, IntArray]:
    """Entrances as bits.

    [M, W] those every op depends on; by submodel, [M, W] those into it and [M, W] those that come out of it; the
    op that each entrance enters, and the op that sends over it, -1 for an op without inputs.
    """
    num_ops, num_bits = len(label), 0
    for v in range(num_ops):
        num_bits += indptr[v] == indptr[v + 1]
        for e in range(indptr[v], indptr[v + 1]):
            num_bits += boundary[e]
    num_words = (num_bits + 63) // 64
    deps = np.zeros((num_ops, num_words), dtype=np.uint64)
    own = np.zeros((num_ops, num_words), dtype=np.uint64)
    left = np.zeros((num_ops, num_words), dtype=np.uint64)
    entered, sender = np.empty(num_bits, dtype=np.int64), np.full(num_bits, -1, dtype=np.int64)
    bit = 0
    for v in range(num_ops):
        for e in range(indptr[v], max(indptr[v + 1], indptr[v] + 1)):
            is_root = e >= indptr[v + 1]
            if not is_root:
                deps[v] |= deps[src[e]]
            if is_root or boundary[e]:
                word, mask = bit >> 6, np.uint64(1) << np.uint64(bit & 63)
                deps[v, word] |= mask
                own[label[v], word] |= mask
                entered[bit] = v
                if not is_root:
                    left[label[src[e]], word] |= mask
                    sender[bit] = src[e]
                bit += 1
    return deps, own, left, entered, sender
