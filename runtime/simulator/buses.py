"""Work-conserving execution, compiled, where links make results wait or devices slow each other down: an event loop.

Time stands still while anything can happen: ops and buses that end now are cleared, then buses start transfers until
none can, then idle devices start ops, and only then time moves on to the next event. An op waits in its device's
queue from the arrival of its last input.

While other devices run ops, an op on device a runs at the rate 1 / (1 + sum of excesses), where the excess of another
device b is ``slowdown[a, b]`` - 1: D equal devices that share one core each take D times as long, as under fair
sharing. Whenever a device begins to work or ends, the rest of the running ops is stretched or shortened in
proportion. Overheads and transfers neither slow anything down nor are slowed down.
"""

from __future__ import annotations

import numpy as np

from hsdag.base.kernels import ZERO, inlined, inner
from hsdag.runtime.simulator.machine import (
    BY_ARRIVAL,
    BY_LATEST_ARRIVAL,
    CHANNEL,
    OVER_BUSES,
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
def run_by_events(m: Machine, way: tuple[int, ...]) -> float:
    """Return the makespan in seconds of the loaded placement; infinite beyond the limit, or if a transfer never ends.

    ``way`` is the machine's.
    """
    m.run[0].now_s = 0.0
    m.run[0].num_done = 0
    m.run[0].num_events = 0
    for d in range(len(m.devices)):
        m.devices[d].running = -1
        m.devices[d].until_s = np.inf
    if len(way) == OVER_BUSES:
        _reset_buses(m)
    for i in range(len(m.sources)):
        _enqueue(m, m.sources[i])
    while True:
        _clear_devices(m, way)
        _clear_events(m, way)
        if len(way) == OVER_BUSES:
            while m.run[0].num_touched > 0:
                _start_transfers(m)
                _clear_events(m, way)
        next_s = _start_ops(m)
        if next_s < 0.0:
            return np.inf
        if len(m.excess) > 0:
            next_s = _stretch(m)
        if m.run[0].num_events > 0:
            next_s = min(next_s, m.events[0].value)
        if m.run[0].num_done == len(m.order):
            return m.run[0].now_s if m.run[0].now_s <= m.run[0].limit_s else np.inf
        if next_s == np.inf:
            return np.inf
        m.run[0].now_s = next_s


@inlined
def _reset_buses(m: Machine) -> None:
    """Reset buses; a bus has room for all edges that leave its device or, as a channel, for those of its pair."""
    m.run[0].num_touched = 0
    for b in range(len(m.buses)):
        m.buses[b].base = 0
        m.buses[b].queued = 0
        m.buses[b].busy = 0
        m.buses[b].is_touched = 0
    for k in range(len(m.edges)):
        home, away = m.ops[m.edges[k].producer].device, m.ops[m.edges[k].consumer].device
        if away != home:
            m.buses[_bus(m, home, away) + 1].base += 1
    for b in range(1, len(m.buses)):
        m.buses[b].base += m.buses[b - 1].base


@inlined
def _bus(m: Machine, home: int, away: int) -> int:
    return home * len(m.devices) + away if m.run[0].links == CHANNEL else home


@inlined
def _enqueue(m: Machine, v: int) -> None:
    """Put op v, which is ready, into its device's queue."""
    value = m.ops[v].value
    if m.run[0].mode == BY_ARRIVAL:
        value = m.run[0].now_s
    elif m.run[0].mode == BY_LATEST_ARRIVAL:
        value = -m.run[0].now_s
    d = m.ops[v].device
    push(m.queue, m.devices[d].base, m.devices[d].queued, value, m.ops[v].key)
    m.devices[d].queued += 1


@inlined
def _arrive(m: Machine, v: int, at_s: float) -> None:
    """Note that one input of v is at its device from ``at_s`` on; with its last input, v becomes ready then."""
    m.ops[v].arrival_s = max(m.ops[v].arrival_s, at_s)
    m.ops[v].waiting -= 1
    if m.ops[v].waiting == 0:
        if m.ops[v].arrival_s <= m.run[0].now_s:
            _enqueue(m, v)
        else:
            push(m.events, ZERO, m.run[0].num_events, m.ops[v].arrival_s, v)
            m.run[0].num_events += 1


@inlined
def _offer(m: Machine, v: int, way: tuple[int, ...]) -> None:
    """Send the results of v, which is done, to the devices that read them, or queue them for the buses."""
    home = m.ops[v].device
    for k in range(m.ops[v].first, m.ops[v + 1].first):
        u = m.edges[k].consumer
        away = m.ops[u].device
        if away == home:
            _arrive(m, u, m.run[0].now_s)
            continue
        result = m.edges[k].result
        if len(way) == OVER_BUSES:
            via = away if m.run[0].links == CHANNEL else home
            if m.devices[via].stamp != result:
                m.devices[via].stamp = result
                bus = _bus(m, home, away)
                key = (m.order[v] << 32) + result  # ties go by op index, as everywhere
                push(m.bus_queue, m.buses[bus].base, m.buses[bus].queued, m.run[0].now_s, key)
                m.buses[bus].queued += 1
                _touch(m, bus)
        else:
            if m.devices[away].stamp != result:
                m.devices[away].stamp = result
                m.devices[away].landing_s = m.run[0].now_s + link_s(m, k, home, away)
                note_transfer(m, k, away, m.run[0].now_s, m.devices[away].landing_s)
            _arrive(m, u, m.devices[away].landing_s)


@inlined
def _touch(m: Machine, bus: int) -> None:
    if m.buses[bus].busy == 0 and m.buses[bus].is_touched == 0:
        m.buses[bus].is_touched = 1
        m.buses[m.run[0].num_touched].touched = bus
        m.run[0].num_touched += 1


@inlined
def _clear_devices(m: Machine, way: tuple[int, ...]) -> None:
    """Remove the ops and overheads that end now from their devices."""
    now_s = m.run[0].now_s
    for d in range(len(m.devices)):
        if m.devices[d].until_s > now_s:
            continue
        m.devices[d].until_s = np.inf
        v = m.devices[d].running
        if v >= 0:
            m.devices[d].running = -1
            m.run[0].num_done += 1
            if now_s + m.run[0].op_overhead_s > now_s:
                m.devices[d].until_s = now_s + m.run[0].op_overhead_s
            _offer(m, v, way)


@inlined
def _clear_events(m: Machine, way: tuple[int, ...]) -> None:
    """Make ops ready whose last input arrives now, and free the buses that end now."""
    while m.run[0].num_events > 0 and m.events[0].value <= m.run[0].now_s:
        what = pop(m.events, ZERO, m.run[0].num_events)
        m.run[0].num_events -= 1
        if what < len(m.order):
            _enqueue(m, what)
        elif len(way) == OVER_BUSES:
            m.buses[what - len(m.order)].busy = 0
            _touch(m, what - len(m.order))


@inlined
def _start_transfers(m: Machine) -> None:
    """Start the transfer that has waited longest on every touched bus."""
    while m.run[0].num_touched > 0:
        m.run[0].num_touched -= 1
        bus = m.buses[m.run[0].num_touched].touched
        m.buses[bus].is_touched = 0
        if m.buses[bus].queued == 0:
            continue
        result = pop(m.bus_queue, m.buses[bus].base, m.buses[bus].queued) & PLACE
        m.buses[bus].queued -= 1
        m.buses[bus].busy = 1
        to = bus % len(m.devices) if m.run[0].links == CHANNEL else -1
        end_s = m.run[0].now_s + _slowest_s(m, result, to)
        _land(m, result, to, end_s)
        push(m.events, ZERO, m.run[0].num_events, end_s + m.run[0].transfer_overhead_s, len(m.order) + bus)
        m.run[0].num_events += 1


@inlined
def _slowest_s(m: Machine, result: int, to: int) -> float:
    """Return the seconds to bring a result to device ``to``, or to all that read it if ``to`` is -1."""
    v = m.edges[result].producer
    home = m.ops[v].device
    longest_s = 0.0
    for k in range(result, m.ops[v + 1].first):
        away = m.ops[m.edges[k].consumer].device
        if m.edges[k].result == result and away != home and (to < 0 or away == to):
            longest_s = max(longest_s, link_s(m, k, home, away))
    return longest_s


@inlined
def _land(m: Machine, result: int, to: int, end_s: float) -> None:
    """Send a result that reaches device ``to``, or all that read it if ``to`` is -1, at ``end_s``."""
    v = m.edges[result].producer
    begin = m.run[0].num_records
    for k in range(result, m.ops[v + 1].first):
        away = m.ops[m.edges[k].consumer].device
        if m.edges[k].result != result or away == m.ops[v].device or (to >= 0 and away != to):
            continue
        if m.run[0].keep:
            is_noted = False
            for row in range(begin, m.run[0].num_records):
                is_noted = is_noted or m.records[row].to == away
            if not is_noted:
                note_transfer(m, k, away, m.run[0].now_s, end_s)
        _arrive(m, m.edges[k].consumer, end_s)


@inlined
def _start_ops(m: Machine) -> float:
    """Start the first op of the queue of each idle device; return the next time at which a device ends something.

    It is -1 if an op that starts makes the run exceed its limit.
    """
    next_s = np.inf
    for d in range(len(m.devices)):
        if m.devices[d].until_s == np.inf and m.devices[d].queued > 0:
            v = pop(m.queue, m.devices[d].base, m.devices[d].queued) & PLACE
            m.devices[d].queued -= 1
            m.devices[d].running = v
            m.devices[d].slow = 1.0
            m.devices[d].until_s = m.run[0].now_s + m.time_s[v, d]
            note_op(m, v, m.run[0].now_s, m.devices[d].until_s)
            m.devices[d].left_s -= m.time_s[v, d]
            if is_late(m, v, d):
                return -1.0
        next_s = min(next_s, m.devices[d].until_s)
    return next_s


@inlined
def _stretch(m: Machine) -> float:
    """Adjust the rate of every running op to those beside it; return the next time at which a device ends something.

    ``slow`` is by how much an op is stretched already, 1 for one that starts now.
    """
    now_s, next_s = m.run[0].now_s, np.inf
    for d in range(len(m.devices)):
        if m.devices[d].running >= 0:
            slow = 1.0
            for other in range(len(m.devices)):
                if m.devices[other].running >= 0:
                    slow += m.excess[d, other]
            if slow != m.devices[d].slow:
                m.devices[d].until_s = now_s + (m.devices[d].until_s - now_s) * (slow / m.devices[d].slow)
                m.devices[d].slow = slow
                if m.run[0].keep:
                    m.spans[m.devices[d].running].end_s = m.devices[d].until_s
        next_s = min(next_s, m.devices[d].until_s)
    return next_s
