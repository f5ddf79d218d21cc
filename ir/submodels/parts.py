"""The nodes of a model as HETERO sees it, their split into submodels, and submodels that wait for each other, compiled.

Legend: M nodes in topological order, K edges in the order of the input ports of the nodes that read them.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from hsdag.ir.graph import BoolArray, IntArray

NO_CYCLE, UNKNOWN = -1, -2


class Net(NamedTuple):
    """The nodes of a model as HETERO sees it: every reader of a floating op has copies of its own."""

    first: IntArray  # [M + 1] the edges into v are first[v]:first[v + 1]
    src: IntArray  # [K]
    dst: IntArray  # [K]
    out_first: IntArray  # [M + 1]
    out_edge: IntArray  # [K] edges by the node they leave
    floats: BoolArray  # [M] constants, and ops computed only from constants
    is_input: BoolArray  # [M] Parameters and Constants
    is_alone: BoolArray  # [K] whether no other edge carries the same tensor
    num_readers: IntArray  # [M] edges that leave, those to Results not counted
    is_leaf: BoolArray  # [M] reads graph inputs alone, and has one reader


class Parts(NamedTuple):
    """A split. The nodes of submodel s are ``group[start[s]:start[s] + size[s]]`` in order; s is the first of them."""

    label: IntArray  # [M]
    boundary: BoolArray  # [K]
    group: IntArray  # [M]
    start: IntArray  # [M]
    size: IntArray  # [M]


class Rings(NamedTuple):
    """Submodels that wait for each other, and scratch to find them; all by submodel."""

    ring: IntArray  # [M] a name for the ring that it is on, or NO_CYCLE, or UNKNOWN
    following: IntArray  # [M] the next submodel of the same ring, -1 after the last; the name is the first
    opened: IntArray  # [M] when it was opened
    lowest: IntArray  # [M] the earliest opened one that it leads back to
    at: IntArray  # [M] the node, as its place in ``group``, and the edge to look at next
    at_edge: IntArray  # [M]


@numba.njit(cache=True, nogil=True)
def regroup(net: Net, parts: Parts, start: int, count: int) -> None:
    """Join again the nodes that edges other than boundaries join, among the ``count`` nodes of a submodel, or all."""
    label = parts.label
    members = parts.group[start : start + count].copy()
    for v in members:
        label[v] = v
    for v in members:
        for e in range(net.first[v], net.first[v + 1]):
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
        parts.size[v] = 0
    for v in members:
        parts.size[label[v]] += 1
    end = start
    for v in members:
        if label[v] == v:
            parts.start[v] = end
            end += parts.size[v]
            parts.size[v] = 0
    for v in members:
        s = label[v]
        parts.group[parts.start[s] + parts.size[s]] = v
        parts.size[s] += 1


@numba.njit(cache=True, nogil=True)
def find_rings(net: Net, parts: Parts, rings: Rings, submodels: IntArray) -> None:
    """Give submodels [S] whose ring is UNKNOWN its name, NO_CYCLE where they wait for no one that waits for them.

    R. Tarjan, "Depth-first search and linear graph algorithms", 1972, without recursion.
    """
    calls, waiting = np.zeros(len(submodels), dtype=np.int64), np.zeros(len(submodels), dtype=np.int64)
    rings.opened[submodels] = -1
    depth, num_waiting, clock = 0, 0, 0
    for root in submodels:
        s = root if rings.opened[root] < 0 else -1
        while s >= 0 or depth:
            if s >= 0:
                rings.opened[s] = rings.lowest[s] = clock
                rings.at[s], rings.at_edge[s] = parts.start[s], net.out_first[s]
                calls[depth], waiting[num_waiting] = s, s
                clock, depth, num_waiting = clock + 1, depth + 1, num_waiting + 1
            s = calls[depth - 1]
            t = _next_reader(net, parts, rings, s)
            if t < 0:
                num_waiting = _close(rings, s, waiting, num_waiting)
                depth -= 1
                if depth:
                    parent = calls[depth - 1]
                    rings.lowest[parent] = min(rings.lowest[parent], rings.lowest[s])
            elif rings.opened[t] >= 0:
                rings.lowest[s] = min(rings.lowest[s], rings.opened[t])
                t = -1
            s = t


@numba.njit(cache=True, nogil=True)
def _close(rings: Rings, s: int, waiting: IntArray, num_waiting: int) -> int:
    """Name the ring that s closes, if it does; how many submodels wait then."""
    if rings.lowest[s] != rings.opened[s]:
        return num_waiting
    if waiting[num_waiting - 1] == s:
        rings.ring[s] = NO_CYCLE
        return num_waiting - 1
    previous = -1
    while previous != s:
        num_waiting -= 1
        other = waiting[num_waiting]
        rings.ring[other], rings.following[other] = s, previous
        previous = other
    return num_waiting


@numba.njit(cache=True, nogil=True)
def _next_reader(net: Net, parts: Parts, rings: Rings, s: int) -> int:
    """The next submodel that reads s, of those whose ring is still unknown; -1 when all were looked at."""
    end = parts.start[s] + parts.size[s]
    while rings.at[s] < end:
        v = parts.group[rings.at[s]]
        while rings.at_edge[s] < net.out_first[v + 1]:
            t = parts.label[net.dst[net.out_edge[rings.at_edge[s]]]]
            rings.at_edge[s] += 1
            if t != s and rings.ring[t] == UNKNOWN:
                return int(t)
        rings.at[s] += 1
        if rings.at[s] < end:
            rings.at_edge[s] = net.out_first[parts.group[rings.at[s]]]
    return -1
