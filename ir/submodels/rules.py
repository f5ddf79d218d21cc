"""The rules by which HETERO splits a placed model into submodels, compiled.

They restate what ``SubgraphCollector`` of OpenVINO 2026.4 does (src/plugins/hetero/src/subgraph_collector.cpp:
``init``, ``split_cyclic_dependencies``, ``collect_subgraphs_ids``), member by member, but not how: there every node has
a set of all boundaries that it depends on. Here only submodels on a cycle are looked at, each within its own stretch of
the topological order, 64 at a time.

1. Edges between devices are boundaries; nodes that other edges join form a submodel.
2. Round by round, a submodel that waits for itself is cut where its results come back to it: ``_find_cuts``. What
   happens to a submodel depends on its own nodes and boundaries alone.
3. Submodels that wait for each other still are taken apart one node at a time: ``open_rings`` and ``_rank``.

Legend: M nodes in topological order, S submodels.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.compiled import ZERO, bare, inner
from hsdag.ir.graph import IntArray
from hsdag.ir.submodels.parts import NO_CYCLE, Net, Parts, Room, any_on_ring, find_rings, link_edges, regroup

INPUTS, PASSED, COMPUTED = 0, 1, 2
"""What leads into a submodel above a node: graph inputs of its own, those of other submodels, what others compute."""

CUT = -2

NODE_BITS, INPUT_BITS = 38, 21
"""A rank is a number: four yes or no, how many inputs, and the node."""
NO_RANK = (1 << 63) - 1


@bare
def split(net: Net, room: Room, device: IntArray) -> None:
    """Fill ``room.parts`` for nodes on devices [M]."""
    if join(net, room, device):
        open_rings(net, room, cut_returns(net, room))


@bare
def join(net: Net, room: Room, device: IntArray) -> bool:
    """Join neighbours on one device; whether some submodels wait for each other, which ``room.rings`` then tells."""
    parts, rings, count = room.parts, room.rings, len(device)
    is_split = False
    for v in range(count):
        parts.group[v] = v
        for e in range(net.first[v], net.constant[v]):
            parts.boundary[e] = device[net.src[e]] != device[v]
            is_split = is_split or parts.boundary[e]
        for e in range(net.constant[v], net.first[v + 1]):
            parts.boundary[e] = False
    regroup(net, parts, room.members, ZERO, count)
    if not is_split:
        return False
    link_edges(net, parts, rings, ZERO, count)
    num = 0
    for v in range(count):
        if parts.size[v]:
            room.chosen[num] = v
            num += 1
    find_rings(net, parts, rings, room.chosen[:num])
    waits: bool = any_on_ring(rings, room.chosen[:num])
    return waits


@inner
def cut_returns(net: Net, room: Room) -> int:
    """Cut submodels that wait for themselves until no rule cuts any more; how many edges in ``room.cut`` it cut.

    Only the pieces of what was cut are looked at again, and of these only those that a result of the submodel comes
    back to.
    """
    num: int = ZERO
    num_cut: int = ZERO
    for v in range(len(room.slot)):
        room.returned[v], room.slot[v], room.least[v] = False, -1, INPUTS
        if room.parts.size[v] and room.rings.ring[v] >= 0:
            room.chosen[num] = v
            num += 1
    while num:
        num_before = num_cut
        for i in range(0, num, 64):
            batch = room.chosen[i : min(i + 64, num)]
            _mark_returned(net, room, batch)
            for s in batch:
                num_cut = _find_cuts(net, room, s, num_cut)
        for e in room.cut[num_before:num_cut]:
            room.parts.boundary[e] = True
        num = ZERO
        for e in room.cut[num_before:num_cut]:
            s = room.parts.label[net.dst[e]]
            if room.slot[s] != CUT:  # not yet split up
                num = _split_up(net, room, s, num)
        for i in range(num):
            room.chosen[i] = room.changed[i]
            room.slot[room.chosen[i]] = -1
    return num_cut


@inner
def _split_up(net: Net, room: Room, s: int, num: int) -> int:
    """Join the nodes of s again; add to the ``num`` in ``changed`` the pieces that a result of s came back to."""
    parts = room.parts
    k, end = parts.start[s], parts.start[s] + parts.size[s]
    regroup(net, parts, room.members, k, end - k)
    while k < end:
        piece = parts.group[k]
        room.slot[piece] = CUT
        is_returned = False
        for i in range(k, k + parts.size[piece]):
            is_returned = is_returned or room.returned[parts.group[i]]
        if is_returned:
            room.changed[num] = piece
            num += 1
        k += parts.size[piece]
    return num


@inner
def _mark_returned(net: Net, room: Room, batch: IntArray) -> None:
    """Mark the nodes of up to 64 submodels that depend on a result which left their own submodel."""
    parts, after, slot = room.parts, room.after, room.slot
    low, high = batch[0], 0
    for i in range(len(batch)):
        s = batch[i]
        slot[s] = i
        low, high = min(low, s), max(high, parts.group[parts.start[s] + parts.size[s] - 1])
    for v in range(low, high + 1):
        word = np.uint64(0)
        for e in range(net.first[v], net.constant[v]):
            u = net.src[e]
            if u >= low:
                word |= after[u]
                own = slot[parts.label[u]]
                if parts.boundary[e] and own >= 0:
                    word |= np.uint64(1) << np.uint64(own)
        after[v] = word
        own = slot[parts.label[v]]
        if own >= 0:
            room.returned[v] = (word >> np.uint64(own)) & np.uint64(1) != 0
    for s in batch:
        slot[s] = -1


@inner
def _find_cuts(net: Net, room: Room, s: int, num_cut: int) -> int:
    """Add to the ``num_cut`` edges in ``cut`` those inside submodel s over which it is cut; how many there are then.

    They lead from a node that no result of s came back to, to one that depends on such a result. HETERO spares the
    only reader of a node that is not a graph input and depends on graph inputs alone. Of the other edges, those are
    cut whose ends share something that leads into s; ``_share_inputs`` says more where that is in doubt.
    """
    parts, above = room.parts, room.above
    num_doubtful = ZERO
    for v in parts.group[parts.start[s] : parts.start[s] + parts.size[s]]:
        is_entrance = _look_above(net, room, v)
        if not room.returned[v]:
            continue
        for e in range(net.first[v], net.first[v + 1]):
            u, is_constant = net.src[e], e >= net.constant[v]
            if parts.boundary[e] or (not is_constant and room.returned[u]):
                continue
            leads = INPUTS if is_constant else above[u]
            if net.is_alone[e] and not net.is_input[u] and leads != COMPUTED:
                continue
            if is_constant and is_entrance:
                parts.boundary[e] = True
                room.least[v] = max(room.least[v], PASSED if net.is_input[u] else COMPUTED)
            elif leads != INPUTS or is_entrance:
                room.cut[num_cut] = e
                num_cut += 1
            elif not is_constant:
                room.doubtful[num_doubtful] = e
                num_doubtful += 1
    return _share_inputs(net, room, s, num_doubtful, num_cut) if num_doubtful else num_cut


@inner
def _look_above(net: Net, room: Room, v: int) -> bool:
    """Fill in ``above`` for v, after those that v reads; whether v itself reads another submodel."""
    parts, above = room.parts, room.above
    is_entrance: bool = room.least[v] > INPUTS
    above[v] = room.least[v]
    for e in range(net.first[v], net.constant[v]):
        u = net.src[e]
        if not parts.boundary[e]:
            above[v] = max(above[v], above[u])
        elif parts.label[u] != parts.label[v]:
            above[v] = max(above[v], PASSED if net.is_input[u] else COMPUTED)
            is_entrance = True
    return is_entrance


@inner
def _share_inputs(net: Net, room: Room, s: int, num_doubtful: int, num_cut: int) -> int:
    """Add to ``cut`` those of the edges in ``doubtful`` whose ends share a graph input of submodel s.

    The start of such an edge depends on that input, and so does its other end, by way of a node of s whose result
    leaves s on the way, or that reads another submodel. Up to 64 inputs are looked at together.
    """
    parts, begin = room.parts, room.parts.start[s]
    last = begin + parts.size[s]
    high = parts.group[last - 1]
    while begin < last and num_doubtful:
        for v in range(s, high + 1):
            room.after[v] = room.by_way[v] = 0
        num_inputs = 0
        while begin < last and num_inputs < 64:
            v = parts.group[begin]
            if net.is_source[v]:
                room.after[v] = np.uint64(1) << np.uint64(num_inputs)
                num_inputs += 1
            begin += 1
        _follow_inputs(net, room, s, high)
        num_left = 0
        for e in room.doubtful[:num_doubtful]:
            if room.after[net.src[e]] & room.by_way[net.dst[e]]:
                room.cut[num_cut] = e
                num_cut += 1
            else:
                room.doubtful[num_left] = e
                num_left += 1
        num_doubtful = num_left
    return num_cut


@inner
def _follow_inputs(net: Net, room: Room, s: int, high: int) -> None:
    """Pass the bits of inputs on to all nodes that depend on them up to ``high``, the last of submodel s."""
    parts, reach, by_way = room.parts, room.after, room.by_way
    for v in range(s, high + 1):
        is_entrance = parts.label[v] == s and room.least[v] > INPUTS
        for e in range(net.first[v], net.constant[v]):
            u = net.src[e]
            if u >= s:
                reach[v] |= reach[u]
                by_way[v] |= by_way[u]
                if parts.boundary[e] and parts.label[u] == s:
                    by_way[v] |= reach[u]
            is_entrance = is_entrance or (parts.boundary[e] and parts.label[u] != s)
        if is_entrance and parts.label[v] == s:
            by_way[v] |= reach[v]


@inner
def open_rings(net: Net, room: Room, num_cut: int) -> int:
    """Cut one node at a time from what comes before it in its submodel, until no submodels wait for each other.

    The node of least rank on any ring goes first. Only the ring that it was on is looked at again. The edges that were
    cut are added to the ``num_cut`` in ``room.cut``; how many there are then.
    """
    parts, rings, num = room.parts, room.rings, 0
    for s in range(len(room.chosen)):
        if parts.size[s]:
            room.chosen[num] = s
            num += 1
    link_edges(net, parts, rings, ZERO, len(room.chosen))
    find_rings(net, parts, rings, room.chosen[:num])
    if not any_on_ring(rings, room.chosen[:num]):
        return num_cut
    room.ranks[:] = NO_RANK
    for v in range(len(room.chosen)):
        _rerank(net, parts, rings.ring, v, room.ranks)
    while room.ranks[1] != NO_RANK:
        v = room.ranks[1] & ((1 << NODE_BITS) - 1)
        for e in range(net.first[v], net.constant[v]):
            if not parts.boundary[e]:
                room.cut[num_cut] = e
                num_cut += 1
        num_changed = _isolate(net, room, v)
        for s in room.changed[:num_changed]:
            for u in parts.group[parts.start[s] : parts.start[s] + parts.size[s]]:
                _rerank(net, parts, rings.ring, u, room.ranks)
                for i in range(net.out_first[u], net.out_first[u + 1]):
                    _rerank(net, parts, rings.ring, net.dst[net.out_edge[i]], room.ranks)
    return num_cut


@inner
def _isolate(net: Net, room: Room, v: int) -> int:
    """Cut v from its submodel's other nodes that it reads; how many submodels in ``changed`` are new or freed."""
    parts, rings = room.parts, room.rings
    s = parts.label[v]
    for e in range(net.first[v], net.first[v + 1]):
        parts.boundary[e] = True
    start, size, num_on_ring, num = parts.start[s], parts.size[s], 0, 0
    other = rings.ring[s]
    while other >= 0:
        if other != s:
            room.chosen[num_on_ring] = other
            num_on_ring += 1
        other = rings.following[other]
    num_others = num_on_ring
    regroup(net, parts, room.members, start, size)
    link_edges(net, parts, rings, start, size)
    k = start
    while k < start + size:
        room.changed[num] = room.chosen[num_on_ring] = parts.group[k]
        num, num_on_ring = num + 1, num_on_ring + 1
        k += parts.size[parts.group[k]]
    find_rings(net, parts, rings, room.chosen[:num_on_ring])
    for other in room.chosen[:num_others]:
        if rings.ring[other] == NO_CYCLE:
            room.changed[num] = other
            num += 1
    return num


@inner
def _rerank(net: Net, parts: Parts, ring: IntArray, v: int, ranks: IntArray) -> None:
    """Put v where it belongs now: ``ranks[i]`` is the least of ``ranks[2 * i]`` and ``ranks[2 * i + 1]``."""
    i, rank = v + len(ranks) // 2, _rank(net, parts, ring, v)
    while i and ranks[i] != rank:
        ranks[i] = rank
        rank, i = min(rank, ranks[i ^ 1]) if i > 1 else rank, i // 2


@inner
def _rank(net: Net, parts: Parts, ring: IntArray, v: int) -> int:
    """Which node HETERO isolates: the one of least rank; NO_RANK where that would change nothing or opens no ring.

    It prefers nodes that read another submodel on a ring, then readers of results with several readers, then nodes
    that read no leaf, then those that are more than one link of a chain; then few inputs, then an early place.
    """
    if ring[parts.label[v]] < 0:
        return NO_RANK
    on_ring, shared, leaf, count = False, False, False, 0
    for e in range(net.first[v], net.first[v + 1]):
        u = net.src[e]
        if not parts.boundary[e]:
            count += 1
            shared = shared or net.num_readers[u] > 1
            leaf = leaf or net.is_leaf[u]
        elif e < net.constant[v]:
            on_ring = on_ring or (parts.label[u] != parts.label[v] and ring[parts.label[u]] >= 0)
    if not count:
        return NO_RANK
    is_link = count == 1 and net.num_readers[v] <= 1
    rank = 0
    for worse in (not on_ring, not shared, leaf, is_link):
        rank = 2 * rank + int(worse)
    return (((rank << INPUT_BITS) + count) << NODE_BITS) + v
