"""ETF and m-ETF: earliest task first, of all ready ops and devices the pair that can start first.

Legend: N ops, D devices.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np

from hsdag.base.kernels import ZERO, bare, inlined, run_few
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray, inverse_of
from hsdag.methods.lists.base import SchedulePlacer
from hsdag.methods.lists.schedule import ListSchedule, ListState, Outlook, assign, first_candidates, has_room, offer
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import Tables, levels_of, tables_of
from hsdag.runtime.simulator.machine import ENTRY, Records, pop, push

FEW_RUNS = 4.0
"""Approximate number of schedules that a search makes."""


class EtfPlacer(SchedulePlacer):
    """Hwang et al. 1989; for throughput the least loaded device takes the ready op of the largest static level."""

    name = "etf"
    by_start = True
    with_results: ClassVar[bool] = False
    """Whether results count in memories beside weights."""

    def urgency(self, tables: Tables) -> FloatArray:
        return levels_of(tables).static_s

    def schedule(self, costs: ScheduleProblem) -> ListSchedule:
        tables = tables_of(costs)
        return earliest_task_first(tables, self.urgency(tables), with_results=self.with_results)


class MEtfPlacer(EtfPlacer):
    """ETF with the memory that inference needs; for throughput, weights count here and results in the repair."""

    name = "m-etf"
    with_results = True


class Buffers(NamedTuple):
    """Results in the memories, as far as the schedule goes; nothing here is used where only weights count."""

    size_bytes: FloatArray  # [N, D] of the result of an op on a device
    until_s: FloatArray  # [N, D] its last use so far
    unread: IntArray  # [N] consumers that are not placed yet
    ending: Records  # [N * D + 1] ENTRY, a heap of results by the time they are let go
    num_ending: IntArray  # [1]


def earliest_task_first(tables: Tables, static_s: FloatArray, *, with_results: bool) -> ListSchedule:
    """Return the schedule that takes, again and again, the pair of op and device that can start first.

    Ties go to the larger level ``static_s`` [N], then the smaller op index, the earlier end and the smaller device
    index. A device that cannot hold an op's weights is not a choice for it. ``with_results`` counts results too, from
    their op's start until their last reader is over: memory-aware (Baechi's m-ETF). An op that fits nowhere goes
    where most room is left. O((N C + E) D) for C candidates at a time.
    """
    n, d = tables.time_s.shape
    m = n if with_results else 0
    buffers = Buffers(
        size_bytes=np.zeros((m, d)),
        until_s=np.zeros((m, d)),
        unread=np.diff(tables.out_first)[:m],
        ending=np.zeros(m * d + 1, ENTRY),
        num_ending=np.zeros(1, dtype=np.int64),
    )
    s = ListState.of(tables)
    able = np.isfinite(tables.time_s)
    place = inverse_of(np.argsort(-static_s, kind="stable"))
    steps = FEW_RUNS * d * (n + len(tables.in_op))
    run_few(_run, steps, tables, s, Outlook.of(tables), able, place, buffers, with_results)
    return s.schedule()


@bare
def _run(
    t: Tables, s: ListState, w: Outlook, able: BoolArray, place: IntArray, buffers: Buffers, with_results: bool
) -> None:
    """Schedule all ops; ``able`` [N, D] are the pairs that are left, ``place`` [N] the ranks of ops by level."""
    count, turn = first_candidates(s, w), 0
    while turn < len(s.device):
        at, d, start_s = _first(t, s, w, able, place, count)
        v = w.candidate[at]
        _let_go(s, buffers, start_s)
        if not _fits(t, s, buffers, v, d, with_results):
            able[v, d] = False
            if able[v].any():
                continue
            d = _roomiest(t, s, v)
            start_s = max(s.free_s[d], w.ready_s[v, d])
        assign(t, s, v, d, start_s)
        if with_results:
            _hold(t, s, buffers, v, d)
        s.sequence[turn] = v
        turn += 1
        w.candidate[at] = w.candidate[count - 1]
        count = offer(t, s, w, v, count - 1)


@bare
def _first(t: Tables, s: ListState, w: Outlook, able: BoolArray, place: IntArray, count: int) -> tuple[int, int, float]:
    """Return the index of the candidate that can start first, its device, and when."""
    best, best_d, best_start_s, best_end_s = -1, -1, np.inf, np.inf
    for i in range(count):
        v = w.candidate[i]
        for d in range(len(s.free_s)):
            if able[v, d]:
                start_s = max(s.free_s[d], w.ready_s[v, d])
                end_s = start_s + t.time_s[v, d]
                sooner = start_s < best_start_s
                if start_s == best_start_s and best >= 0:
                    other = w.candidate[best]
                    sooner = place[v] < place[other] or (v == other and end_s < best_end_s)
                if sooner or best < 0:
                    best, best_d, best_start_s, best_end_s = i, d, start_s, end_s
    return best, best_d, best_start_s


@inlined
def _fits(t: Tables, s: ListState, buffers: Buffers, v: int, d: int, with_results: bool) -> bool:
    """Return whether device d has room for v: its weights, its result, and copies of its inputs."""
    if not with_results:
        return has_room(t, s, v, d)
    needed_bytes = t.weight_bytes[v] + t.output_bytes[v]
    for k in range(t.in_first[v], t.in_first[v + 1]):
        if s.device[t.in_op[k]] != d:
            needed_bytes += max(0.0, t.in_bytes[k] - buffers.size_bytes[t.in_op[k], d])
    fits: bool = s.held_bytes[d] + needed_bytes <= s.limit_bytes[d]
    return fits


@inlined
def _roomiest(t: Tables, s: ListState, v: int) -> int:
    """Return the device with most room left of those that support v."""
    best = -1
    for d in range(len(s.free_s)):
        if t.time_s[v, d] < np.inf:
            left_bytes = s.limit_bytes[d] - s.held_bytes[d]
            if best < 0 or left_bytes > s.limit_bytes[best] - s.held_bytes[best]:
                best = d
    return best


@inlined
def _hold(t: Tables, s: ListState, buffers: Buffers, v: int, d: int) -> None:
    """Keep the result of v, which was placed on d, and copies of its inputs there; note when inputs are read no more.

    Pairs are taken in the order of their starts, and v starts when all transfers to it have ended: none of them is
    under way any more when the result at its home is let go.
    """
    num_devices = len(s.free_s)
    s.held_bytes[d] += t.output_bytes[v]
    buffers.size_bytes[v, d] = t.output_bytes[v]
    buffers.until_s[v, d] = s.end_s[v]
    for k in range(t.in_first[v], t.in_first[v + 1]):
        u = t.in_op[k]
        if s.device[u] != d:
            more_bytes = max(0.0, t.in_bytes[k] - buffers.size_bytes[u, d])
            s.held_bytes[d] += more_bytes
            buffers.size_bytes[u, d] += more_bytes
        buffers.until_s[u, d] = max(buffers.until_s[u, d], s.end_s[v])
        buffers.unread[u] -= 1
        if buffers.unread[u] == 0:
            for e in range(num_devices):
                if buffers.size_bytes[u, e] > 0.0:
                    push(buffers.ending, ZERO, buffers.num_ending[0], buffers.until_s[u, e], u * num_devices + e)
                    buffers.num_ending[0] += 1


@inlined
def _let_go(s: ListState, buffers: Buffers, now_s: float) -> None:
    """Free all results whose last use is over by ``now_s``."""
    num_devices = len(s.free_s)
    while buffers.num_ending[0] > 0 and buffers.ending[0].value <= now_s:
        code = pop(buffers.ending, ZERO, buffers.num_ending[0])
        buffers.num_ending[0] -= 1
        s.held_bytes[code % num_devices] -= buffers.size_bytes[code // num_devices, code % num_devices]
