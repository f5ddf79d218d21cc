"""Where a graph splits: pivots (single channel), k-edge-connected components and thin cuts (several channels).

Legend: N ops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_flow

from hsdag.ir.errors import OptionError
from hsdag.ir.graph import FloatArray, IntArray, inverse_of
from hsdag.ir.partition import Partition
from hsdag.placers.exact.formulation import Formulation

FLOWS_UP_TO = 400
"""Ops up to which k-edge-connected components are computed: one maximum flow for each."""


@dataclass(frozen=True)
class CutRules:
    """How modules should be. Raises OptionError for no channels or no ops."""

    most_channels: int = 4
    """Results that cross a cut at most, but where no other cut is found."""
    usual_ops: int = 16
    """Ops of a module from which on the narrowest cut is looked for,"""
    most_ops: int = 40
    """and up to which."""

    def __post_init__(self) -> None:
        if self.most_channels < 1 or not 1 <= self.usual_ops <= self.most_ops:
            raise OptionError("modules take most_channels of at least 1, and 1 <= usual_ops <= most_ops")


def pivots(f: Formulation) -> list[int]:
    """Ops behind which the graph is cut by one channel, in order.

    Such an op is an ancestor or a descendant of every other, and every edge from before it to behind it begins at it:
    an articulation point, or the head of a bridge, of a graph all of whose paths go through it.
    """
    n = f.problem.num_ops
    num_before = f.reach.sum(axis=0)
    comparable = np.flatnonzero(num_before + f.reach.sum(axis=1) == n - 1)
    farthest = np.zeros(n + 1, dtype=np.int64)  # by number of ancestors: how far edges from there lead
    np.maximum.at(farthest, num_before[f.problem.edge_src], num_before[f.problem.edge_dst])
    furthest = np.maximum.accumulate(farthest)
    found = []
    for o in comparable[np.argsort(num_before[comparable], kind="stable")].tolist():
        k = int(num_before[o])
        if k == 0 or furthest[k - 1] <= k:
            found.append(o)
    return found


def edge_connected_components(num_ops: int, edges: list[tuple[int, int]], k: int) -> IntArray:
    """[N] component of each op: two ops share one where no cut of fewer than k edges parts them (undirected).

    By the flows of Gusfield's equivalent tree (SIAM J. Comput. 19(1), 1990): N - 1 maximum flows.
    """
    pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    capacity = csr_array((np.ones(len(both), dtype=np.int32), (both[:, 0], both[:, 1])), shape=(num_ops, num_ops))
    capacity.sum_duplicates()
    parent, flow = np.zeros(num_ops, dtype=np.int64), np.zeros(num_ops, dtype=np.int64)
    for s in range(1, num_ops):
        result = maximum_flow(capacity, s, int(parent[s]))
        flow[s] = result.flow_value
        residual = csr_array(capacity - result.flow)
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        side = breadth_first_order(residual, s, return_predecessors=False)
        later = side[side > s]
        parent[later[parent[later] == parent[s]]] = s
    kept = np.flatnonzero(flow[1:] >= k) + 1
    tree = csr_array((np.ones(len(kept)), (kept, parent[kept])), shape=(num_ops, num_ops))
    return np.asarray(connected_components(tree, directed=False)[1], dtype=np.int64)


def modules(f: Formulation, rules: CutRules | None = None) -> list[IntArray]:
    """The ops as a sequence of modules: edges lead forward, and few results cross from one to the next.

    Ops that no thin cut can part (k-edge-connected, k one more than the channels) are one; what is left is laid out
    in a line, always taking on what keeps the fewest results open, and cut where few cross, at usual sizes.
    """
    rules = rules or CutRules()
    n, edges = f.problem.num_ops, list(f.edges)
    block = np.arange(n)
    if 2 < n <= FLOWS_UP_TO and edges:
        block = edge_connected_components(n, edges, rules.most_channels + 1)
    block = _without_cycles(edges, block, rules.most_ops)
    line = _line(f, block)
    ends = np.flatnonzero(np.append(block[line][1:] != block[line][:-1], True)) + 1
    return _cut(line, ends.tolist(), _crossing(f, line), rules)


def _without_cycles(edges: list[tuple[int, int]], block: IntArray, most_ops: int) -> IntArray:
    """Blocks whose quotient has no cycles; those too large for a module are given up."""
    blocks, pairs = Partition.from_labels(block), np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    merged = Partition.from_labels(blocks.cycles(pairs[:, 0], pairs[:, 1])[blocks.labels]).labels
    return merged if np.bincount(merged).max(initial=0) <= most_ops else np.arange(len(block))


def _line(f: Formulation, block: IntArray) -> IntArray:
    """All ops in a topological order that goes block by block and keeps few results open."""
    n = f.problem.num_ops
    position = inverse_of(f.problem.topological_order)
    members: list[list[int]] = [[] for _ in range(int(block.max()) + 1)] if n else []
    for v in f.problem.topological_order.tolist():
        members[block[v]].append(v)
    inputs: list[set[int]] = [set() for _ in members]  # ops of other blocks that a block reads
    readers: dict[int, set[int]] = {}
    for u, v in f.edges:
        if block[u] != block[v]:
            inputs[block[v]].add(u)
            readers.setdefault(u, set()).add(int(block[v]))
    waiting = [len(needed) for needed in inputs]
    left = {u: len(blocks) for u, blocks in readers.items()}
    ready = [b for b, w in enumerate(waiting) if not w]
    line: list[int] = []
    laid: dict[int, int] = {}

    def rank(b: int) -> tuple[int, int, int]:
        opened = sum(u in readers for u in members[b]) - sum(left[u] == 1 for u in inputs[b])
        return opened, -max((laid[u] for u in inputs[b]), default=-1), int(position[members[b][0]])

    while ready:
        b = min(ready, key=rank)
        ready.remove(b)
        for u in members[b]:
            laid[u] = len(line)
            line.append(u)
        for u in inputs[b]:
            left[u] -= 1
        for u in members[b]:
            for c in sorted(readers.get(u, ())):
                waiting[c] -= 1
                if not waiting[c]:
                    ready.append(c)
    return np.asarray(line, dtype=np.int64)


def _crossing(f: Formulation, line: IntArray) -> FloatArray:
    """[N + 1] results that cross before each place of a line."""
    p, n, place = f.problem, len(line), inverse_of(line)
    last = np.full(n, -1, dtype=np.int64)
    np.maximum.at(last, p.edge_src, place[p.edge_dst])
    begins, ends = place[last >= 0] + 1, last[last >= 0] + 1
    change = np.bincount(begins, minlength=n + 1) - np.bincount(ends, minlength=n + 1)
    return np.asarray(np.cumsum(change)[: n + 1], dtype=np.float64)


def _cut(line: IntArray, ends: list[int], crossing: FloatArray, rules: CutRules) -> list[IntArray]:
    """The cheapest cuts: a cut costs the square of what crosses, a module that of its size beyond the usual one."""
    at = [0, *ends]
    cheapest, previous = [0.0] + [np.inf] * len(ends), [0] * len(at)
    for j in range(1, len(at)):
        for i in range(j - 1, -1, -1):
            size = at[j] - at[i]
            if size > rules.most_ops and i < j - 1:
                break
            thick = max(crossing[at[j]] - rules.most_channels, 0.0) * 10
            cost = cheapest[i] + 4 * max(size / rules.usual_ops, 1.0) ** 2 + crossing[at[j]] ** 2 + thick
            if cost < cheapest[j]:
                cheapest[j], previous[j] = cost, i
    found, j = [], len(at) - 1
    while j:
        found.append(line[at[previous[j]] : at[j]])
        j = previous[j]
    return found[::-1]
