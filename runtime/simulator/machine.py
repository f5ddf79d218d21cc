"""The simulated machine: a problem and the state of one run, as the records the compiled simulators work on.

Legend: N ops, E edges, D devices, L buses (one for each device, or for each ordered pair), R transfer records.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.ir.graph import FloatArray, IntArray
from hsdag.runtime.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator.heaps import EVENT, Records, bare, inlined
from hsdag.runtime.simulator.semantics import Links, Semantics

INDEPENDENT, EGRESS, CHANNEL = 0, 1, 2
_LINKS = {Links.INDEPENDENT: INDEPENDENT, Links.EGRESS: EGRESS, Links.CHANNEL: CHANNEL}

OP = np.dtype(
    [
        ("first", "i4"),  # its out-edges are first:stop, largest first
        ("stop", "i4"),
        ("num_inputs", "i4"),  # edges into it
        ("device", "i4"),
        ("waiting", "i4"),  # edges over which nothing is known to arrive yet
        ("order", "i4"),  # of row i: the i-th op in topological order
        ("key", "i8"),  # place in its device's queue, where that does not depend on time
        ("duration_s", "f8"),
        ("arrival_s", "f8"),  # of the last input known so far
        ("start_s", "f8"),
        ("end_s", "f8"),
    ],
    align=True,
)
EDGE = np.dtype([("consumer", "i8"), ("size_bytes", "f8")], align=True)
LINK = np.dtype([("latency_s", "f8"), ("bandwidth_bytes_per_s", "f8")], align=True)
DEVICE = np.dtype(
    [
        ("base", "i8"),  # where its queue begins
        ("queued", "i8"),
        ("running", "i8"),  # op, or -1
        ("until_s", "f8"),  # end of its op or overhead; infinite when idle
        ("stamp", "i8"),  # last op sent to it, or through it
        ("landing_s", "f8"),  # when that arrives
        ("launch_s", "f8"),
    ],
    align=True,
)
BUS = np.dtype([("base", "i8"), ("queued", "i8"), ("busy", "i8"), ("is_touched", "i8"), ("touched", "i8")], align=True)
"""``touched`` is a stack over all buses: those that may be able to start a transfer."""
RECORD = np.dtype([("op", "i8"), ("to", "i8"), ("start_s", "f8"), ("end_s", "f8"), ("size_bytes", "f8")], align=True)
RUN = np.dtype(
    [
        ("mode", "i8"),
        ("links", "i8"),
        ("keep", "i8"),  # whether to record intervals
        ("op_overhead_s", "f8"),
        ("transfer_overhead_s", "f8"),
        ("now_s", "f8"),
        ("tick", "i8"),  # how often time has moved on
        ("num_done", "i8"),
        ("num_events", "i8"),
        ("num_touched", "i8"),
        ("num_records", "i8"),
    ],
    align=True,
)


class Machine(NamedTuple):
    """A problem and room for one run, which the next run overwrites; passed to compiled code unpacked."""

    ops: Records  # [N] OP
    edges: Records  # [E] EDGE
    links: Records  # [D, D] LINK
    time_s: FloatArray  # [N, D]
    op_factor: FloatArray  # [N], or [0] without noise
    link_factor: FloatArray  # [N, D], or [0, D] without noise
    devices: Records  # [D] DEVICE
    buses: Records  # [L] BUS
    queue: IntArray  # [N] keys, a heap for each device
    bus_queue: IntArray  # [N] or [E] keys, a heap for each bus
    events: Records  # [N + L] EVENT
    records: Records  # [R] RECORD
    run: Records  # [1] RUN


def machine_for(problem: ScheduleProblem, semantics: Semantics, mode: int, keys: IntArray, keep: bool) -> Machine:
    """A machine with the noise of ``semantics`` drawn, in O(N D + E log E); ``keep`` has it record intervals."""
    n, d = problem.time_s.shape
    num_edges = len(problem.edge_src)
    links = _LINKS[semantics.links]
    num_buses = d * d if links == CHANNEL else d
    order = np.lexsort((problem.edge_dst, -problem.edge_bytes, problem.edge_src))
    ops, edges, run = np.zeros(n, OP), np.zeros(num_edges, EDGE), np.zeros(1, RUN)
    ops["stop"] = np.cumsum(np.bincount(problem.edge_src, minlength=n))
    ops["first"][1:] = ops["stop"][:-1]
    ops["num_inputs"] = np.bincount(problem.edge_dst, minlength=n)
    ops["order"], ops["key"] = problem.topological_order, keys
    edges["consumer"], edges["size_bytes"] = problem.edge_dst[order], problem.edge_bytes[order]
    link_table, devices = np.zeros((d, d), LINK), np.zeros(d, DEVICE)
    link_table["latency_s"] = problem.link_latency_s
    link_table["bandwidth_bytes_per_s"] = problem.link_bandwidth_bytes_per_s
    devices["launch_s"] = problem.launch_s
    run["mode"], run["links"], run["keep"] = mode, links, keep
    run["op_overhead_s"], run["transfer_overhead_s"] = problem.op_overhead_s, problem.transfer_overhead_s
    op_factor, link_factor = _noise(semantics, n, d)
    return Machine(
        ops=ops,
        edges=edges,
        links=link_table,
        time_s=problem.time_s.copy(),
        op_factor=op_factor,
        link_factor=link_factor,
        devices=devices,
        buses=np.zeros(num_buses + 1, BUS),
        queue=np.zeros(n, np.int64),
        bus_queue=np.zeros({INDEPENDENT: 0, EGRESS: n, CHANNEL: num_edges}[links], np.int64),
        events=np.zeros(n + num_buses, EVENT),
        records=np.zeros(num_edges if keep else 0, RECORD),
        run=run,
    )


def _noise(semantics: Semantics, num_ops: int, num_devices: int) -> tuple[FloatArray, FloatArray]:
    """Factors of op durations and of transfers by op and destination; empty without noise."""
    if semantics.noise_sigma == 0:
        return np.zeros(0), np.zeros((0, num_devices))
    generator = np.random.default_rng(semantics.seed)
    of_ops = np.exp(semantics.noise_sigma * generator.standard_normal(num_ops))
    return of_ops, np.exp(semantics.noise_sigma * generator.standard_normal((num_ops, num_devices)))


@bare
def load_placement(ops: Records, time_s: FloatArray, op_factor: FloatArray, placement: IntArray) -> bool:
    """Set every op's device and its duration there; False where a device does not support its op."""
    legal = True
    for v in range(len(ops)):
        duration_s = time_s[v, placement[v]]
        legal = legal and not np.isnan(duration_s)
        ops[v].device = placement[v]
        ops[v].duration_s = duration_s * op_factor[v] if len(op_factor) else duration_s
    return legal


@inlined
def link_s(links: Records, factor: FloatArray, v: int, home: int, away: int, size_bytes: float) -> float:
    """Seconds that the result of v takes from ``home`` to ``away``."""
    cost_s: float = links[home, away].latency_s + size_bytes / links[home, away].bandwidth_bytes_per_s
    if len(factor):
        cost_s *= factor[v, away]
    return cost_s


@inlined
def note_transfer(
    records: Records, run: Records, v: int, away: int, start_s: float, end_s: float, size_bytes: float
) -> None:
    """Record the interval of a transfer, where intervals are kept."""
    if run[0].keep:
        row = run[0].num_records
        records[row].op = v
        records[row].to = away
        records[row].start_s = start_s
        records[row].end_s = end_s
        records[row].size_bytes = size_bytes
        run[0].num_records = row + 1
