"""Work-conserving execution, compiled: an event loop over devices that never idle while an op is ready for them.

Time stands still while anything can happen: ops and buses that end now are cleared, then buses start transfers until
none can, then idle devices start ops, and only then time moves on to the next event. An op waits in its device's
queue from the arrival of its last input; keys of the queues carry the op in their low half, so that ties go by op
index. The arguments of all functions are those of ``Machine``.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import FloatArray, IntArray
from hsdag.runtime.simulator.heaps import Records, bare, inlined, pop_event, pop_key, push_event, push_key
from hsdag.runtime.simulator.machine import CHANNEL, EGRESS, INDEPENDENT, link_s, note_transfer

BY_KEY, BY_ARRIVAL, BY_LATEST_ARRIVAL, BY_PATH = 0, 1, 2, 3
"""What queues are ordered by: given keys; arrival of the last input, early or late ones first; the way to the end."""
_OP = (1 << 32) - 1


@bare
def run_work_conserving(
    ops: Records,
    edges: Records,
    links: Records,
    factor: FloatArray,
    devices: Records,
    buses: Records,
    queue: IntArray,
    bus_queue: IntArray,
    events: Records,
    records: Records,
    run: Records,
) -> float:
    """Makespan in seconds of the placement in ``ops``; infinite when a transfer never ends."""
    _reset(ops, edges, devices, buses, run)
    for v in range(len(ops)):
        if ops[v].waiting == 0:
            _enqueue(ops, devices, queue, run, v)
    while True:
        _clear_devices(ops, edges, links, factor, devices, buses, queue, bus_queue, events, records, run)
        _clear_events(ops, devices, buses, queue, events, run)
        while run[0].num_touched > 0:
            _start_transfers(ops, edges, links, factor, devices, buses, queue, bus_queue, events, records, run)
            _clear_events(ops, devices, buses, queue, events, run)
        next_s = _start_ops(ops, devices, queue, run)
        if run[0].num_events > 0:
            next_s = min(next_s, events[0].time_s)
        if run[0].num_done == len(ops):
            return run[0].now_s  # type: ignore[no-any-return]
        if next_s == np.inf:
            return np.inf
        if next_s > run[0].now_s:
            run[0].now_s = next_s
            run[0].tick += 1


@bare
def _reset(ops: Records, edges: Records, devices: Records, buses: Records, run: Records) -> None:
    run[0].now_s = 0.0
    run[0].tick = 0
    run[0].num_done = 0
    run[0].num_events = 0
    run[0].num_touched = 0
    run[0].num_records = 0
    for d in range(len(devices)):
        devices[d].base = 0
        devices[d].queued = 0
        devices[d].running = -1
        devices[d].until_s = np.inf
        devices[d].stamp = -1
    for v in range(len(ops)):
        ops[v].waiting = ops[v].num_inputs
        ops[v].arrival_s = 0.0
        devices[ops[v].device].base += 1
    base = 0
    for d in range(len(devices)):
        size = devices[d].base
        devices[d].base = base
        base += size
    if run[0].links != INDEPENDENT:
        _reset_buses(ops, edges, devices, buses, run)


@bare
def _reset_buses(ops: Records, edges: Records, devices: Records, buses: Records, run: Records) -> None:
    """A bus has room for all results its device may send, or, as a channel, for all edges of its pair."""
    for b in range(len(buses)):
        buses[b].base = 0
        buses[b].queued = 0
        buses[b].busy = 0
        buses[b].is_touched = 0
    if run[0].links == EGRESS:
        for d in range(len(devices)):
            buses[d].base = devices[d].base
        return
    for v in range(len(ops)):
        for k in range(ops[v].first, ops[v].stop):
            away = ops[edges[k].consumer].device
            if away != ops[v].device:
                buses[ops[v].device * len(devices) + away + 1].base += 1
    for b in range(1, len(buses)):
        buses[b].base += buses[b - 1].base


@inlined
def _enqueue(ops: Records, devices: Records, queue: IntArray, run: Records, v: int) -> None:
    """Op v is ready: put it into its device's queue."""
    mode, tick = run[0].mode, run[0].tick
    if mode == BY_ARRIVAL:
        key = (tick << 32) | v
    elif mode == BY_LATEST_ARRIVAL:
        key = (-tick << 32) | v
    else:
        key = ops[v].key
    d = ops[v].device
    push_key(queue, devices[d].base, devices[d].queued, key)
    devices[d].queued += 1


@inlined
def _arrive(
    ops: Records, devices: Records, queue: IntArray, events: Records, run: Records, v: int, at_s: float
) -> None:
    """One input of v is at its device from ``at_s`` on; with its last one v becomes ready then, or is already."""
    if at_s > ops[v].arrival_s:
        ops[v].arrival_s = at_s
    ops[v].waiting -= 1
    if ops[v].waiting == 0:
        if ops[v].arrival_s <= run[0].now_s:
            _enqueue(ops, devices, queue, run, v)
        else:
            push_event(events, run[0].num_events, ops[v].arrival_s, v)
            run[0].num_events += 1


@inlined
def _send(
    ops: Records,
    edges: Records,
    links: Records,
    factor: FloatArray,
    devices: Records,
    queue: IntArray,
    events: Records,
    records: Records,
    run: Records,
    v: int,
) -> None:
    """v is done, and links are independent: its result sets off to every device that reads it."""
    home, now_s = ops[v].device, run[0].now_s
    for k in range(ops[v].first, ops[v].stop):
        u = edges[k].consumer
        away = ops[u].device
        at_s = now_s
        if away != home:
            if devices[away].stamp != v:
                devices[away].stamp = v
                devices[away].landing_s = now_s + link_s(links, factor, v, home, away, edges[k].size_bytes)
                note_transfer(records, run, v, away, now_s, devices[away].landing_s, edges[k].size_bytes)
            at_s = devices[away].landing_s
        _arrive(ops, devices, queue, events, run, u, at_s)


@bare
def _offer(
    ops: Records,
    edges: Records,
    devices: Records,
    buses: Records,
    queue: IntArray,
    bus_queue: IntArray,
    events: Records,
    run: Records,
    v: int,
) -> None:
    """v is done, and links have buses: its result waits for those to the devices that read it."""
    home = ops[v].device
    by_pair = run[0].links == CHANNEL
    for k in range(ops[v].first, ops[v].stop):
        u = edges[k].consumer
        away = ops[u].device
        if away == home:
            _arrive(ops, devices, queue, events, run, u, run[0].now_s)
            continue
        via = away if by_pair else home
        if devices[via].stamp != v:
            devices[via].stamp = v
            bus = home * len(devices) + away if by_pair else home
            push_key(bus_queue, buses[bus].base, buses[bus].queued, (run[0].tick << 32) | v)
            buses[bus].queued += 1
            _touch(buses, run, bus)


@inlined
def _touch(buses: Records, run: Records, bus: int) -> None:
    if buses[bus].busy == 0 and buses[bus].is_touched == 0:
        buses[bus].is_touched = 1
        buses[run[0].num_touched].touched = bus
        run[0].num_touched += 1


@inlined
def _clear_devices(
    ops: Records,
    edges: Records,
    links: Records,
    factor: FloatArray,
    devices: Records,
    buses: Records,
    queue: IntArray,
    bus_queue: IntArray,
    events: Records,
    records: Records,
    run: Records,
) -> None:
    """Ops and overheads that end now leave their devices."""
    now_s = run[0].now_s
    for d in range(len(devices)):
        if devices[d].until_s > now_s:
            continue
        devices[d].until_s = np.inf
        v = devices[d].running
        if v >= 0:
            devices[d].running = -1
            run[0].num_done += 1
            if now_s + run[0].op_overhead_s > now_s:
                devices[d].until_s = now_s + run[0].op_overhead_s
            if run[0].links == INDEPENDENT:
                _send(ops, edges, links, factor, devices, queue, events, records, run, v)
            else:
                _offer(ops, edges, devices, buses, queue, bus_queue, events, run, v)


@inlined
def _clear_events(
    ops: Records, devices: Records, buses: Records, queue: IntArray, events: Records, run: Records
) -> None:
    """Ops whose last input arrives now become ready, and buses that end now become free."""
    while run[0].num_events > 0 and events[0].time_s <= run[0].now_s:
        what = pop_event(events, run[0].num_events)
        run[0].num_events -= 1
        if what < len(ops):
            _enqueue(ops, devices, queue, run, what)
        else:
            buses[what - len(ops)].busy = 0
            _touch(buses, run, what - len(ops))


@bare
def _start_transfers(
    ops: Records,
    edges: Records,
    links: Records,
    factor: FloatArray,
    devices: Records,
    buses: Records,
    queue: IntArray,
    bus_queue: IntArray,
    events: Records,
    records: Records,
    run: Records,
) -> None:
    """Every touched bus starts the transfer that has waited longest."""
    while run[0].num_touched > 0:
        run[0].num_touched -= 1
        bus = buses[run[0].num_touched].touched
        buses[bus].is_touched = 0
        if buses[bus].queued == 0:
            continue
        v = pop_key(bus_queue, buses[bus].base, buses[bus].queued) & _OP
        buses[bus].queued -= 1
        buses[bus].busy = 1
        to = bus % len(devices) if run[0].links == CHANNEL else -1
        end_s = run[0].now_s + _slowest_s(ops, edges, links, factor, v, to)
        _land(ops, edges, devices, queue, events, records, run, v, to, end_s)
        push_event(events, run[0].num_events, end_s + run[0].transfer_overhead_s, len(ops) + bus)
        run[0].num_events += 1


@bare
def _slowest_s(ops: Records, edges: Records, links: Records, factor: FloatArray, v: int, to: int) -> float:
    """Seconds to bring v's result to device ``to``, or to all that read it where ``to`` is -1."""
    home = ops[v].device
    longest_s = 0.0
    for k in range(ops[v].first, ops[v].stop):
        away = ops[edges[k].consumer].device
        if away != home and (to < 0 or away == to):
            longest_s = max(longest_s, link_s(links, factor, v, home, away, edges[k].size_bytes))
    return longest_s


@bare
def _land(
    ops: Records,
    edges: Records,
    devices: Records,
    queue: IntArray,
    events: Records,
    records: Records,
    run: Records,
    v: int,
    to: int,
    end_s: float,
) -> None:
    """v's result sets off now and is at device ``to``, or at all that read it where ``to`` is -1, from ``end_s``."""
    home, begin = ops[v].device, run[0].num_records
    for k in range(ops[v].first, ops[v].stop):
        away = ops[edges[k].consumer].device
        if away == home or (to >= 0 and away != to):
            continue
        if run[0].keep:
            known = False
            for row in range(begin, run[0].num_records):
                known = known or records[row].to == away
            if not known:
                note_transfer(records, run, v, away, run[0].now_s, end_s, edges[k].size_bytes)
        _arrive(ops, devices, queue, events, run, edges[k].consumer, end_s)


@inlined
def _start_ops(ops: Records, devices: Records, queue: IntArray, run: Records) -> float:
    """Idle devices start the first op of their queues; the next time at which any device ends something."""
    next_s = np.inf
    for d in range(len(devices)):
        if devices[d].until_s == np.inf and devices[d].queued > 0:
            v = pop_key(queue, devices[d].base, devices[d].queued) & _OP
            devices[d].queued -= 1
            devices[d].running = v
            devices[d].until_s = run[0].now_s + ops[v].duration_s
            if run[0].keep:
                ops[v].start_s = run[0].now_s
                ops[v].end_s = devices[d].until_s
        next_s = min(next_s, devices[d].until_s)
    return next_s
