"""Sequential execution, compiled: HETERO's, one op or transfer of the whole machine at a time."""

from __future__ import annotations

import numpy as np

from hsdag.ir.kernels import inlined, inner
from hsdag.runtime.simulator.machine import EGRESS, Machine, link_s, note_op, note_transfer, op_s


@inner
def run_sequential(m: Machine) -> float:
    """Seconds until the last op ends, in topological order, of the placement that is loaded.

    A change of device costs a launch. After an op come its overhead and then the transfers of its results, one after
    another by port and destination index, each with its overhead. Infinite beyond the limit.
    """
    now_s, makespan_s, previous = 0.0, 0.0, -1
    for v in range(len(m.order)):
        home = m.ops[v].device
        if home != previous:
            now_s += m.devices[home].launch_s
        previous = home
        makespan_s = now_s + op_s(m, v, home)
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
    """Send a result of v to all other devices that read it; the time when that is over."""
    home, slowest_s, found = m.ops[v].device, 0.0, False
    for d in range(len(m.devices)):
        m.devices[d].stamp = -1
    for k in range(result, m.ops[v + 1].first):
        away = m.ops[m.edges[k].consumer].device
        if m.edges[k].result == result and away != home and m.devices[away].stamp < 0:
            m.devices[away].stamp = k
            found = True
            slowest_s = max(slowest_s, link_s(m, k, home, away))
    if not found:
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
