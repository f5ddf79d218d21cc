"""The rules by which HETERO splits a placed model into submodels, as compiled functions.

They give the same submodels as ``SubgraphCollector`` of OpenVINO 2026.4 (src/plugins/hetero/src/subgraph_collector.cpp:
``init``, ``split_cyclic_dependencies``, ``collect_subgraphs_ids``), in another way. There every node has
a set of all boundaries that it depends on. Here only submodels on a cycle are looked at, each within its own stretch of
the topological order, 64 at a time.

1. Edges between devices are boundaries; nodes that other edges join form a submodel.
2. Round by round, a submodel that waits for itself is cut where its results come back to it: ``_find_cuts``. What
   happens to a submodel depends on its own nodes and boundaries alone.
3. Submodels that still wait for each other are taken apart one node at a time: ``open_rings`` and ``_rank``.

Nothing here allocates: all arrays come from ``Workspace``, so that a split takes no longer than its work.

Legend: M nodes that run on data, in topological order; F constants and values computed from constants, numbered from M
on; K edges into the M nodes, those from other such nodes first for each node; S submodels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hsdag.base.kernels import ZERO, bare, inner
from hsdag.ir.graph.computation_graph import BoolArray, IntArray

NO_CYCLE, UNKNOWN = -1, -2
INPUTS, PASSED, COMPUTED = 0, 1, 2
"""What leads into a submodel above a node: its own graph inputs, graph inputs of other submodels, their results."""

CUT = -2

NODE_BITS, INPUT_BITS = 38, 21
"""A rank is an integer: four flags, the number of inputs, and the node."""
NO_RANK = (1 << 63) - 1


class Net(NamedTuple):
    """The nodes of a model as HETERO sees it: every reader of a constant has a copy of its own."""

    first: IntArray  # [M + 1] the edges into v are first[v]:first[v + 1]
    constant: IntArray  # [M] of these, constant[v]:first[v + 1] come from constants
    src: IntArray  # [K]
    dst: IntArray  # [K]
    out_first: IntArray  # [M + 1]
    out_edge: IntArray  # edges between the M nodes, sorted by the node they leave
    is_alone: BoolArray  # [K] whether no other edge carries the same tensor
    is_input: BoolArray  # [M + F] Parameters and Constants
    num_readers: IntArray  # [M + F] edges that leave, except to Results
    is_leaf: BoolArray  # [M + F] reads graph inputs alone, and has one reader
    is_source: BoolArray  # [M] reads only constants, or is a Parameter


class Split(NamedTuple):
    """A split into submodels; s is the first of the nodes of submodel s, ``group[start[s]:start[s] + size[s]]``."""

    label: IntArray  # [M]
    boundary: BoolArray  # [K]
    group: IntArray  # [M]
    start: IntArray  # [M]
    size: IntArray  # [M]


class Rings(NamedTuple):
    """Submodels that wait for each other, and scratch to find them; by submodel except ``link`` and the stacks."""

    ring: IntArray  # [M] the number of the ring that it is on, or NO_CYCLE, or UNKNOWN
    following: IntArray  # [M] the next submodel of the same ring, -1 after the last; the ring's number is the first
    opened: IntArray  # [M] when it was opened
    lowest: IntArray  # [M] the earliest opened submodel that it leads back to
    head: IntArray  # [M] an edge that leaves it, or -1
    link: IntArray  # [K] the next edge that leaves the same submodel, or -1
    at_edge: IntArray  # [M] the edge to look at next
    calls: IntArray  # [M] a stack of submodels whose readers are being visited
    waiting: IntArray  # [M] a stack of opened submodels whose ring is unknown


class Workspace(NamedTuple):
    """The arrays that a split fills and needs, for one thread; the result is in ``parts``."""

    parts: Split
    rings: Rings
    members: IntArray  # [M] scratch of ``regroup``
    chosen: IntArray  # [M] submodels to look at
    changed: IntArray  # [M] submodels to look at next
    after: NDArray[np.uint64]  # [M] bit set of 64 submodels: whose results a node depends on
    by_way: NDArray[np.uint64]  # [M] the same, only by way of another submodel
    slot: IntArray  # [M] the bit of a submodel, or less than 0
    returned: BoolArray  # [M] whether a node depends on a result that left its submodel
    above: NDArray[np.int8]  # [M] what leads into its submodel above a node
    least: NDArray[np.int8]  # [M] the same, only of constants that were cut off
    cut: IntArray  # [K] edges to cut in this round
    doubtful: IntArray  # [K] edges that may have to be cut
    ranks: IntArray  # [2 M] a tournament tree of the nodes that may be isolated

    @staticmethod
    def of(net: Net) -> Workspace:
        """Allocate the arrays to split a net."""
        m, k = len(net.constant), len(net.src)

        def zeros(size: int, kind: type = np.int64) -> Any:
            return np.zeros(size, dtype=kind)

        return Workspace(
            Split(zeros(m), zeros(k, np.bool_), zeros(m), zeros(m), zeros(m)),
            Rings(**{field: zeros(k if field == "link" else m) for field in Rings._fields}),
            members=zeros(m),
            chosen=zeros(m),
            changed=zeros(m),
            after=zeros(m, np.uint64),
            by_way=zeros(m, np.uint64),
            slot=zeros(m),
            returned=zeros(m, np.bool_),
            above=zeros(m, np.int8),
            least=zeros(m, np.int8),
            cut=zeros(k),
            doubtful=zeros(k),
            ranks=zeros(2 * m),
        )


@inner
def regroup(net: Net, parts: Split, scratch: IntArray, start: int, count: int) -> None:
    """Group the ``count`` nodes of a submodel (or all nodes) again by the edges that are not boundaries."""
    label = parts.label
    members = scratch[:count]
    for i in range(count):
        v = parts.group[start + i]
        members[i] = label[v] = v
        parts.size[v] = 0
    for v in members:
        for e in range(net.first[v], net.constant[v]):
            if not parts.boundary[e]:
                a, b = net.src[e], v
                while label[a] != a:
                    label[a] = label[label[a]]
                    a = label[a]
                while label[b] != b:
                    label[b] = label[label[b]]
                    b = label[b]
                label[max(a, b)] = min(a, b)
    for v in members:
        label[v] = label[label[v]]  # labels are smaller, hence settled before
        parts.size[label[v]] += 1
    end = start
    for v in members:
        s = label[v]
        if s == v:
            parts.start[v] = end
            end += parts.size[v]
            parts.size[v] = 0
        parts.group[parts.start[s] + parts.size[s]] = v
        parts.size[s] += 1


@inner
def link_edges(net: Net, parts: Split, rings: Rings, start: int, count: int) -> None:
    """List the edges that leave each submodel whose nodes are the ``count`` from ``start`` on."""
    for v in parts.group[start : start + count]:
        s = parts.label[v]
        if s == v:
            rings.head[v] = -1
        for i in range(net.out_first[v], net.out_first[v + 1]):
            e = net.out_edge[i]
            if parts.boundary[e] and parts.label[net.dst[e]] != s:
                rings.link[e], rings.head[s] = rings.head[s], e


@inner
def find_rings(net: Net, parts: Split, rings: Rings, submodels: IntArray) -> bool:
    """Find which ring each of the submodels [S] is on, NO_CYCLE if none; return whether one is on a ring.

    Other submodels are left out. R. Tarjan, "Depth-first search and linear graph algorithms", 1972, without recursion.
    """
    for s in submodels:
        rings.opened[s], rings.ring[s] = -1, UNKNOWN
    depth, num_waiting, clock = 0, 0, 0
    for root in submodels:
        s = root if rings.opened[root] < 0 else -1
        while s >= 0 or depth:
            if s >= 0:
                rings.opened[s] = rings.lowest[s] = clock
                rings.at_edge[s] = rings.head[s]
                rings.calls[depth], rings.waiting[num_waiting] = s, s
                clock, depth, num_waiting = clock + 1, depth + 1, num_waiting + 1
            s = rings.calls[depth - 1]
            t = _next_reader(net, parts, rings, s)
            if t < 0:
                num_waiting = _close(rings, s, num_waiting)
                depth -= 1
                if depth:
                    parent = rings.calls[depth - 1]
                    rings.lowest[parent] = min(rings.lowest[parent], rings.lowest[s])
            elif rings.opened[t] >= 0:
                rings.lowest[s] = min(rings.lowest[s], rings.opened[t])
                t = -1
            s = t
    is_any_on_ring = False
    for s in submodels:
        is_any_on_ring = is_any_on_ring or rings.ring[s] >= 0
    return is_any_on_ring


@bare
def _close(rings: Rings, s: int, num_waiting: int) -> int:
    """Give a number to the ring that s closes, if it does; return how many submodels then wait."""
    if rings.lowest[s] != rings.opened[s]:
        return num_waiting
    if rings.waiting[num_waiting - 1] == s:
        rings.ring[s] = NO_CYCLE
        return num_waiting - 1
    previous = -1
    while previous != s:
        num_waiting -= 1
        other = rings.waiting[num_waiting]
        rings.ring[other], rings.following[other] = s, previous
        previous = other
    return num_waiting


@inner
def _next_reader(net: Net, parts: Split, rings: Rings, s: int) -> int:
    """Return the next submodel that reads s and whose ring is unknown; -1 when all were looked at."""
    while rings.at_edge[s] >= 0:
        t: int = parts.label[net.dst[rings.at_edge[s]]]
        rings.at_edge[s] = rings.link[rings.at_edge[s]]
        if rings.ring[t] == UNKNOWN:
            return t
    return -1


@bare
def split(net: Net, work: Workspace, device: IntArray) -> None:
    """Fill ``work.parts`` for nodes on devices [M]."""
    if join(net, work, device):
        cut_returns(net, work)
        open_rings(net, work)


@bare
def join(net: Net, work: Workspace, device: IntArray) -> bool:
    """Join neighbours on one device; return whether submodels wait for each other, found in ``work.rings``."""
    parts, rings = work.parts, work.rings
    count = len(device)
    is_split = False
    for v in range(count):
        parts.group[v] = v
        for e in range(net.first[v], net.constant[v]):
            parts.boundary[e] = device[net.src[e]] != device[v]
            is_split = is_split or parts.boundary[e]
        for e in range(net.constant[v], net.first[v + 1]):
            parts.boundary[e] = False
    regroup(net, parts, work.members, ZERO, count)
    if not is_split:
        return False
    link_edges(net, parts, rings, ZERO, count)
    num = 0
    for v in range(count):
        if parts.size[v]:
            work.chosen[num] = v
            num += 1
    return find_rings(net, parts, rings, work.chosen[:num])


@inner
def cut_returns(net: Net, work: Workspace) -> None:
    """Cut submodels that wait for themselves until no rule cuts any more.

    After a cut only the new pieces are looked at again, and of these only those that a result of the submodel comes
    back to.
    """
    num: int = ZERO
    for v in range(len(work.slot)):
        work.returned[v], work.slot[v], work.least[v] = False, -1, INPUTS
        if work.parts.size[v] and work.rings.ring[v] >= 0:
            work.chosen[num] = v
            num += 1
    while num:
        num_cut: int = ZERO
        for i in range(0, num, 64):
            batch = work.chosen[i : min(i + 64, num)]
            _mark_returned(net, work, batch)
            for s in batch:
                num_cut = _find_cuts(net, work, s, num_cut)
        for e in work.cut[:num_cut]:
            work.parts.boundary[e] = True
        num = ZERO
        for e in work.cut[:num_cut]:
            s = work.parts.label[net.dst[e]]
            if work.slot[s] != CUT:  # not yet split up
                num = _split_up(net, work, s, num)
        for i in range(num):
            work.chosen[i] = work.changed[i]
            work.slot[work.chosen[i]] = -1


@inner
def _split_up(net: Net, work: Workspace, s: int, num: int) -> int:
    """Group the nodes of s again; append the pieces that results of s came back to to ``changed[:num]``; count them."""
    parts = work.parts
    k, end = parts.start[s], parts.start[s] + parts.size[s]
    regroup(net, parts, work.members, k, end - k)
    while k < end:
        piece = parts.group[k]
        work.slot[piece] = CUT
        is_returned = False
        for i in range(k, k + parts.size[piece]):
            is_returned = is_returned or work.returned[parts.group[i]]
        if is_returned:
            work.changed[num] = piece
            num += 1
        k += parts.size[piece]
    return num


@inner
def _mark_returned(net: Net, work: Workspace, batch: IntArray) -> None:
    """Mark the nodes of up to 64 submodels that depend on a result which left their own submodel."""
    parts, after, slot = work.parts, work.after, work.slot
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
                bit = slot[parts.label[u]]
                if parts.boundary[e] and bit >= 0:
                    word |= np.uint64(1) << np.uint64(bit)
        after[v] = word
        bit = slot[parts.label[v]]
        if bit >= 0:
            work.returned[v] = (word >> np.uint64(bit)) & np.uint64(1) != 0
    for s in batch:
        slot[s] = -1


@inner
def _find_cuts(net: Net, work: Workspace, s: int, num_cut: int) -> int:
    """Append to ``cut[:num_cut]`` the edges inside submodel s over which it is cut; return their number.

    They lead from a node that no result of s came back to, to one that depends on such a result. HETERO spares the
    only reader of a node that is not a graph input and depends on graph inputs alone. Of the other edges, those are
    cut whose ends share something that leads into s; in doubt ``_share_inputs`` decides.
    """
    parts, above = work.parts, work.above
    num_doubtful = ZERO
    for v in parts.group[parts.start[s] : parts.start[s] + parts.size[s]]:
        is_entrance = _look_above(net, work, v)
        if not work.returned[v]:
            continue
        for e in range(net.first[v], net.first[v + 1]):
            u = net.src[e]
            is_constant = e >= net.constant[v]
            if parts.boundary[e] or (not is_constant and work.returned[u]):
                continue
            leads = INPUTS if is_constant else above[u]
            if net.is_alone[e] and not net.is_input[u] and leads != COMPUTED:
                continue
            if is_constant and is_entrance:
                parts.boundary[e] = True
                work.least[v] = max(work.least[v], PASSED if net.is_input[u] else COMPUTED)
            elif leads != INPUTS or is_entrance:
                work.cut[num_cut] = e
                num_cut += 1
            elif not is_constant:
                work.doubtful[num_doubtful] = e
                num_doubtful += 1
    return _share_inputs(net, work, s, num_doubtful, num_cut) if num_doubtful else num_cut


@inner
def _look_above(net: Net, work: Workspace, v: int) -> bool:
    """Fill in ``above`` for v, whose inputs have theirs; return whether v itself reads another submodel."""
    parts, above = work.parts, work.above
    is_entrance: bool = work.least[v] > INPUTS
    above[v] = work.least[v]
    for e in range(net.first[v], net.constant[v]):
        u = net.src[e]
        if not parts.boundary[e]:
            above[v] = max(above[v], above[u])
        elif parts.label[u] != parts.label[v]:
            above[v] = max(above[v], PASSED if net.is_input[u] else COMPUTED)
            is_entrance = True
    return is_entrance


@inner
def _share_inputs(net: Net, work: Workspace, s: int, num_doubtful: int, num_cut: int) -> int:
    """Append to ``cut`` the edges in ``doubtful`` whose ends share a graph input of submodel s; return the number cut.

    The start of such an edge depends on that input, and so does its other end, by way of a node of s whose result
    leaves s on the way, or that reads another submodel. Up to 64 inputs are looked at together.
    """
    parts = work.parts
    begin = parts.start[s]
    last = begin + parts.size[s]
    high = parts.group[last - 1]
    while begin < last and num_doubtful:
        for v in range(s, high + 1):
            work.after[v] = work.by_way[v] = 0
        num_inputs = 0
        while begin < last and num_inputs < 64:
            v = parts.group[begin]
            if net.is_source[v]:
                work.after[v] = np.uint64(1) << np.uint64(num_inputs)
                num_inputs += 1
            begin += 1
        _follow_inputs(net, work, s, high)
        num_left = 0
        for e in work.doubtful[:num_doubtful]:
            if work.after[net.src[e]] & work.by_way[net.dst[e]]:
                work.cut[num_cut] = e
                num_cut += 1
            else:
                work.doubtful[num_left] = e
                num_left += 1
        num_doubtful = num_left
    return num_cut


@inner
def _follow_inputs(net: Net, work: Workspace, s: int, high: int) -> None:
    """Pass the bits of inputs on to all nodes that depend on them up to ``high``, the last node of submodel s."""
    parts, reach, by_way = work.parts, work.after, work.by_way
    for v in range(s, high + 1):
        is_entrance = parts.label[v] == s and work.least[v] > INPUTS
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
def open_rings(net: Net, work: Workspace) -> None:
    """Cut one node at a time from its predecessors in its submodel, until no submodels wait for each other.

    The node of least rank on any ring goes first. Only the ring that it was on is looked at again.
    """
    parts, rings = work.parts, work.rings
    num = 0
    for s in range(len(work.chosen)):
        if parts.size[s]:
            work.chosen[num] = s
            num += 1
    link_edges(net, parts, rings, ZERO, len(work.chosen))
    if not find_rings(net, parts, rings, work.chosen[:num]):
        return
    work.ranks[:] = NO_RANK
    for v in range(len(work.chosen)):
        _rerank(net, parts, rings.ring, v, work.ranks)
    while work.ranks[1] != NO_RANK:
        v = work.ranks[1] & ((1 << NODE_BITS) - 1)
        for s in work.changed[: _isolate(net, work, v)]:
            for u in parts.group[parts.start[s] : parts.start[s] + parts.size[s]]:
                _rerank(net, parts, rings.ring, u, work.ranks)
                for i in range(net.out_first[u], net.out_first[u + 1]):
                    _rerank(net, parts, rings.ring, net.dst[net.out_edge[i]], work.ranks)


@inner
def _isolate(net: Net, work: Workspace, v: int) -> int:
    """Cut v from the nodes of its submodel that it reads; return how many submodels in ``changed`` are new or freed."""
    parts, rings = work.parts, work.rings
    s = parts.label[v]
    for e in range(net.first[v], net.first[v + 1]):
        parts.boundary[e] = True
    start, size = parts.start[s], parts.size[s]
    num_on_ring = num = 0
    other = rings.ring[s]
    while other >= 0:
        if other != s:
            work.chosen[num_on_ring] = other
            num_on_ring += 1
        other = rings.following[other]
    num_others = num_on_ring
    regroup(net, parts, work.members, start, size)
    link_edges(net, parts, rings, start, size)
    k = start
    while k < start + size:
        work.changed[num] = work.chosen[num_on_ring] = parts.group[k]
        num, num_on_ring = num + 1, num_on_ring + 1
        k += parts.size[parts.group[k]]
    find_rings(net, parts, rings, work.chosen[:num_on_ring])
    for other in work.chosen[:num_others]:
        if rings.ring[other] == NO_CYCLE:
            work.changed[num] = other
            num += 1
    return num


@inner
def _rerank(net: Net, parts: Split, ring: IntArray, v: int, ranks: IntArray) -> None:
    """Update the rank of v in the tree; ``ranks[i]`` is the lesser of ``ranks[2 * i]`` and ``ranks[2 * i + 1]``."""
    i = v + len(ranks) // 2
    rank = _rank(net, parts, ring, v)
    while i and ranks[i] != rank:
        ranks[i] = rank
        rank = min(rank, ranks[i ^ 1]) if i > 1 else rank
        i //= 2


@inner
def _rank(net: Net, parts: Split, ring: IntArray, v: int) -> int:
    """Return the rank of v; HETERO isolates the node of least rank. NO_RANK if isolating v changes or opens nothing.

    Ranks prefer nodes that read another submodel on a ring, then readers of results with several readers, then nodes
    that read no leaf, then nodes that are more than one link of a chain; then few inputs, then an early place.
    """
    if ring[parts.label[v]] < 0:
        return NO_RANK
    on_ring = shared = leaf = False
    count = 0
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
