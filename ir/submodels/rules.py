"""The rules by which HETERO splits a placed model into submodels, compiled.

They restate what ``SubgraphCollector`` of OpenVINO 2026.4 does (src/plugins/hetero/src/subgraph_collector.cpp:
``init``, ``split_cyclic_dependencies``, ``collect_subgraphs_ids``), member by member, but not how: there every node has
a set of all boundaries that it depends on. Here only submodels on a cycle are looked at, each within its own stretch of
the topological order, 64 at a time.

1. Edges between devices are boundaries; nodes that other edges join form a submodel.
2. Round by round, a submodel that waits for itself is cut where its results come back to it: ``_find_cuts``.
3. Submodels that wait for each other still are taken apart one node at a time: ``_open_rings`` and ``_rank``.

Legend: M nodes in topological order, S submodels.
"""

from __future__ import annotations

import heapq

import numba
import numpy as np
from numpy.typing import NDArray

from hsdag.ir.graph import BoolArray, IntArray
from hsdag.ir.submodels.parts import NO_CYCLE, UNKNOWN, Net, Parts, Rings, find_rings, regroup

Words = NDArray[np.uint64]

INPUTS, PASSED, COMPUTED = 0, 1, 2
"""What leads into a submodel above a node: graph inputs of its own, those of other submodels, what others compute."""

CUT = -2

NODE_BITS, INPUT_BITS = 38, 21
"""A rank is a number: four yes or no, how many inputs, and the node."""


@numba.njit(cache=True, nogil=True)
def split(net: Net, device: IntArray) -> IntArray:
    """[M] first node of every node's submodel, for nodes on devices [M]."""
    count = len(device)
    parts = Parts(
        np.zeros(count, dtype=np.int64),
        device[net.src] != device[net.dst],
        np.arange(count),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
    )
    regroup(net, parts, parts.start[0], count)
    if not parts.boundary.any():
        return parts.label
    rings = Rings(
        np.full(count, UNKNOWN),
        np.full(count, -1),
        np.full(count, -1),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
        np.zeros(count, dtype=np.int64),
    )
    every = np.flatnonzero(parts.size)
    find_rings(net, parts, rings, every)
    active = every[rings.ring[every] >= 0]
    if len(active):
        _cut_returns(net, parts, active)
        _open_rings(net, parts, rings)
    return parts.label


@numba.njit(cache=True, nogil=True)
def _cut_returns(net: Net, parts: Parts, active: IntArray) -> None:
    """Cut submodels [S], given in order, that wait for themselves, until no rule cuts any more.

    What happens to a submodel depends on its own nodes and boundaries alone, so that only the pieces of what was
    cut are looked at again, and of these only those that a result of the submodel comes back to.
    """
    count = len(parts.label)
    after = np.zeros(count, dtype=np.uint64)
    slot = np.full(count, -1)
    returned = np.zeros(count, dtype=np.bool_)
    above = np.zeros(count, dtype=np.int8)
    while len(active):
        cut = [0 for _ in range(0)]
        for i in range(0, len(active), 64):
            batch = active[i : i + 64]
            _mark_returned(net, parts, batch, after, slot, returned)
            for s in batch:
                _find_cuts(net, parts, s, returned, above, cut)
        for e in cut:
            parts.boundary[e] = True
        pieces = [0 for _ in range(0)]
        for e in cut:
            s = parts.label[net.dst[e]]
            if slot[s] != CUT:  # not yet split up
                _split_up(net, parts, s, returned, slot, pieces)
        active = np.sort(np.array(pieces))
        for s in active:
            slot[s] = -1


@numba.njit(cache=True, nogil=True)
def _split_up(net: Net, parts: Parts, s: int, returned: BoolArray, slot: IntArray, pieces: list[int]) -> None:
    """Join the nodes of s again; append to ``pieces`` those that a result of s came back to."""
    k, end = parts.start[s], parts.start[s] + parts.size[s]
    regroup(net, parts, k, end - k)
    while k < end:
        piece = parts.group[k]
        slot[piece] = CUT
        is_returned = False
        for i in range(k, k + parts.size[piece]):
            is_returned = is_returned or returned[parts.group[i]]
        if is_returned:
            pieces.append(piece)
        k += parts.size[piece]


@numba.njit(cache=True, nogil=True)
def _mark_returned(net: Net, parts: Parts, batch: IntArray, after: Words, slot: IntArray, returned: BoolArray) -> None:
    """Mark the nodes of up to 64 submodels that depend on a result which left their own submodel."""
    low, high = batch[0], 0
    for i in range(len(batch)):
        s = batch[i]
        slot[s] = i
        high = max(high, parts.group[parts.start[s] + parts.size[s] - 1])
    for v in range(low, high + 1):
        word = np.uint64(0)
        for e in range(net.first[v], net.first[v + 1]):
            u = net.src[e]
            if u >= low:
                word |= after[u]
                own = slot[parts.label[u]]
                if parts.boundary[e] and own >= 0:
                    word |= np.uint64(1) << np.uint64(own)
        after[v] = word
        own = slot[parts.label[v]]
        if own >= 0:
            returned[v] = (word >> np.uint64(own)) & np.uint64(1) != 0
    for s in batch:
        slot[s] = -1


@numba.njit(cache=True, nogil=True)
def _find_cuts(net: Net, parts: Parts, s: int, returned: BoolArray, above: NDArray[np.int8], cut: list[int]) -> None:
    """Append to ``cut`` the edges inside submodel s over which it is cut.

    They lead from a node that no result of s came back to, to one that depends on such a result. HETERO spares the
    only reader of a node that is not a graph input and depends on graph inputs alone. Of the other edges, those are
    cut whose ends share something that leads into s; ``_share_inputs`` says more where that is in doubt.
    """
    members = parts.group[parts.start[s] : parts.start[s] + parts.size[s]]
    doubtful = [0 for _ in range(0)]
    for v in members:
        is_entrance = _look_above(net, parts, v, above)
        if not returned[v]:
            continue
        for e in range(net.first[v], net.first[v + 1]):
            u = net.src[e]
            if parts.boundary[e] or returned[u]:
                continue
            if net.is_alone[e] and not net.is_input[u] and above[u] != COMPUTED:
                continue
            if above[u] != INPUTS or is_entrance:
                cut.append(e)
            elif not net.floats[u]:
                doubtful.append(e)
    if len(doubtful):
        _share_inputs(net, parts, s, doubtful, cut)


@numba.njit(cache=True, nogil=True)
def _look_above(net: Net, parts: Parts, v: int, above: NDArray[np.int8]) -> bool:
    """Fill in ``above`` for v, after those that v reads; whether v itself reads another submodel."""
    above[v], is_entrance = INPUTS, False
    for e in range(net.first[v], net.first[v + 1]):
        u = net.src[e]
        if not parts.boundary[e]:
            above[v] = max(above[v], above[u])
        elif parts.label[u] != parts.label[v]:
            above[v] = max(above[v], PASSED if net.is_input[u] else COMPUTED)
            is_entrance = True
    return is_entrance


@numba.njit(cache=True, nogil=True)
def _inputs(net: Net, members: IntArray) -> IntArray:
    """The nodes of a submodel that depend on no other node but constants, and on something."""
    found = np.zeros(len(members), dtype=np.int64)
    count = 0
    for v in members:
        alone = not net.floats[v] and (net.is_input[v] or net.first[v] < net.first[v + 1])
        for e in range(net.first[v], net.first[v + 1]):
            alone = alone and net.floats[net.src[e]]
        if alone:
            found[count] = v
            count += 1
    return found[:count]


@numba.njit(cache=True, nogil=True)
def _share_inputs(net: Net, parts: Parts, s: int, doubtful: list[int], cut: list[int]) -> None:
    """Append to ``cut`` those of the edges whose ends share a graph input of submodel s.

    The start of such an edge depends on that input, and so does its other end, by way of a node of s whose result
    leaves s on the way, or that reads another submodel.
    """
    members = parts.group[parts.start[s] : parts.start[s] + parts.size[s]]
    low, high = members[0], members[-1]
    inputs = _inputs(net, members)
    shared = np.zeros(len(doubtful), dtype=np.bool_)
    for i in range(0, len(inputs), 64):
        reach = np.zeros(high - low + 1, dtype=np.uint64)  # the inputs that a node depends on
        by_way = np.zeros(high - low + 1, dtype=np.uint64)  # those that it depends on in the way described
        for k, v in enumerate(inputs[i : i + 64]):
            reach[v - low] = np.uint64(1) << np.uint64(k)
        for v in range(low, high + 1):
            is_entrance = False
            for e in range(net.first[v], net.first[v + 1]):
                u = net.src[e]
                if u >= low:
                    reach[v - low] |= reach[u - low]
                    by_way[v - low] |= by_way[u - low]
                    if parts.boundary[e] and parts.label[u] == s:
                        by_way[v - low] |= reach[u - low]
                is_entrance = is_entrance or (parts.boundary[e] and parts.label[u] != s)
            if is_entrance and parts.label[v] == s:
                by_way[v - low] |= reach[v - low]
        for k, e in enumerate(doubtful):
            shared[k] |= (reach[net.src[e] - low] & by_way[net.dst[e] - low]) != 0
    for k, e in enumerate(doubtful):
        if shared[k]:
            cut.append(e)


@numba.njit(cache=True, nogil=True)
def _open_rings(net: Net, parts: Parts, rings: Rings) -> None:
    """Cut one node at a time from what comes before it in its submodel, until no submodels wait for each other.

    The node of least rank on any ring goes first. Only the ring that it was on is looked at again.
    """
    count = len(parts.label)
    submodels = np.flatnonzero(parts.size)
    submodels = submodels[rings.ring[submodels] != NO_CYCLE]  # the cuts have closed no ring
    rings.ring[submodels] = UNKNOWN
    find_rings(net, parts, rings, submodels)
    on_rings = submodels[rings.ring[submodels] >= 0]
    if not len(on_rings):
        return
    ranks = np.full(count, -1)
    heap = [0 for _ in range(0)]
    for s in on_rings:
        for v in parts.group[parts.start[s] : parts.start[s] + parts.size[s]]:
            ranks[v] = _rank(net, parts, rings.ring, v)
            if ranks[v] >= 0:
                heap.append(int(ranks[v]))
    heapq.heapify(heap)
    changed = np.zeros(count, dtype=np.int64)
    while len(heap):
        rank = heapq.heappop(heap)
        v = rank & ((1 << NODE_BITS) - 1)
        if ranks[v] != rank:
            continue
        num_changed = _isolate(net, parts, rings, v, changed)
        for s in changed[:num_changed]:
            for k in range(parts.start[s], parts.start[s] + parts.size[s]):
                u = parts.group[k]
                _rerank(net, parts, rings.ring, u, ranks, heap)
                for i in range(net.out_first[u], net.out_first[u + 1]):
                    _rerank(net, parts, rings.ring, net.dst[net.out_edge[i]], ranks, heap)


@numba.njit(cache=True, nogil=True)
def _isolate(net: Net, parts: Parts, rings: Rings, v: int, changed: IntArray) -> int:
    """Cut v from its submodel's other nodes that it reads; write to ``changed`` the submodels that are new or freed."""
    s = parts.label[v]
    for e in range(net.first[v], net.first[v + 1]):
        parts.boundary[e] = True
    start, size = parts.start[s], parts.size[s]
    name, num = rings.ring[s], 0
    on_ring = [s]
    other = name
    while other >= 0:
        if other != s:
            on_ring.append(other)
        other = rings.following[other]
    regroup(net, parts, start, size)
    k = start
    while k < start + size:
        piece = parts.group[k]
        if piece != s:
            on_ring.append(piece)
        changed[num] = piece
        num += 1
        k += parts.size[piece]
    submodels = np.array(on_ring)
    rings.ring[submodels] = UNKNOWN
    find_rings(net, parts, rings, submodels)
    for other in submodels:
        if rings.ring[other] == NO_CYCLE and not start <= parts.start[other] < start + size:
            changed[num] = other
            num += 1
    return num


@numba.njit(cache=True, nogil=True)
def _rerank(net: Net, parts: Parts, ring: IntArray, v: int, ranks: IntArray, heap: list[int]) -> None:
    """Put v where it belongs now."""
    rank = _rank(net, parts, ring, v)
    if rank != ranks[v]:
        ranks[v] = rank
        if rank >= 0:
            heapq.heappush(heap, rank)


@numba.njit(cache=True, nogil=True)
def _rank(net: Net, parts: Parts, ring: IntArray, v: int) -> int:
    """Which node HETERO isolates: the one of least rank; -1 where that would change nothing or opens no ring.

    It prefers nodes that read another submodel on a ring, then readers of results with several readers, then nodes
    that read no leaf, then those that are more than one link of a chain; then few inputs, then an early place.
    """
    if ring[parts.label[v]] < 0:
        return -1
    on_ring, shared, leaf, count = False, False, False, 0
    for e in range(net.first[v], net.first[v + 1]):
        u = net.src[e]
        if parts.boundary[e]:
            on_ring = on_ring or (parts.label[u] != parts.label[v] and ring[parts.label[u]] >= 0)
        else:
            count += 1
            shared = shared or net.num_readers[u] > 1
            leaf = leaf or net.is_leaf[u]
    if not count:
        return -1
    is_link = count == 1 and net.num_readers[v] <= 1
    rank = 0
    for worse in (not on_ring, not shared, leaf, is_link):
        rank = 2 * rank + int(worse)
    return (((rank << INPUT_BITS) + count) << NODE_BITS) + v
