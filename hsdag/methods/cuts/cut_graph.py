"""Model sequential execution as a cut graph, and find the best set of ops to move to one device by a minimum cut.

Costs are op times, transfers of results that leave their device, and changes of device. An op on the source's side
stays where it is, one on the sink's side moves. A transfer is a directed hyperedge: one node per result, direction and
size (P. Kohli et al., "Robust higher order potentials for enforcing label consistency", 2009; V. Kolmogorov and R.
Zabih, "What energy functions can be minimized via graph cuts?", 2004). A change of device between consecutive ops is an
arc between them. The cut is found as a maximum flow.

Legend: N ops, D devices, Q results, R pairs of a result and an op that reads it, A arcs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from ortools.graph.python.max_flow import SimpleMaxFlow

from hsdag.base.kernels import bare, kernel, run_few
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

TOTAL_BITS = 59
"""Capacities are whole ticks whose sum is below 2 to this power, so that flows fit 64 bits."""

FREE, STAYS, MOVES = 0, 1, 2

MOVES_OF_PAIR = 5.0
"""Approximate number of moves that a search computes per ordered pair of devices."""


class Launches(Enum):
    """What launch costs are charged to."""

    RUNS = "runs"  # every maximal run of consecutive ops on one device, in topological order, as in the simulator
    TRANSFERS = "transfers"  # every transfer, on the device that receives it
    NOTHING = "nothing"


class BoundaryCosts(NamedTuple):
    """Costs of a placement in sequential execution.

    Result q is produced by op ``source[q]``, ascending; its readers are ``reader[first[q]:first[q + 1]]``, each once,
    those that need most bytes first. A result is sent once to every other device with a reader, at the largest size
    read there, for ``latency_s[home, away] + size / bandwidth``. An op costs ``change_s`` of its device if the previous
    op in ``order`` is on another one. ``constant_s`` does not depend on the placement.
    """

    time_s: FloatArray  # [N, D], infinite where a device does not support an op; the first op includes its launch
    first: IntArray  # [Q + 1]
    source: IntArray  # [Q]
    reader: IntArray  # [R]
    size_bytes: FloatArray  # [R]
    latency_s: FloatArray  # [D, D]
    s_per_byte: FloatArray  # [D, D]
    order: IntArray  # [N] ops in the order in which they run
    change_s: FloatArray  # [D]
    constant_s: float

    @staticmethod
    def of(problem: ScheduleProblem, launches: Launches = Launches.RUNS) -> BoundaryCosts:
        """Return the costs of a problem.

        With launches charged to runs, they equal those of the simulator except for egress links.
        """
        first, source, reader, size_bytes = readers(problem)
        time_s = np.where(problem.supported, problem.time_s, np.inf)
        latency_s = problem.link_latency_s + problem.transfer_overhead_s
        if launches is Launches.TRANSFERS:
            latency_s = latency_s + problem.launch_s[None, :]
        if launches is Launches.RUNS:
            time_s[problem.topological_order[0]] += problem.launch_s
        off = ~np.eye(problem.num_devices, dtype=np.bool_)
        inverse = np.zeros_like(latency_s)
        inverse[off] = 1.0 / problem.link_bandwidth_bytes_per_s[off]
        return BoundaryCosts(
            time_s=time_s,
            first=first,
            source=source,
            reader=reader,
            size_bytes=size_bytes,
            latency_s=np.where(off, latency_s, 0.0),
            s_per_byte=inverse,
            order=problem.topological_order,
            change_s=problem.launch_s * (launches is Launches.RUNS),
            constant_s=problem.op_overhead_s * (problem.num_ops - 1),
        )

    @property
    def num_ops(self) -> int:
        """Return the number of ops, N."""
        return len(self.time_s)

    @property
    def num_devices(self) -> int:
        """Return the number of devices, D."""
        return int(self.time_s.shape[1])

    @property
    def steps_of_search(self) -> float:
        """Return the approximate number of times that a search looks at an op or a reader."""
        return MOVES_OF_PAIR * (self.num_ops + len(self.reader)) * self.num_devices**2

    def scaled(self, factor: float) -> BoundaryCosts:
        """Return the costs with transfers and changes of device multiplied by ``factor``."""
        return self._replace(
            latency_s=factor * self.latency_s,
            s_per_byte=factor * self.s_per_byte,
            change_s=factor * self.change_s,
        )

    def cost_s(self, placement: IntArray) -> float:
        """Return the seconds that a placement [N] takes; infinite if an op is not supported."""
        work_s = float(self.time_s[np.arange(self.num_ops), placement].sum())
        reached = np.full(self.num_devices, -1, dtype=np.int64)
        table = np.ascontiguousarray(placement, dtype=np.int64)
        sent_s = run_few(_all_sent_s, self.steps_of_search, self, table, reached)
        line = placement[self.order]
        changes_s = float(self.change_s[line[1:][line[1:] != line[:-1]]].sum())
        return self.constant_s + work_s + float(sent_s) + changes_s


def readers(problem: ScheduleProblem) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """Return the readers of each result: [Q + 1] first positions, [Q] producers, [R] readers, [R] bytes they need.

    If several edges lead from a result to one op, the largest counts, as in the simulator.
    """
    dst, size = problem.edge_dst, problem.edge_bytes
    source, result = np.unique(np.stack([problem.edge_src, problem.edge_port]), axis=1, return_inverse=True)
    result = result.reshape(-1)
    order = np.lexsort((-size, dst, result))
    kept = np.ones(len(order), dtype=np.bool_)
    kept[1:] = (result[order][1:] != result[order][:-1]) | (dst[order][1:] != dst[order][:-1])
    order = order[kept]
    order = order[np.lexsort((dst[order], -size[order], result[order]))]
    first = np.searchsorted(result[order], np.arange(source.shape[1] + 1)).astype(np.int64)
    return first, source[0].copy(), dst[order].astype(np.int64), size[order].astype(np.float64)


@bare
def _all_sent_s(t: BoundaryCosts, placement: IntArray, reached: IntArray) -> float:
    """Return the seconds of all transfers."""
    total_s = 0.0
    for q in range(len(t.source)):
        home = placement[t.source[q]]
        for k in range(t.first[q], t.first[q + 1]):  # the first reader on a device needs the most bytes
            away = placement[t.reader[k]]
            if away != home and reached[away] != q:
                reached[away] = q
                total_s += t.latency_s[home, away] + t.size_bytes[k] * t.s_per_byte[home, away]
    return total_s


@dataclass(frozen=True, eq=False)
class BestMove:
    """The best move of a set of ops: the placement [N] after it, and a lower bound for all such moves.

    ``bound_s`` is the cut in ticks rounded down; it is below the optimum by less than a tick for each arc.
    """

    placement: IntArray
    bound_s: float


def best_move(costs: BoundaryCosts, placement: IntArray, target: int) -> BestMove | None:
    """Return the cheapest placement that differs from ``placement`` [N] only by ops moved to device ``target``.

    An op that its device does not support must move, one that ``target`` does not support must stay; None if both hold
    for some op. Of equally good moves the one with fewest ops is taken. The result is exact if sending a result to a
    device costs the same from everywhere, as always holds for two devices. Otherwise costs after a move may be
    overestimated, never underestimated; those of staying are exact.
    """
    ops = np.arange(costs.num_ops)
    stay_s, go_s, along_s = _changes(costs, placement, target)
    if (np.isinf(stay_s) & np.isinf(go_s)).any():
        return None
    fate = np.full(costs.num_ops, FREE, dtype=np.int64)
    fate[np.isinf(go_s)] = STAYS
    fate[np.isinf(stay_s) | (placement == target)] = MOVES
    source, sink = costs.num_ops, costs.num_ops + 1
    node = np.where(fate == FREE, ops, np.where(fate == STAYS, source, sink))
    arcs = _hyperedges(costs, placement, target, node)
    free = np.flatnonzero(fate == FREE)
    gain_s = stay_s[free] - go_s[free]
    stays, goes = free[gain_s < 0], free[gain_s > 0]
    line = node[costs.order]
    dear = np.flatnonzero((along_s > 0) & (line[:-1] != line[1:]))
    tails = np.concatenate([arcs.tail, np.full(len(stays), source), goes, line[dear]])
    heads = np.concatenate([arcs.head, stays, np.full(len(goes), sink), line[dear + 1]])
    capacities_s = np.concatenate([arcs.capacity_s, -gain_s[gain_s < 0], gain_s[gain_s > 0], along_s[dear]])
    total_s = float(arcs.weight_s[0]) + float(np.abs(gain_s).sum()) + float(along_s.sum())
    tick_s = float(2.0 ** (np.ceil(np.log2(total_s)) - TOTAL_BITS)) if total_s > 0 else 1.0  # a power of two is exact
    flow_s, moved = _cut(tails, heads, capacities_s, tick_s, source, sink)
    away = (node == sink) | np.isin(ops, moved[moved < costs.num_ops])
    fixed_s = np.where(fate == STAYS, stay_s, np.where(fate == MOVES, go_s, np.minimum(stay_s, go_s)))
    bound_s = costs.constant_s + float(fixed_s.sum()) + flow_s
    return BestMove(np.where(away, target, placement).astype(np.int64), bound_s)


def pair_cut(costs: BoundaryCosts, one: int, other: int) -> BestMove | None:
    """Return the optimal placement on two devices by a minimum s-t cut, or None if some op runs on neither.

    Ties go to device ``one``.
    """
    return best_move(costs, np.full(costs.num_ops, one, dtype=np.int64), other)


def _changes(costs: BoundaryCosts, placement: IntArray, target: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return seconds of each op if it stays [N], if it moves [N], and of staying before an op that moves [N - 1].

    Consecutive ops in ``order`` have a cost for each choice of which of them moves. The costs of both and of neither
    moving add up to no more than those of one or the other moving; hence they can be expressed by a cost of each op and
    an arc (Kolmogorov and Zabih, section 4.1).
    """
    stay_s, go_s = costs.time_s[np.arange(costs.num_ops), placement], costs.time_s[:, target].copy()
    before, after = costs.order[:-1], costs.order[1:]
    a, b = placement[before], placement[after]
    none_s = np.where(a != b, costs.change_s[b], 0.0)
    first_s = np.where(b != target, costs.change_s[b], 0.0)
    stay_s[before] += none_s
    go_s[before] += first_s
    go_s[after] -= first_s
    return stay_s, go_s, first_s + np.where(a != target, costs.change_s[target], 0.0) - none_s


def _cut(
    tail: IntArray, head: IntArray, capacity_s: FloatArray, tick_s: float, source: int, sink: int
) -> tuple[float, IntArray]:
    """Return the seconds of the minimum cut, and the nodes on the sink's side."""
    flow = SimpleMaxFlow()
    ticks = np.floor(capacity_s / tick_s).astype(np.int64)
    flow.add_arc_with_capacity(source, sink, 0)  # makes both nodes exist, whatever the other arcs
    flow.add_arcs_with_capacity(tail.astype(np.int32), head.astype(np.int32), ticks)
    status = flow.solve(source, sink)
    assert status == flow.OPTIMAL, status
    return float(flow.optimal_flow()) * tick_s, np.asarray(flow.get_sink_side_min_cut(), dtype=np.int64)


class _Arcs(NamedTuple):
    """Buffers for arcs, and how many are used."""

    tail: IntArray  # [A]
    head: IntArray  # [A]
    capacity_s: FloatArray  # [A]
    counts: IntArray  # [2] numbers of arcs and of nodes
    weight_s: FloatArray  # [1] sum of the costs of all hyperedges


class _Hyperedge(NamedTuple):
    """A hyperedge, cut if its hub is on the source's side and a member on the sink's (``forward``), or vice versa."""

    hub: int
    forward: bool
    fixed_s: float
    slope_s: float


def _hyperedges(costs: BoundaryCosts, placement: IntArray, target: int, node: IntArray) -> _Arcs:
    """Return the arcs of transfer costs; ``node`` [N] is each op's node, or the source or sink."""
    room = 9 * len(costs.reader)
    arcs = _Arcs(
        np.empty(room, dtype=np.int64),
        np.empty(room, dtype=np.int64),
        np.empty(room),
        np.array([0, costs.num_ops + 2]),
        np.zeros(1),
    )
    members = np.empty(int(np.diff(costs.first).max(initial=0)), dtype=np.int64)
    done = np.full(costs.num_devices, -1, dtype=np.int64)
    table = np.ascontiguousarray(placement, dtype=np.int64)
    run_few(_add_all, costs.steps_of_search, arcs, costs, table, target, node, members, done)
    n = int(arcs.counts[0])
    return arcs._replace(tail=arcs.tail[:n], head=arcs.head[:n], capacity_s=arcs.capacity_s[:n])


@kernel
def _add_all(
    arcs: _Arcs, t: BoundaryCosts, placement: IntArray, target: int, node: IntArray, members: IntArray, done: IntArray
) -> None:
    """Add the transfers of every result q of op v, to ``target`` and to each device d with readers.

    If v may move, a transfer to d costs what it does now as long as a reader there stays; if v moves, add the
    difference of the cost from ``target``, at least 0. ``members`` and ``done`` [D] are scratch memory.
    """
    source, sink = len(placement), len(placement) + 1
    for q in range(len(t.source)):
        v = t.source[q]
        home = target if node[v] == sink else placement[v]
        if home != target:
            some = _members(t, q, -1, source, placement, node, members)
            _add(arcs, t, _Hyperedge(node[v], True, t.latency_s[home, target], t.s_per_byte[home, target]), some, node)
        for k in range(t.first[q], t.first[q + 1]):
            d = placement[t.reader[k]]
            if d == target or done[d] == q:
                continue
            done[d] = q
            some = _members(t, q, d, sink, placement, node, members)
            fixed_s, slope_s = t.latency_s[target, d], t.s_per_byte[target, d]
            if d != home:
                now_s, now_slope_s = t.latency_s[home, d], t.s_per_byte[home, d]
                _add(arcs, t, _Hyperedge(sink, False, now_s, now_slope_s), some, node)
                fixed_s, slope_s = fixed_s - now_s, slope_s - now_slope_s
            if home != target and node[v] != source:
                _add(arcs, t, _Hyperedge(node[v], False, fixed_s, slope_s), some, node)


@kernel
def _members(
    t: BoundaryCosts, q: int, device: int, but: int, placement: IntArray, node: IntArray, members: IntArray
) -> IntArray:
    """Return the slots of readers of q on a device (-1 for all devices) whose node is not ``but``."""
    count = 0
    for k in range(t.first[q], t.first[q + 1]):
        u = t.reader[k]
        if node[u] != but and (device < 0 or placement[u] == device):
            members[count] = k
            count += 1
    return members[:count]


@kernel
def _add(arcs: _Arcs, t: BoundaryCosts, edge: _Hyperedge, members: IntArray, node: IntArray) -> None:
    """Add a hyperedge that costs as much as its most expensive cut member; members are sorted by size, largest first.

    A member costs ``fixed_s + slope_s * size``, but no less than smaller members. Each size has a node, joined to that
    of the next larger size; a single member needs none.
    """
    larger, i = -1, 0
    num = len(members)
    least_s = 0.0 if num == 0 else max(0.0, edge.fixed_s + edge.slope_s * t.size_bytes[members[-1]])
    while i < num:
        size = t.size_bytes[members[i]]
        j = i
        while j < num and t.size_bytes[members[j]] == size:
            j += 1
        cost_s = max(least_s, edge.fixed_s + edge.slope_s * size)
        below_s = 0.0 if j == num else max(least_s, edge.fixed_s + edge.slope_s * t.size_bytes[members[j]])
        center = node[t.reader[members[i]]] if num == 1 else arcs.counts[1]
        _arc(arcs, edge.hub, center, cost_s - below_s, edge.forward)
        arcs.weight_s[0] += cost_s - below_s
        if larger >= 0:
            _arc(arcs, center, larger, cost_s, edge.forward)
        if num > 1:
            arcs.counts[1] += 1
            for k in range(i, j):
                _arc(arcs, center, node[t.reader[members[k]]], cost_s, edge.forward)
        larger, i = center, j


@kernel
def _arc(arcs: _Arcs, a: int, b: int, cost_s: float, forward: bool) -> None:
    """Add an arc from a to b, or from b to a unless ``forward``."""
    if cost_s > 0.0 and a != b:
        n = arcs.counts[0]
        arcs.tail[n], arcs.head[n] = (a, b) if forward else (b, a)
        arcs.capacity_s[n] = cost_s
        arcs.counts[0] = n + 1
