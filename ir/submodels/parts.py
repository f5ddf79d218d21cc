"""The nodes of a model as HETERO sees them, a split into submodels, and submodels that wait for each other, compiled.

Nothing here allocates: all arrays come from ``Room``, so that a split takes no longer than its work.

Legend: M nodes that run on data, in topological order; F constants and what is computed from constants, numbered from M
on; K edges into the M nodes, into each of them first those from other such nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hsdag.ir.compiled import bare, inner
from hsdag.ir.graph import BoolArray, IntArray

NO_CYCLE, UNKNOWN = -1, -2


class Net(NamedTuple):
    """The nodes of a model as HETERO sees it: every reader of a constant has a copy of its own."""

    first: IntArray  # [M + 1] the edges into v are first[v]:first[v + 1]
    constant: IntArray  # [M] those from constants are constant[v]:first[v + 1]
    src: IntArray  # [K]
    dst: IntArray  # [K]
    out_first: IntArray  # [M + 1]
    out_edge: IntArray  # edges between the M nodes by the node they leave
    is_alone: BoolArray  # [K] whether no other edge carries the same tensor
    is_input: BoolArray  # [M + F] Parameters and Constants
    num_readers: IntArray  # [M + F] edges that leave, those to Results not counted
    is_leaf: BoolArray  # [M + F] reads graph inputs alone, and has one reader
    is_source: BoolArray  # [M] reads nothing but constants, or is a Parameter


class Parts(NamedTuple):
    """A split. The nodes of submodel s are ``group[start[s]:start[s] + size[s]]`` in order; s is the first of them."""

    label: IntArray  # [M]
    boundary: BoolArray  # [K]
    group: IntArray  # [M]
    start: IntArray  # [M]
    size: IntArray  # [M]


class Rings(NamedTuple):
    """Submodels that wait for each other, and scratch to find them; all by submodel but ``link`` and the stacks."""

    ring: IntArray  # [M] a name for the ring that it is on, or NO_CYCLE, or UNKNOWN
    following: IntArray  # [M] the next submodel of the same ring, -1 after the last; the name is the first
    opened: IntArray  # [M] when it was opened
    lowest: IntArray  # [M] the earliest opened one that it leads back to
    head: IntArray  # [M] an edge that leaves it, or -1
    link: IntArray  # [K] the next edge that leaves the same submodel, or -1
    at_edge: IntArray  # [M] the edge to look at next
    calls: IntArray  # [M] a stack
    waiting: IntArray  # [M] another


class Room(NamedTuple):
    """What a split fills and needs, for one thread; what it finds is in ``parts``."""

    parts: Parts
    rings: Rings
    members: IntArray  # [M] scratch of ``regroup``
    chosen: IntArray  # [M] submodels to look at
    changed: IntArray  # [M] those to look at next
    after: NDArray[np.uint64]  # [M] whose results a node depends on, one bit for each of 64 submodels
    by_way: NDArray[np.uint64]  # [M] the same, of those by way of another submodel
    slot: IntArray  # [M] the bit of a submodel, or less than 0
    returned: BoolArray  # [M] whether a node depends on a result that left its submodel
    above: NDArray[np.int8]  # [M] what leads into its submodel above a node
    least: NDArray[np.int8]  # [M] the same, of constants that were cut off
    cut: IntArray  # [K] edges
    doubtful: IntArray  # [K] edges
    ranks: IntArray  # [2 M] a tournament of the nodes that may be isolated

    @staticmethod
    def of(net: Net) -> Room:
        """Room to split the net."""
        m, k = len(net.constant), len(net.src)

        def ints(size: int) -> IntArray:
            return np.zeros(size, dtype=np.int64)

        return Room(
            Parts(ints(m), np.zeros(k, dtype=np.bool_), ints(m), ints(m), ints(m)),
            Rings(ints(m), ints(m), ints(m), ints(m), ints(m), ints(k), ints(m), ints(m), ints(m)),
            members=ints(m),
            chosen=ints(m),
            changed=ints(m),
            after=np.zeros(m, dtype=np.uint64),
            by_way=np.zeros(m, dtype=np.uint64),
            slot=ints(m),
            returned=np.zeros(m, dtype=np.bool_),
            above=np.zeros(m, dtype=np.int8),
            least=np.zeros(m, dtype=np.int8),
            cut=ints(k),
            doubtful=ints(k),
            ranks=ints(2 * m),
        )


@inner
def regroup(net: Net, parts: Parts, scratch: IntArray, start: int, count: int) -> None:
    """Join again the nodes that edges other than boundaries join, among the ``count`` nodes of a submodel, or all."""
    label = parts.label
    members = scratch[:count]
    for i in range(count):
        v = parts.group[start + i]
        members[i], label[v], parts.size[v] = v, v, 0
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
def link_edges(net: Net, parts: Parts, rings: Rings, start: int, count: int) -> None:
    """List the edges that leave each of the submodels whose nodes are the ``count`` from ``start`` on."""
    for v in parts.group[start : start + count]:
        s = parts.label[v]
        if s == v:
            rings.head[v] = -1
        for i in range(net.out_first[v], net.out_first[v + 1]):
            e = net.out_edge[i]
            if parts.boundary[e] and parts.label[net.dst[e]] != s:
                rings.link[e], rings.head[s] = rings.head[s], e


@inner
def find_rings(net: Net, parts: Parts, rings: Rings, submodels: IntArray) -> None:
    """Find which ring each of the submodels [S] is on; NO_CYCLE where it waits for none that waits for it.

    Others are left out. R. Tarjan, "Depth-first search and linear graph algorithms", 1972, without recursion.
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


@inner
def any_on_ring(rings: Rings, submodels: IntArray) -> bool:
    """Whether one of the submodels [S] waits for another that waits for it."""
    found = False
    for s in submodels:
        found = found or rings.ring[s] >= 0
    return found


@bare
def _close(rings: Rings, s: int, num_waiting: int) -> int:
    """Name the ring that s closes, if it does; how many submodels wait then."""
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
def _next_reader(net: Net, parts: Parts, rings: Rings, s: int) -> int:
    """The next submodel that reads s, of those whose ring is still unknown; -1 when all were looked at."""
    while rings.at_edge[s] >= 0:
        t: int = parts.label[net.dst[rings.at_edge[s]]]
        rings.at_edge[s] = rings.link[rings.at_edge[s]]
        if rings.ring[t] == UNKNOWN:
            return t
    return -1
