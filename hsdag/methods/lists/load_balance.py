"""Balance loads for throughput: list scheduling by the load of the busiest resource instead of time.

Legend: N ops, D devices.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.base.kernels import ZERO, bare, inlined, run_kernel
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.lists.schedule import ListState, assign, first_ready, has_room, release
from hsdag.runtime.problem.semantics import LinkSharing
from hsdag.runtime.problem.tables import Tables
from hsdag.runtime.simulator.machine import BLOCKING, EGRESS, INDEPENDENT, pop


class Loads(NamedTuple):
    """Loads of devices, then of the bus of each ordered pair of them; a device's egress bus is its pair with itself."""

    load_s: FloatArray  # [D + D * D]
    extra_s: FloatArray  # [D + D * D] load that the present op would add; 0 between ops
    busiest_s: FloatArray  # [1] the largest load
    sent_s: FloatArray  # [N, D] transfer time of a result to a device (egress: in the home's column); -1 for none
    links: int


def balanced_placement(tables: Tables, urgency: FloatArray, links: LinkSharing, *, by_start: bool = False) -> IntArray:
    """Return the placement [N] that takes ops by ``urgency`` [N] and keeps the load of the busiest resource small.

    Loads count as in ``period_s``: an op adds its time to its device, and transfers of its inputs to links. Ties, for
    example where no resource becomes the busiest, go to the shorter time of the op, then to the smaller device index.
    Devices whose memory is full of weights are excluded while there is another. Takes O((N + E) D + N log N).

    Args:
        by_start: Take the device that is least loaded without the op's own time instead.
    """
    n, d = tables.time_s.shape
    size = d + d * d
    loads = Loads(np.zeros(size), np.zeros(size), np.zeros(1), np.full((n, d), -1.0), tuple(LinkSharing).index(links))
    s = ListState.of(tables)
    run_kernel(_run, 2.0 * d * (n + len(tables.in_op)), tables, s, loads, urgency, by_start)
    return s.device


@bare
def _run(t: Tables, s: ListState, loads: Loads, urgency: FloatArray, by_start: bool) -> None:
    num_ready = first_ready(s, urgency)
    while num_ready > 0:
        v = pop(s.ready, ZERO, num_ready)
        num_ready -= 1
        d = _least_loaded(t, s, loads, v, by_start, True)
        if d < 0:
            d = _least_loaded(t, s, loads, v, by_start, False)
        loads.load_s[d] += t.time_s[v, d] + t.op_overhead_s
        for k in range(t.in_first[v], t.in_first[v + 1]):
            _bring(t, s, loads, t.in_op[k], d, t.in_bytes[k], loads.load_s, True)
            home = s.device[t.in_op[k]]
            for r in (home, _bus(loads, len(s.free_s), home, d)):
                loads.busiest_s[0] = max(loads.busiest_s[0], loads.load_s[r])
        loads.busiest_s[0] = max(loads.busiest_s[0], loads.load_s[d])
        assign(t, s, v, d, 0.0)
        num_ready = release(t, s, urgency, v, num_ready)


@bare
def _least_loaded(t: Tables, s: ListState, loads: Loads, v: int, by_start: bool, limited: bool) -> int:
    """Return the best device for op v, or -1 if none has room and ``limited`` is set."""
    best, best_s, best_time_s = -1, np.inf, np.inf
    for d in range(len(s.free_s)):
        time_s = t.time_s[v, d]
        if time_s == np.inf or (limited and not has_room(t, s, v, d)):
            continue
        if not by_start:
            loads.extra_s[d] += time_s + t.op_overhead_s
        for k in range(t.in_first[v], t.in_first[v + 1]):
            _bring(t, s, loads, t.in_op[k], d, t.in_bytes[k], loads.extra_s, False)
        busiest_s = loads.load_s[d] + loads.extra_s[d]
        if not by_start:
            busiest_s = max(busiest_s, loads.busiest_s[0])
        loads.extra_s[d] = 0.0
        for k in range(t.in_first[v], t.in_first[v + 1]):
            home = s.device[t.in_op[k]]
            for r in (home, _bus(loads, len(s.free_s), home, d)):
                busiest_s = max(busiest_s, loads.load_s[r] + loads.extra_s[r]) if loads.extra_s[r] > 0.0 else busiest_s
                loads.extra_s[r] = 0.0
        if best < 0 or busiest_s < best_s or (busiest_s == best_s and time_s < best_time_s):
            best, best_s, best_time_s = d, busiest_s, time_s
    return best


@inlined
def _bus(loads: Loads, num_devices: int, home: int, away: int) -> int:
    """Return the index of the bus from ``home`` to ``away`` in the loads."""
    to = home if loads.links == EGRESS else away
    return num_devices * (1 + home) + to


@inlined
def _bring(
    t: Tables, s: ListState, loads: Loads, u: int, d: int, size_bytes: float, to_s: FloatArray, keep: bool
) -> None:
    """Add to ``to_s`` the time to bring the result of u to device d, less what was sent already.

    ``keep`` records that it was sent.
    """
    home = s.device[u]
    if home == d or loads.links == INDEPENDENT:
        return
    column = home if loads.links == EGRESS else d
    cost_s = t.latency_s[home, d] + size_bytes / t.bandwidth_bytes_per_s[home, d]
    sent_s = loads.sent_s[u, column]
    added_s = max(0.0, cost_s - sent_s) if sent_s >= 0.0 else cost_s + t.transfer_overhead_s
    if loads.links == BLOCKING:
        to_s[home] += added_s
        to_s[d] += added_s
    else:
        to_s[_bus(loads, len(s.free_s), home, d)] += added_s
    if keep:
        loads.sent_s[u, column] = max(sent_s, cost_s)
