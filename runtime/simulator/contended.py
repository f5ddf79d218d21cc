"""Work-conserving execution of devices that slow each other down, compiled.

While other devices run ops, an op on device a runs at the rate 1 / (1 + sum of excesses), where the excess of another
device b over 1 is that of ``slowdown[a, b]``: D equal devices that share one core each take D times as long, as fair
sharing has it. Whenever a device begins to work or ends, what is left of the ops that run is stretched or shortened in
proportion. Overheads and transfers neither slow anything down nor are slowed down.

The kernel here is for independent links; that for the others stretches its ops by ``stretch``. It is an event loop, for
when an op ends is not known when it starts: ops that end now are cleared, then idle devices start ops, and only then
time moves on.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.ir.kernels import bare, inlined, inner
from hsdag.runtime.simulator.independent import expect, send, take
from hsdag.runtime.simulator.machine import Machine, is_late, note_op, op_s


@inner
def run_contended(m: Machine) -> float:
    """Makespan in seconds of the placement that is loaded; infinite beyond the limit, or when a transfer never ends."""
    m.run[0].num_done = 0
    for d in range(len(m.devices)):
        m.devices[d].free_s = 0.0
        m.devices[d].next_s = np.inf
        m.devices[d].until_s = np.inf
        m.devices[d].running = -1
    for i in range(len(m.sources)):
        expect(m, m.sources[i], 0.0)
    makespan_s = 0.0
    while True:
        now_s = np.inf
        for d in range(len(m.devices)):
            now_s = min(now_s, min(m.devices[d].next_s, m.devices[d].until_s))
        if now_s == np.inf:
            return makespan_s if m.run[0].num_done == len(m.order) else np.inf
        m.run[0].now_s = now_s
        for d in range(len(m.devices)):
            if m.devices[d].until_s <= now_s:
                makespan_s = now_s
                if is_late(m, m.devices[d].running, d):  # it has been stretched since it started
                    return np.inf
                _end(m, d, now_s)
        for d in range(len(m.devices)):
            if m.devices[d].next_s <= now_s:
                _start(m, d, now_s)
                if is_late(m, m.devices[d].running, d):
                    return np.inf
        stretch(m)


@inlined
def _end(m: Machine, d: int, now_s: float) -> None:
    """The op of device d ends: its results set off, and the device is free for what has arrived there."""
    v = m.devices[d].running
    m.devices[d].running = -1
    m.devices[d].until_s = np.inf
    m.devices[d].free_s = now_s + m.run[0].op_overhead_s
    m.run[0].num_done += 1
    if m.devices[d].queued > 0:
        m.devices[d].next_s = m.devices[d].free_s
    elif m.devices[d].arriving > 0:
        m.devices[d].next_s = max(m.devices[d].free_s, m.arriving[m.devices[d].base].value)
    send(m, v, now_s)


@inlined
def _start(m: Machine, d: int, now_s: float) -> None:
    """Device d takes the first op of its queue; nothing else starts there before that ends."""
    v = take(m, d, now_s)
    m.devices[d].running = v
    m.devices[d].slow = 1.0
    m.devices[d].until_s = now_s + op_s(m, v, d)
    m.devices[d].left_s -= op_s(m, v, d)
    m.devices[d].free_s = np.inf
    m.devices[d].next_s = np.inf
    note_op(m, v, now_s, m.devices[d].until_s)


@inlined
def stretch(m: Machine) -> float:
    """Give every op that runs the rate that those beside it leave it; the next time at which a device ends something.

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


@bare
def drained_s(load_s: FloatArray, excess: FloatArray) -> float:
    """Seconds until devices that begin together, at seconds of work each, have done all of it; the longest takes that.

    ``load_s`` [2 D] are the loads and room for as many figures; it is overwritten.
    """
    num_devices, now_s = len(excess), 0.0
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
    """[B] the longest of loads [B, D], stretched as ``drained_s`` has it where devices slow each other down."""
    if not len(excess):
        return np.asarray(load_s.max(axis=1))
    return np.array([drained_s(np.append(row, row), excess) for row in load_s], dtype=np.float64)
