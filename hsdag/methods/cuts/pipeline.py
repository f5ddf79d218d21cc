"""Place ops in contiguous pipeline stages, balanced or run in turn; see docs/exact.md.

The stages are the balanced, or the quickest, partition of a line of ops over devices, found by dynamic programming.

Every stage is a run of consecutive ops in topological order on one device; a device may stay empty. The load of a stage
consists of its ops, a launch, and the transfers from earlier stages, once per result.

Let i be the start of a stage and j the op after its end. The load of i to j grows with j. So if some devices can
compute the first i ops within a period, they can compute the first i - 1, too, and a set of devices is described by how
far it reaches: the largest j over the stages of one device that start within reach of the others. How far a device
reaches from 0, 1, ... N is found in one pass of a window over the line, which keeps, for each result, the largest size
read inside (a monotonic queue). Periods are whole ticks and found by bisection, hence exactly.

If stages run in turn, the sum of their loads counts: the least sum up to place j over a set of devices is that of the
set without one device up to some place i, plus the load of i to j on that device.

Legend: U placement units, N ops, D devices, R pairs of a result and an op that reads it.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hsdag.base.errors import option
from hsdag.base.kernels import bare, inlined, run_kernel
from hsdag.ir.graph.computation_graph import FloatArray, IntArray, inverse_of
from hsdag.methods.base import NoOptions, Placer
from hsdag.methods.cuts.cut_graph import readers
from hsdag.methods.incumbent import GaveUp, Incumbent, Status
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing
from hsdag.search.evaluators.memory import MEMORY_TOLERANCE, MemoryCheck

MAX_CANDIDATES = 7
"""Evaluate at most this many different placements, since each may be measured."""

UNCERTAIN = (1.0, 2.0, 0.5, 4.0, 0.0)
"""Factors on the costs of transfers and launches where these are estimates."""

MAX_TIGHTENINGS = 20
"""Most rounds in which a stage gets less room for weights because its results need more."""

TOTAL_BITS = 50
"""All costs together are fewer ticks than 2 to this power; each is off by at most one tick."""

MAX_ORDERED = 6
"""Try all orders of at most this many devices; more devices are ordered by speed, the fastest first."""

UNABLE = np.int64(2**60)
"""Ticks of an op on a device that does not support it; longer than any period."""


class PipelinePlacer(Placer[NoOptions]):
    """Contiguous stages in topological order: for throughput the most balanced, for latency the quickest in turn.

    On devices that are alike only limited memory makes more than one stage worthwhile for latency. The method is
    deterministic.
    """

    name = "pipeline"
    objectives = ("latency", "throughput")
    num_tried = float(MAX_CANDIDATES)

    def _search(self, incumbent: Incumbent) -> Status:
        nothing = f"method pipeline found no stages that fit into memory; try {option('method')} mincut"
        evaluate_each(stage_placements(incumbent.problem), incumbent, MAX_CANDIDATES, nothing)
        return Status.FEASIBLE


def stage_placements(units: Problem) -> Iterator[IntArray]:
    """Yield placements [U] that fit into memory: the best single device, then stages at several costs of boundaries."""
    problem, semantics = units.known_costs, units.semantics
    check = MemoryCheck(problem, semantics)
    by_load = np.argsort(problem.time_s.sum(axis=0), kind="stable")  # NaN, last, where an op is not supported
    alone = (np.full(problem.num_ops, d) for d in by_load if problem.supported[:, d].all())
    yield from itertools.islice(filter(check.fits, alone), 1)
    partition = balanced_stages if units.objective.is_steady else quickest_stages
    factors: tuple[float, ...] = UNCERTAIN  # on the costs of transfers and launches
    if units.objective.is_steady and semantics.execution is not Execution.SEQUENTIAL:
        # Independent links never fill up. Others have a load, so stages that count it and that ignore it are tried.
        factors = (0.0,) if semantics.links is LinkSharing.INDEPENDENT else (1.0, 0.0, 2.0, 0.5, 4.0)
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
    """Return stages [N] that fit into memory, results included, or None if none are found.

    Weights are limited first. If results do not fit beside them, that device gets less room for weights; if that fails,
    all results are assumed to be held at once.

    Args:
        partition: Function from a line and the memory of each device [D] to stages.
        boundary: Factor on the costs of transfers and launches.
        slowest: Whether a transfer into a device takes its slowest link, or else its fastest.
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
    resident_bytes = check.resident_bytes[problem.topological_order]
    placement = partition(replace(line, weight_bytes=resident_bytes), problem.memory_bytes)
    return placement if placement is not None and check.fits(placement) else None


def evaluate_each(candidates: Iterable[IntArray], incumbent: Incumbent, most: int, otherwise: str) -> list[IntArray]:
    """Evaluate the first ``most`` different legal candidates [U] one by one and return them.

    Raises GaveUp with message ``otherwise`` if all failed, and SearchStopped when the evaluator does.
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
    """The ops in topological order, with costs in ticks; indices are places in that order, not op indices.

    Readers of result v have the slots ``first[v]`` to ``first[v + 1] - 1``, ascending; op v reads the results
    ``source[enters[v]:enters[v + 1]]`` and has ``slot`` among their readers.
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
        """Return the line of a problem, with transfers and launches at ``boundary`` times their cost.

        If links into a device differ, each counts as its slowest or, without ``slowest``, as its fastest.
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
            ticks=np.where(np.isnan(work_s), UNABLE, work_s / tick_s).astype(np.int64),
            weight_bytes=problem.weight_bytes[order],
            first=np.searchsorted(src, everywhere).astype(np.int64),
            enters=np.searchsorted(dst[by_reader], everywhere).astype(np.int64),
            source=src[by_reader],
            slot=by_reader.astype(np.int64),
            incoming=(incoming_s / tick_s).astype(np.int64),
            launch=(launch_s / tick_s).astype(np.int64),
        )


def balanced_stages(line: Line, memory_bytes: FloatArray) -> IntArray | None:
    """Return the placement [N] with the least busy busiest stage, over all orders of up to ``MAX_ORDERED`` devices.

    The weights of a stage stay within ``memory_bytes`` [D]; None if no partition does so.
    """
    able = np.where(line.ticks < UNABLE, line.ticks, 0)
    high = int(able.max(axis=1).sum() + line.incoming.max(axis=1, initial=0).sum() + line.launch.max())
    plan = _StageProgram(line, memory_bytes)
    if not plan.reaches(high):
        return None
    best = line.ticks.min(axis=1)
    low = max(int(best.max()), int(best.sum()) // line.ticks.shape[1]) - 1
    period = low + 1 + bisect_left(range(low + 1, high), x=True, key=plan.reaches)
    return plan.stages(period)[inverse_of(line.order)]


def quickest_stages(line: Line, memory_bytes: FloatArray) -> IntArray | None:
    """Return the placement [N] whose stages take least in turn, over all orders of up to ``MAX_ORDERED`` devices.

    The weights of a stage stay within ``memory_bytes`` [D]; None if no partition does so.
    """
    stages = _StageProgram(line, memory_bytes).in_turn()
    return None if stages is None else stages[inverse_of(line.order)]


class _StageProgram:
    """Dynamic program over sets of devices, as bits, and how far each set reaches within a period."""

    def __init__(self, line: Line, memory_bytes: FloatArray) -> None:
        self._line = line
        self._memory_bytes = memory_bytes
        self._num = line.ticks.shape[1]
        total = np.where(line.ticks < UNABLE, line.ticks, 0).sum(axis=0)
        self._by_speed: list[int] = np.argsort(total, kind="stable").tolist()
        self._weights = np.concatenate([[0.0], np.cumsum(line.weight_bytes)])

    def reaches(self, period: int) -> bool:
        """Return whether all devices together compute all ops within ``period`` ticks each."""
        return self._reach(self._far(period))[(1 << self._num) - 1] == len(self._line.order)

    def stages(self, period: int) -> IntArray:
        """Return the device of each place [N] within a sufficient period; later stages are as long as possible."""
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
        """Return the device of each place [N] for which all stages take least in turn, or None if there are none."""
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
                tables = line.first, weights, int(line.launch[d]), float(self._memory_bytes[d])
                run_kernel(_behind, num * (num + len(line.slot)), self._window(d), *tables, rest, least, reached)
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
        """Return how far a stage of each device reaches that starts at a place or before, [D, N + 1]."""
        line, weights = self._line, self._weights
        far = np.empty((self._num, len(weights)), dtype=np.int64)
        for d in range(self._num):
            limits = period - int(line.launch[d]), float(self._memory_bytes[d])
            run_kernel(_furthest, len(weights) + len(line.slot), self._window(d), weights, *limits, far[d])
        return far

    def _window(self, d: int) -> _Window:
        """Return an empty window of ops on a device."""
        line = self._line
        begin = line.first[:-1]
        ticks, incoming = line.ticks[:, d].copy(), line.incoming[:, d].copy()
        queue = np.empty(len(line.slot), dtype=np.int64)
        return _Window(ticks, incoming, line.enters, line.source, line.slot, queue, begin.copy(), begin.copy())

    def _reach(self, far: IntArray) -> dict[int, int]:
        """Return how far each set of devices reaches."""
        reach = {0: 0}
        for bits in self._sets():
            reach[bits] = max(int(far[d][reach[bits & ~(1 << d)]]) for d in self._last(bits))
        return reach

    def _sets(self) -> list[int]:
        """Return the sets of devices that may have the first stages; subsets come before the sets that contain them."""
        if self._num > MAX_ORDERED:
            return [int(bits) for bits in np.cumsum([1 << d for d in self._by_speed])]
        return list(range(1, 1 << self._num))

    def _last(self, bits: int) -> list[int]:
        """Return the devices that may have the last stage of a set."""
        if self._num > MAX_ORDERED:
            return [d for d in self._by_speed if bits >> d & 1][-1:]
        return [d for d in range(self._num) if bits >> d & 1]


def _into(problem: ScheduleProblem, slowest: bool) -> tuple[FloatArray, FloatArray]:
    """Return seconds [D], and seconds per byte [D], of a transfer into each device."""
    if problem.num_devices == 1:
        return np.zeros(1), np.zeros(1)
    off = ~np.eye(problem.num_devices, dtype=np.bool_)
    pick = np.max if slowest else np.min
    fixed_s = [pick(problem.link_latency_s[off[:, d], d]) for d in range(problem.num_devices)]
    s_per_byte = [pick(1.0 / problem.link_bandwidth_bytes_per_s[off[:, d], d]) for d in range(problem.num_devices)]
    return np.asarray(fixed_s) + problem.transfer_overhead_s, np.asarray(s_per_byte)


class _Window(NamedTuple):
    """A run of ops on one device, moved along the line.

    For each result, ``queue[head:tail]`` in the slots of its readers lists the readers inside the window that no later
    one exceeds; the first costs most.
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
    """Lower ``least`` [N + 1] to the ticks up to each place if a stage follows ``before`` [N + 1], in O(N (N + R)).

    ``begins`` [N + 1] is set to where that stage begins; ``launch`` are its ticks before any op.
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
    """Return the ticks of sending result u to the window, 0 if nothing there reads it."""
    ticks: int = w.incoming[w.queue[w.head[u]]] if w.head[u] < w.tail[u] else 0
    return ticks


@inlined
def _growth(w: _Window, begin: int, v: int) -> int:
    """Return the ticks that v adds to the load of a window from ``begin`` up to v."""
    more: int = w.ticks[v]
    for k in range(w.enters[v], w.enters[v + 1]):
        if w.source[k] < begin:
            more += max(0, w.incoming[w.slot[k]] - _costliest(w, w.source[k]))
    return more


@inlined
def _take_in(w: _Window, v: int) -> None:
    """Append v to the queues of its inputs."""
    for k in range(w.enters[v], w.enters[v + 1]):
        u = w.source[k]
        while w.tail[u] > w.head[u] and w.incoming[w.queue[w.tail[u] - 1]] <= w.incoming[w.slot[k]]:
            w.tail[u] -= 1
        w.queue[w.tail[u]] = w.slot[k]
        w.tail[u] += 1


@inlined
def _let_go(w: _Window, v: int) -> int:
    """Remove v from the front of the window; return the ticks by which the load falls."""
    less: int = w.ticks[v]
    for k in range(w.enters[v], w.enters[v + 1]):
        u = w.source[k]
        if w.head[u] < w.tail[u] and w.queue[w.head[u]] == w.slot[k]:
            before = _costliest(w, u)
            w.head[u] += 1
            less += before - _costliest(w, u)
    return less - _costliest(w, v)
