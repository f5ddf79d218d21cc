"""Plans as list schedules, compiled: a chain orders units and pins some of them, the rest goes where it ends first.

One change of the order moves all that comes behind it, so that a few thousand proposals find what a local search over
devices does not in many times as many.

Legend: U placement units, E edges between them, D devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.ir.compiled import bare, inlined
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.local.chain import Chain, settle
from hsdag.placers.local.loop import ROUNDING, draw, is_kept, propose, value_of
from hsdag.placers.local.values import Scheduled, put, simulated, value_of_plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator.heaps import ENTRY, Records, pop, push


class Listed(NamedTuple):
    """Costs of units, and room for one list schedule; what is simulated is the plan that it makes."""

    scheduled: Scheduled
    time_s: FloatArray  # [U, D] infinite where a device lacks the unit
    num_inputs: IntArray  # [U]
    first: IntArray  # [U + 1] the edges that leave u are first[u]:first[u + 1]
    reader: IntArray  # [E]
    size_bytes: FloatArray  # [E]
    latency_s: FloatArray  # [D, D], 0 on the diagonal
    s_per_byte: FloatArray  # [D, D], 0 on the diagonal
    arrival_s: FloatArray  # [U, D] when all that u reads is on a device
    free_s: FloatArray  # [D]
    waiting: IntArray  # [U] inputs that are not scheduled yet
    ready: Records  # [U] ENTRY, a heap by rank
    device: IntArray  # [U] the placement
    rank: FloatArray  # [U] the order


def listed(scheduled: Scheduled, costs: ScheduleProblem) -> Listed:
    """List schedules on ``costs`` of units, which ``scheduled`` simulates."""
    num, d = costs.time_s.shape
    by_src, off = np.argsort(costs.edge_src, kind="stable"), ~np.eye(d, dtype=np.bool_)
    return Listed(
        scheduled=scheduled,
        time_s=np.where(costs.supported, costs.time_s, np.inf) + costs.op_overhead_s,
        num_inputs=np.bincount(costs.edge_dst, minlength=num).astype(np.int64),
        first=np.searchsorted(costs.edge_src[by_src], np.arange(num + 1)).astype(np.int64),
        reader=costs.edge_dst[by_src],
        size_bytes=costs.edge_bytes[by_src],
        latency_s=np.where(off, costs.link_latency_s, 0.0),
        s_per_byte=np.where(off, 1.0 / costs.link_bandwidth_bytes_per_s, 0.0),
        arrival_s=np.zeros((num, d)),
        free_s=np.zeros(d),
        waiting=np.zeros(num, dtype=np.int64),
        ready=np.zeros(num, ENTRY),
        device=np.zeros(num, dtype=np.int64),
        rank=np.zeros(num),
    )


@bare
def schedule(g: Listed, pin: IntArray, rank: FloatArray) -> None:
    """Fill ``device`` and ``rank``: ready units by ``rank`` [U], each on its pin [U] or, where that is D, where it ends
    first without being put into a gap. Ties go by device index."""
    num, num_devices = g.time_s.shape
    size = 0
    for d in range(num_devices):
        g.free_s[d] = 0.0
    for u in range(num):
        g.waiting[u] = g.num_inputs[u]
        for d in range(num_devices):
            g.arrival_s[u, d] = 0.0
        if g.waiting[u] == 0:
            push(g.ready, 0, size, rank[u], u)
            size += 1
    place = 0
    while size > 0:
        u = pop(g.ready, 0, size)
        size -= 1
        home, end_s = _earliest(g, u, pin[u])
        g.device[u] = home
        g.rank[u] = place
        g.free_s[home] = end_s
        place += 1
        for k in range(g.first[u], g.first[u + 1]):
            v = g.reader[k]
            for d in range(num_devices):
                at_s = end_s + g.latency_s[home, d] + g.size_bytes[k] * g.s_per_byte[home, d]
                g.arrival_s[v, d] = max(g.arrival_s[v, d], at_s)
            g.waiting[v] -= 1
            if g.waiting[v] == 0:
                push(g.ready, 0, size, rank[v], v)
                size += 1


@inlined
def _earliest(g: Listed, u: int, pin: int) -> tuple[int, float]:
    """Where u ends first, or its pin, and when."""
    num_devices = len(g.free_s)
    home, end_s = pin, np.inf
    for d in range(num_devices):
        if pin in (num_devices, d):
            at_s = max(g.free_s[d], g.arrival_s[u, d]) + g.time_s[u, d]
            if at_s < end_s:
                home, end_s = d, at_s
    return home, end_s


@bare
def _propose(g: Listed, c: Chain, num: int) -> None:
    for _ in range(num):
        limit = draw(c)
        if c.state[0].num_changed > 0:
            schedule(g, c.device, c.rank)
            for u in range(len(g.device)):
                put(g.scheduled, g.device, g.rank, u)
            is_kept(c, simulated(g.scheduled, c, limit * (1.0 + ROUNDING)), limit)
            settle(c)


def _value(g: Listed, c: Chain) -> float:
    """The simulated value of the schedule of a chain's pins and ranks."""
    schedule(g, c.device, c.rank)
    return value_of_plan(g.scheduled, c, g.device, g.rank)


propose.register(Listed, _propose)
value_of.register(Listed, _value)
