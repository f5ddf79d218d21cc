"""Sequential execution, compiled: HETERO's, one op or transfer of the whole machine at a time."""

from __future__ import annotations

from hsdag.ir.graph import FloatArray
from hsdag.runtime.simulator.heaps import Records, bare
from hsdag.runtime.simulator.machine import EGRESS, link_s, note_transfer


@bare
def run_sequential(
    ops: Records,
    edges: Records,
    links: Records,
    factor: FloatArray,
    devices: Records,
    records: Records,
    run: Records,
) -> float:
    """Seconds until the last op ends, in topological order, of the placement in ``ops``.

    A change of device costs a launch. After an op come its overhead and then its transfers, one after
    another by destination index, each with its overhead.
    """
    run[0].num_records = 0
    now_s, makespan_s, previous = 0.0, 0.0, -1
    for i in range(len(ops)):
        v = ops[i].order
        home = ops[v].device
        if home != previous:
            now_s += devices[home].launch_s
        previous = home
        ops[v].start_s = now_s
        now_s += ops[v].duration_s
        makespan_s = now_s
        ops[v].end_s = now_s
        now_s = _bring(ops, edges, links, factor, devices, records, run, v, now_s + run[0].op_overhead_s)
    return makespan_s


@bare
def _bring(
    ops: Records,
    edges: Records,
    links: Records,
    factor: FloatArray,
    devices: Records,
    records: Records,
    run: Records,
    v: int,
    now_s: float,
) -> float:
    """Send v's result to all other devices that read it; the time when that is over."""
    home, slowest_s, found = ops[v].device, 0.0, False
    for d in range(len(devices)):
        devices[d].stamp = -1
    for k in range(ops[v].first, ops[v].stop):
        away = ops[edges[k].consumer].device
        if away != home and devices[away].stamp < 0:
            devices[away].stamp = k
            found = True
            slowest_s = max(slowest_s, link_s(links, factor, v, home, away, edges[k].size_bytes))
    if not found:
        return now_s
    together = run[0].links == EGRESS
    for away in range(len(devices)):
        k = devices[away].stamp
        if k >= 0:
            cost_s = slowest_s if together else link_s(links, factor, v, home, away, edges[k].size_bytes)
            note_transfer(records, run, v, away, now_s, now_s + cost_s, edges[k].size_bytes)
            if not together:
                now_s += cost_s + run[0].transfer_overhead_s
    return now_s + slowest_s + run[0].transfer_overhead_s if together else now_s
