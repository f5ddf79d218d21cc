"""PipelinePlacer: contiguous stages over the devices, balanced or in turn; see docs/exact.md.

Stages: the balanced, or the quickest, partition of a line of ops over devices, by dynamic programming.

Every stage is a run of ops that follow each other in topological order, on one device; a device may stay empty. The
load of a stage is its ops, a launch, and the transfers that come in from earlier stages, once for each result.

The start of a stage is called i, the op behind its end j. The load of i to j grows with j. So if the first i ops can
be computed by some devices within a period, so can the first i - 1, and a set of devices is described by how far it
reaches: the largest j of all stages of one of them that start within reach of the others. How far a device reaches
from 0, 1, ... N on is found in one pass of a window over the line, which keeps for each result the largest size that is
read inside (a monotonic queue). Periods are whole ticks and found by bisection, hence exactly.

Where stages run in turn, it is the sum of their loads that counts: the least sum up to place j over a set of devices is
that of the set without one of them up to some place i, and the load of i to j on this one.

Legend: U placement units, N ops, D devices, R pairs of a result and an op that reads it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray, inverse_of
from hsdag.ir.kernels import bare, inlined, run
from hsdag.methods.base import NoOptions, Placer
from hsdag.methods.cuts.cut_graph import readers
from hsdag.methods.incumbent import GaveUp, Incumbent, Status
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links
from hsdag.scoring.memory import MEMORY_TOLERANCE, MemoryCheck

MAX_CANDIDATES = 7
"""Different placements that are evaluated at most: each may be measured."""

UNCERTAIN = (1.0, 2.0, 0.5, 4.0, 0.0)
"""Factors of transfers and launches where their costs are estimates."""

MAX_TIGHTENINGS = 20
"""Rounds in which a stage gets less room for weights because its results need more."""

TOTAL_BITS = 50
"""All costs together are fewer ticks than 2 to this power; each is off by at most one tick."""

MAX_ORDERED = 6
"""Devices up to which all their orders are tried; more are taken by speed, the fastest first."""

UNABLE = np.int64(2**60)
"""Ticks of an op that its device does not support: no period is as long."""


class PipelinePlacer(Placer[NoOptions]):
    """Contiguous stages in topological order: the busiest as little busy as can be, or for one inference at a time
    those that take least in turn, which memory alone forces onto several devices that are alike.

    The same problem gives the same placements.
    """

    name = "pipeline"
    objectives = ("latency", "throughput")
    num_tried = float(MAX_CANDIDATES)

    def _search(self, incumbent: Incumbent) -> Status:
        nothing = "method pipeline found no stages that fit into memory; try --method mincut"
        evaluate_each(stages(incumbent.problem), incumbent, MAX_CANDIDATES, nothing)
        return Status.FEASIBLE


def stages(units: Problem) -> Iterator[IntArray]:
    """Placements [U] that fit into memory: the best single device, then stages.

    Stages come under the links as they are charged, and at other prices.
    """
    problem, semantics = units.known_costs, units.semantics
    check = MemoryCheck(problem, semantics)
    by_load = np.argsort(problem.time_s.sum(axis=0), kind="stable")  # not a number where an op is not supported
    alone = (np.full(problem.num_ops, d) for d in by_load if problem.supported[:, d].all())
    yield from itertools.islice((each for each in alone if check.fits(each)), 1)
    partition = balanced_stages if units.objective.is_steady else quickest_stages
    factors: tuple[float, ...] = UNCERTAIN  # of what transfers and launches count
    if units.objective.is_steady and semantics.execution is not Execution.SEQUENTIAL:
        # independent links never fill up; others have a load, so that stages with and without them are tried
        factors = (0.0,) if semantics.links is Links.INDEPENDENT else (1.0, 0.0, 2.0, 0.5, 4.0)
    for boundary in factors:
        for slowest in (True, False) if boundary == 1.0 else (True,):
            placement = fitting_stages(problem, check, partition, boundary=boundary, slowest=slowest)
            if placement is not None:
                yield placement


def fitting_stages(
    problem: ScheduleProblem,
    check: MemoryCheck,
    partition: Callable[[Line, FloatArray], IntArray | None],
    *,
    boundary: float,
    slowest: bool = True,
) -> IntArray | None:
    """Stages [N] that fit into memory, results included; None where none were found.

    Weights are limited first. Where results do not fit beside them, the weights of that device get so much less
    room; where that leads nowhere, all results are taken to be held at once.
    """
    line = Line.of(problem, boundary=boundary, slowest=slowest)
    room = problem.memory_bytes.copy()
    for _ in range(MAX_TIGHTENINGS):
        if (placement := partition(line, room)) is None:
            break
        if check.fits(placement):
            return placement
        weights = np.bincount(placement, problem.weight_bytes, problem.num_devices)
        full = check.overfull(placement)
        room[full] = np.minimum(room, weights - (check.peak_bytes(placement) - problem.memory_bytes))[full]
        if (room < 0).any():
            break
    placement = partition(replace(line, weight_bytes=check.held_bytes[problem.topological_order]), problem.memory_bytes)
    return placement if placement is not None and check.fits(placement) else None


def evaluate_each(candidates: Iterable[IntArray], incumbent: Incumbent, most: int, otherwise: str) -> list[IntArray]:
    """Evaluate the first ``most`` different legal candidates [U], one after the other; those that were.

    Raises GaveUp with ``otherwise`` where all failed, SearchStopped when the evaluator does.
    """
    seen: dict[Plan, None] = {}
    for plan in map(Plan, candidates):
        if plan in seen or not incumbent.problem.is_legal(plan.placement):
            continue
        seen[plan] = None
        incumbent.evaluate([plan])
        if len(seen) == most:
            break
    if incumbent.best is None:
        raise GaveUp(otherwise)
    return [plan.placement for plan in seen]


@dataclass(frozen=True, eq=False)
class Line:
    """The ops in topological order, in ticks; places in that order count, not op indices.

    The readers of result v have the slots ``first[v]`` to ``first[v + 1] - 1``, ascending; op v reads the results
    ``source[enters[v]:enters[v + 1]]`` and is at ``slot`` among their readers.
    """

    order: IntArray  # [N] op at each place
    ticks: IntArray  # [N, D]
    weight_bytes: FloatArray  # [N]
    first: IntArray  # [N + 1]
    enters: IntArray  # [N + 1]
    source: IntArray  # [R]
    slot: IntArray  # [R]
    incoming: IntArray  # [R, D] ticks of a transfer of the size that this reader needs
    launch: IntArray  # [D]

    @staticmethod
    def of(problem: ScheduleProblem, *, boundary: float, slowest: bool = True) -> Line:
        """The line of a problem with transfers and launches at ``boundary`` times their cost.

        Where links into a device differ, each counts as its slowest, or its fastest.
        """
        order = problem.topological_order
        place = inverse_of(order)
        begin, source, reader, size = readers(problem.with_single_results)
        src, dst = place[np.repeat(source, np.diff(begin))], place[reader]
        by_source = np.lexsort((dst, src))
        src, dst, size = src[by_source], dst[by_source], size[by_source]
        by_reader = np.lexsort((src, dst))
        fixed_s, s_per_byte = _into(problem, slowest)
        work_s = problem.time_s[order] + problem.op_overhead_s
        incoming_s = boundary * (fixed_s + size[:, None] * s_per_byte)
        launch_s = boundary * problem.launch_s
        total_s = float(np.nanmax(work_s, axis=1).sum() + incoming_s.max(axis=1, initial=0.0).sum() + launch_s.max())
        tick_s = float(2.0 ** (np.ceil(np.log2(total_s)) - TOTAL_BITS)) if total_s > 0 else 1.0
        everywhere = np.arange(problem.num_ops + 1)
        return Line(
            order=order,
            ticks=np.where(np.isnan(work_s), UNABLE, np.nan_to_num(work_s) / tick_s).astype(np.int64),
            weight_bytes=problem.weight_bytes[order],
            first=np.searchsorted(src, everywhere).astype(np.int64),
            enters=np.searchsorted(dst[by_reader], everywhere).astype(np.int64),
            source=src[by_reader],
            slot=by_reader.astype(np.int64),
            incoming=(incoming_s / tick_s).astype(np.int64),
            launch=(launch_s / tick_s).astype(np.int64),
        )


def balanced_stages(line: Line, memory_bytes: FloatArray) -> IntArray | None:
    """The placement [N] of ops whose busiest stage is least busy, over all orders of up to ``MAX_ORDERED`` devices.

    The weights of a stage stay within ``memory_bytes`` [D]. None where no partition does so.
    """
    able = np.where(line.ticks < UNABLE, line.ticks, 0)
    high = int(able.max(axis=1).sum() + line.incoming.max(axis=1, initial=0).sum() + line.launch.max())
    plan = _Plan(line, memory_bytes)
    if not plan.reaches(high):
        return None
    best = np.where(line.ticks < UNABLE, line.ticks, UNABLE).min(axis=1)
    low = max(int(best.max()), int(best.sum()) // line.ticks.shape[1]) - 1
    period = low + 1 + bisect_left(range(low + 1, high), x=True, key=plan.reaches)
    return plan.stages(period)[inverse_of(line.order)]


def quickest_stages(line: Line, memory_bytes: FloatArray) -> IntArray | None:
    """The placement [N] of ops whose stages take least in turn, over all orders of up to ``MAX_ORDERED`` devices.

    The weights of a stage stay within ``memory_bytes`` [D]. None where no partition does so.
    """
    stages = _Plan(line, memory_bytes).in_turn()
    return None if stages is None else stages[inverse_of(line.order)]


class _Plan:
    """How far sets of devices reach within a period. A set is the bits of its devices."""

    def __init__(self, line: Line, memory_bytes: FloatArray) -> None:
        self._line = line
        self._memory_bytes = memory_bytes
        self._num = line.ticks.shape[1]
        speed = np.lexsort((np.arange(self._num), np.where(line.ticks < UNABLE, line.ticks, 0).sum(axis=0)))
        self._by_speed = speed.tolist()
        self._weights = np.concatenate([[0.0], np.cumsum(line.weight_bytes)])

    def reaches(self, period: int) -> bool:
        """Whether all devices together compute all ops within ``period`` ticks each."""
        return self._reach(self._far(period))[(1 << self._num) - 1] == len(self._line.order)

    def stages(self, period: int) -> IntArray:
        """[N] the device of each place within a period that suffices; later stages are as long as they can be."""
        far = self._far(period)
        reach = self._reach(far)
        devices = np.empty(len(self._line.order), dtype=np.int64)
        end, left = len(self._line.order), (1 << self._num) - 1
        while end > 0:
            for d in self._last(left):
                rest = left & ~(1 << d)
                begin = int(np.searchsorted(far[d], end))  # the first place from which d reaches the end
                if begin <= reach[rest]:
                    devices[begin:end] = d
                    end, left = min(begin, end), rest
                    break
        return devices

    def in_turn(self) -> IntArray | None:
        """[N] the device of each place for which all stages together take least; None where they take no device."""
        line, weights = self._line, self._weights
        num = len(self._line.order)
        start = np.full(num + 1, UNABLE)
        start[0] = 0
        ticks, last = {0: start}, {}
        for bits in self._sets():
            least, begins, of = np.full(num + 1, UNABLE), np.zeros(num + 1, dtype=np.int64), start * 0
            for d in self._last(bits):
                rest = ticks[bits & ~(1 << d)]
                better = rest < least  # the device stays empty
                least[better], begins[better], of[better] = rest[better], np.arange(num + 1)[better], d
                before, reached = least.copy(), begins.copy()
                given = line.first, weights, int(line.launch[d]), float(self._memory_bytes[d])
                run(_behind, num * (num + len(line.slot)), self._window(d), *given, rest, least, reached)
                improved = least < before
                begins[improved], of[improved] = reached[improved], d
            ticks[bits], last[bits] = least, (begins, of)
        bits, end = (1 << self._num) - 1, num
        if ticks[bits][num] >= UNABLE:
            return None
        devices = np.empty(num, dtype=np.int64)
        while bits:
            begin, d = int(last[bits][0][end]), int(last[bits][1][end])
            devices[begin:end] = d
            bits, end = bits & ~(1 << d), begin
        return devices

    def _far(self, period: int) -> IntArray:
        """[D, N + 1] how far the stages of each device reach that start at a place or before."""
        line, weights = self._line, self._weights
        far = np.empty((self._num, len(weights)), dtype=np.int64)
        for d in range(self._num):
            given = weights, period - int(line.launch[d]), float(self._memory_bytes[d])
            run(_furthest, len(weights) + len(line.slot), self._window(d), *given, far[d])
        return far

    def _window(self, d: int) -> _Window:
        """An empty window of ops on a device."""
        line = self._line
        begin = line.first[:-1]
        ticks, incoming = line.ticks[:, d].copy(), line.incoming[:, d].copy()
        queue = np.empty(len(line.slot), dtype=np.int64)
        return _Window(ticks, incoming, line.enters, line.source, line.slot, queue, begin.copy(), begin.copy())

    def _reach(self, far: IntArray) -> dict[int, int]:
        """How far sets of devices reach."""
        reach = {0: 0}
        for bits in self._sets():
            reach[bits] = max(int(far[d][reach[bits & ~(1 << d)]]) for d in self._last(bits))
        return reach

    def _sets(self) -> list[int]:
        """The sets of devices that may have the stages up to a place, smaller ones before those that they are in."""
        if self._num > MAX_ORDERED:
            return [int(bits) for bits in np.cumsum([1 << d for d in self._by_speed])]
        return list(range(1, 1 << self._num))

    def _last(self, bits: int) -> list[int]:
        """The devices that may have the last stage of a set."""
        if self._num > MAX_ORDERED:
            return [d for d in self._by_speed if bits >> d & 1][-1:]
        return [d for d in range(self._num) if bits >> d & 1]


def _into(problem: ScheduleProblem, slowest: bool) -> tuple[FloatArray, FloatArray]:
    """[D] seconds and [D] seconds per byte of a transfer into each device."""
    if problem.num_devices == 1:
        return np.zeros(1), np.zeros(1)
    off = ~np.eye(problem.num_devices, dtype=np.bool_)
    pick = np.max if slowest else np.min
    fixed_s = [pick(problem.link_latency_s[off[:, d], d]) for d in range(problem.num_devices)]
    s_per_byte = [pick(1.0 / problem.link_bandwidth_bytes_per_s[off[:, d], d]) for d in range(problem.num_devices)]
    return np.asarray(fixed_s) + problem.transfer_overhead_s, np.asarray(s_per_byte)


class _Window(NamedTuple):
    """A run of ops on one device, moved along the line.

    Of each result, the queue in ``queue[head:tail]``, room for which are its readers' slots, has the readers
    inside that no later one exceeds: the first one costs most.
    """

    ticks: IntArray  # [N]
    incoming: IntArray  # [R]
    enters: IntArray  # [N + 1]
    source: IntArray  # [R]
    slot: IntArray  # [R]
    queue: IntArray  # [R]
    head: IntArray  # [N]
    tail: IntArray  # [N]


@bare
def _furthest(w: _Window, weights: FloatArray, period: int, memory_bytes: float, far: IntArray) -> None:
    """Fill ``far`` [N + 1] with the furthest end of a stage that starts at a place or before, in O(N + R).

    A stage has ``period`` ticks; ``weights`` [N + 1] are the bytes in front of each place.
    """
    end, load = 0, 0
    for begin in range(len(w.ticks) + 1):
        if begin > 0 and begin - 1 < end:
            load -= _let_go(w, begin - 1)
        end = max(end, begin)
        while end < len(w.ticks) and weights[end + 1] - weights[begin] <= memory_bytes * (1 + MEMORY_TOLERANCE):
            more = _growth(w, begin, end)
            if load + more > period:
                break
            load += more
            _take_in(w, end)
            end += 1
        far[begin] = end


@bare
def _behind(
    w: _Window,
    first: IntArray,
    weights: FloatArray,
    launch: int,
    memory_bytes: float,
    before: IntArray,
    least: IntArray,
    begins: IntArray,
) -> None:
    """Lower ``least`` [N + 1] to what a stage up to a place takes behind ``before`` [N + 1], in O(N (N + R)).

    ``begins`` [N + 1] is where that stage begins; ``launch`` are its ticks before any op.
    """
    for begin in range(len(w.ticks)):
        if before[begin] >= UNABLE:
            continue
        for u in range(len(w.ticks)):
            w.head[u] = w.tail[u] = first[u]
        load = before[begin] + launch
        for end in range(begin, len(w.ticks)):
            if weights[end + 1] - weights[begin] > memory_bytes * (1 + MEMORY_TOLERANCE):
                break
            load += _growth(w, begin, end)
            if load >= UNABLE:
                break
            _take_in(w, end)
            if load < least[end + 1]:
                least[end + 1], begins[end + 1] = load, begin


@inlined
def _costliest(w: _Window, u: int) -> int:
    """Ticks of sending result u to the window, 0 where nobody there reads it."""
    ticks: int = w.incoming[w.queue[w.head[u]]] if w.head[u] < w.tail[u] else 0
    return ticks


@inlined
def _growth(w: _Window, begin: int, v: int) -> int:
    """Ticks by which v adds to the load of a window from ``begin`` up to v."""
    more: int = w.ticks[v]
    for k in range(w.enters[v], w.enters[v + 1]):
        if w.source[k] < begin:
            more += max(0, w.incoming[w.slot[k]] - _costliest(w, w.source[k]))
    return more


@inlined
def _take_in(w: _Window, v: int) -> None:
    """Put v at the end of the queues of its inputs."""
    for k in range(w.enters[v], w.enters[v + 1]):
        u = w.source[k]
        while w.tail[u] > w.head[u] and w.incoming[w.queue[w.tail[u] - 1]] <= w.incoming[w.slot[k]]:
            w.tail[u] -= 1
        w.queue[w.tail[u]] = w.slot[k]
        w.tail[u] += 1


@inlined
def _let_go(w: _Window, v: int) -> int:
    """Take v from the front of the window; ticks by which the load falls."""
    less: int = w.ticks[v]
    for k in range(w.enters[v], w.enters[v + 1]):
        u = w.source[k]
        if w.head[u] < w.tail[u] and w.queue[w.head[u]] == w.slot[k]:
            before = _costliest(w, u)
            w.head[u] += 1
            less += before - _costliest(w, u)
    return less - _costliest(w, v)
