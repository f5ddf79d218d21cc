"""Execution of ops, compiled: one at a time for all devices, or work-conserving over links that never wait.

Links that never wait need no event loop: once an op starts, the arrival of its result is known everywhere. So ops are
taken in the order of their starts, and each start tells its consumers. A device's next start is the later of its own
end and the first arrival of an op's last input. The event loop simulates the same in 1.2 to 1.4 times the time.
"""

from __future__ import annotations

import numpy as np

from hsdag.base.kernels import NONE, bare, inlined, inner
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.simulator.machine import (
    BY_ARRIVAL,
    BY_LATEST_ARRIVAL,
    EGRESS,
    PLACE,
    Machine,
    is_late,
    link_s,
    note_op,
    note_transfer,
    pop,
    push,
)


@inner
def run_sequential(m: Machine) -> float:
    """Return the seconds until the last op ends, in topological order, of the loaded placement.

    A change of device costs a launch. After an op come its overhead and then the transfers of its results, one after
    another by port and destination index, each with its overhead. Infinite beyond the limit.
    """
    now_s, makespan_s = 0.0, 0.0
    previous = -1
    for v in range(len(m.order)):
        home = m.ops[v].device
        if home != previous:
            now_s += m.devices[home].launch_s
        previous = home
        makespan_s = now_s + m.time_s[v, home]
        if makespan_s > m.run[0].limit_s:
            return np.inf
        note_op(m, v, now_s, makespan_s)
        now_s = makespan_s + m.run[0].op_overhead_s
        for k in range(m.ops[v].first, m.ops[v + 1].first):
            if m.edges[k].result == k:
                now_s = _bring(m, v, k, now_s)
    return makespan_s


@inlined
def _bring(m: Machine, v: int, result: int, now_s: float) -> float:
    """Send a result of v to all other devices that read it; return the time when that is over."""
    home = m.ops[v].device
    slowest_s, crosses = 0.0, False
    for d in range(len(m.devices)):
        m.devices[d].stamp = -1
    for k in range(result, m.ops[v + 1].first):
        away = m.ops[m.edges[k].consumer].device
        if m.edges[k].result == result and away != home and m.devices[away].stamp < 0:
            m.devices[away].stamp = k
            crosses = True
            slowest_s = max(slowest_s, link_s(m, k, home, away))
    if not crosses:
        return now_s
    together = m.run[0].links == EGRESS
    for away in range(len(m.devices)):
        k = m.devices[away].stamp
        if k >= 0:
            cost_s = slowest_s if together else link_s(m, k, home, away)
            note_transfer(m, k, away, now_s, now_s + cost_s)
            if not together:
                now_s += cost_s + m.run[0].transfer_overhead_s
    return now_s + slowest_s + m.run[0].transfer_overhead_s if together else now_s


@inner
def run_independent(m: Machine) -> float:
    """Return the makespan in seconds of the loaded placement; infinite beyond the limit, or without an end."""
    m.run[0].num_done = 0
    m.run[0].now_s = 0.0
    for d in range(len(m.devices)):
        m.devices[d].free_s = 0.0
        m.devices[d].next_s = np.inf
    for i in range(len(m.sources)):
        _expect(m, m.sources[i], 0.0)
    while True:
        now_s, first = np.inf, NONE
        for d in range(len(m.devices)):
            if m.devices[d].next_s < now_s:
                now_s, first = m.devices[d].next_s, d
        if first < 0:
            is_whole = m.run[0].num_done == len(m.order) and m.run[0].now_s <= m.run[0].limit_s
            return m.run[0].now_s if is_whole else np.inf
        _start_alone(m, first, now_s)
        if is_late(m, m.devices[first].running, first):
            return np.inf
        if m.devices[first].until_s > now_s:
            _end_alone(m, first)
        else:
            _start_together(m, first, now_s)


@inlined
def _start_together(m: Machine, first: int, now_s: float) -> None:
    """Start all other ops that start now before anything ends: they must not see what ``first`` gave in no time."""
    for d in range(len(m.devices)):
        if d != first:
            m.devices[d].running = -1
            if m.devices[d].next_s == now_s:
                _start_alone(m, d, now_s)
    for d in range(len(m.devices)):
        if m.devices[d].running >= 0:
            _end_alone(m, d)


@inlined
def _end_alone(m: Machine, d: int) -> None:
    """Record the end of the op that device d has started, and send its results."""
    m.run[0].now_s = max(m.run[0].now_s, m.devices[d].until_s)
    m.run[0].num_done += 1
    _send(m, m.devices[d].running, m.devices[d].until_s)


@inlined
def _expect(m: Machine, v: int, at_s: float) -> None:
    """Note that the last input of v will be at its device at ``at_s``."""
    d = m.ops[v].device
    push(m.arriving, m.devices[d].base, m.devices[d].arriving, at_s, m.ops[v].key)
    m.devices[d].arriving += 1
    m.devices[d].next_s = min(m.devices[d].next_s, max(m.devices[d].free_s, at_s))


@inlined
def _start_alone(m: Machine, d: int, now_s: float) -> None:
    v = _take(m, d, now_s)
    duration_s = m.time_s[v, d]
    end_s = now_s + duration_s
    m.devices[d].running = v
    m.devices[d].until_s = end_s
    m.devices[d].left_s -= duration_s
    m.devices[d].free_s = end_s + m.run[0].op_overhead_s
    next_s = np.inf
    if m.devices[d].queued > 0:
        next_s = m.devices[d].free_s
    elif m.devices[d].arriving > 0:
        next_s = max(m.devices[d].free_s, m.arriving[m.devices[d].base].value)
    m.devices[d].next_s = next_s
    note_op(m, v, now_s, end_s)


@inlined
def _take(m: Machine, d: int, now_s: float) -> int:
    """Take the first op of the queue, which is the queue of arrivals if ops run in the order of arrival."""
    base = m.devices[d].base
    if m.run[0].mode == BY_ARRIVAL:
        key = pop(m.arriving, base, m.devices[d].arriving)
        m.devices[d].arriving -= 1
        return key & PLACE
    while m.devices[d].arriving > 0 and m.arriving[base].value <= now_s:
        arrival_s = m.arriving[base].value
        key = pop(m.arriving, base, m.devices[d].arriving)
        m.devices[d].arriving -= 1
        value = -arrival_s if m.run[0].mode == BY_LATEST_ARRIVAL else m.ops[key & PLACE].value
        push(m.queue, base, m.devices[d].queued, value, key)
        m.devices[d].queued += 1
    key = pop(m.queue, base, m.devices[d].queued)
    m.devices[d].queued -= 1
    return key & PLACE


@inlined
def _send(m: Machine, v: int, end_s: float) -> None:
    """Send each result of v, which ends at ``end_s``, once to every other device that reads it."""
    home = m.ops[v].device
    for k in range(m.ops[v].first, m.ops[v + 1].first):
        u = m.edges[k].consumer
        away = m.ops[u].device
        if m.devices[away].stamp != m.edges[k].result:
            m.devices[away].stamp = m.edges[k].result
            m.devices[away].landing_s = end_s + link_s(m, k, home, away)
            if away != home:
                note_transfer(m, k, away, end_s, m.devices[away].landing_s)
        m.ops[u].arrival_s = max(m.ops[u].arrival_s, m.devices[away].landing_s)
        m.ops[u].waiting -= 1
        if m.ops[u].waiting == 0:
            _expect(m, u, m.ops[u].arrival_s)


@bare
def drained_s(load_s: FloatArray, excess: FloatArray) -> float:
    """Return the seconds until devices that begin together, with seconds of work each, have done all of it.

    ``load_s`` [2 D] are the loads and room for as many figures; it is overwritten.
    """
    num_devices = len(excess)
    now_s = 0.0
    while True:
        step_s = np.inf
        for d in range(num_devices):
            if load_s[d] > 0.0:
                slow = 1.0
                for other in range(num_devices):
                    if load_s[other] > 0.0:
                        slow += excess[d, other]
                load_s[num_devices + d] = slow
                step_s = min(step_s, load_s[d] * slow)
        if step_s == np.inf:
            return now_s
        now_s += step_s
        for d in range(num_devices):
            if load_s[d] > 0.0:
                is_done = load_s[d] * load_s[num_devices + d] <= step_s
                load_s[d] = 0.0 if is_done else load_s[d] - step_s / load_s[num_devices + d]


def busiest_s(load_s: FloatArray, excess: FloatArray) -> FloatArray:
    """Return [B] the longest of loads [B, D], stretched as by ``drained_s`` if devices slow each other down."""
    if not len(excess):
        return np.asarray(load_s.max(axis=1))
    return np.array([drained_s(np.append(row, row), excess) for row in load_s], dtype=np.float64)
