"""The simulated machine: a problem and the state of one run, as the records the compiled simulators work on.

Inside, ops are numbered by their place in the topological order, so that an op's neighbours lie close in memory; an
op's key has its index in the high half, so that ties go by index, and its place in the low half.

Legend: N ops, E edges, D devices, L buses (one for each device, or for each ordered pair), R transfer records.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from hsdag.base.kernels import inlined, inner
from hsdag.ir.graph.computation_graph import FloatArray, IntArray, inverse_of
from hsdag.runtime.problem.bounds.simple import least_after_s
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import LinkSharing, Semantics

Records = NDArray[np.void]
ENTRY = np.dtype([("value", "f8"), ("key", "i8")], align=True)
"""Entry of a binary heap inside a flat array: sorted by a number, ties by a key."""
INDEPENDENT, EGRESS, CHANNEL, BLOCKING = 0, 1, 2, 3  # the values of LinkSharing
SEQUENTIAL = -1
"""Mode of a simulation that needs no queue."""
BY_RANK, BY_ARRIVAL, BY_LATEST_ARRIVAL, BY_PATH = 0, 1, 2, 3
"""Order of queues: by given ranks; by the last input's arrival, early or late first; by the path to the end."""
IN_TURN, BY_STARTS, BY_EVENTS, OVER_BUSES = 0, 1, 2, 3
"""Ways of execution: one op at a time; devices side by side; the same where they slow each other down; over buses."""
PLACE = (1 << 32) - 1
"""Bits of a key that hold an op's place."""

OP = np.dtype(
    [
        ("arrival_s", "f8"),  # of the last input known so far
        ("value", "f8"),  # its rank in its device's queue, if that does not depend on arrivals
        ("after_s", "f8"),  # least seconds after its end: ops on their fastest devices, transfers free
        ("key", "i8"),
        ("waiting", "i4"),  # edges over which nothing is known to arrive yet
        ("device", "i4"),
        ("first", "i4"),  # its out-edges begin here, result by result, and end where those of the next op begin
        ("num_inputs", "i4"),  # edges into it
    ],
    align=True,
)
EDGE = np.dtype([("producer", "i8"), ("consumer", "i8"), ("result", "i8"), ("size_bytes", "f8")], align=True)
"""An edge. ``result`` is the first edge of the same result, which is its largest."""
LINK = np.dtype([("latency_s", "f8"), ("bandwidth_bytes_per_s", "f8")], align=True)
DEVICE = np.dtype(
    [
        ("base", "i8"),  # where its heaps begin in ``queue`` and ``arriving``
        ("queued", "i8"),
        ("arriving", "i8"),
        ("next_s", "f8"),  # independent links: when it starts its next op, as far as known
        ("free_s", "f8"),  # independent links: when the last op it started, and its overhead, are over
        ("running", "i8"),  # op, or -1
        ("until_s", "f8"),  # end of its op or overhead; infinite when idle
        ("stamp", "i8"),  # last result sent to it, or through it
        ("landing_s", "f8"),  # when that arrives
        ("launch_s", "f8"),
        ("left_s", "f8"),  # seconds of the ops that it has not started
        ("slow", "f8"),  # by how much its op is stretched, where devices slow each other down
    ],
    align=True,
)
BUS = np.dtype([("base", "i8"), ("queued", "i8"), ("busy", "i8"), ("is_touched", "i8"), ("touched", "i8")], align=True)
"""A bus. ``touched`` is a stack over all buses: those that may be able to start a transfer."""
SPAN = np.dtype([("start_s", "f8"), ("end_s", "f8")], align=True)
RECORD = np.dtype(
    [("op", "i8"), ("port", "i8"), ("to", "i8"), ("start_s", "f8"), ("end_s", "f8"), ("size_bytes", "f8")], align=True
)
"""A transfer. While the machine runs, ``port`` is the result, as in EDGE."""
RUN = np.dtype(
    [
        ("mode", "i8"),
        ("links", "i8"),
        ("keep", "i8"),  # whether to record intervals
        ("op_overhead_s", "f8"),
        ("transfer_overhead_s", "f8"),
        ("limit_s", "f8"),  # a run that is sure to take longer may end at once, with an infinite makespan
        ("now_s", "f8"),
        ("num_done", "i8"),
        ("num_events", "i8"),
        ("num_touched", "i8"),
        ("num_records", "i8"),
    ],
    align=True,
)

_GRAPHS: WeakKeyDictionary[ScheduleProblem, tuple[Records, Records, IntArray]] = WeakKeyDictionary()
"""Records of a problem's ops and edges: sorting the edges takes longer than simulating a placement."""


class Machine(NamedTuple):
    """A problem and room for one run, which the next run overwrites; ops are places in the topological order.

    Kernels are compiled for the length of a tuple: so each contains only its machine's way of execution.
    """

    way: tuple[int, ...]  # a tuple of zeros whose length is IN_TURN, BY_STARTS, BY_EVENTS or OVER_BUSES
    ops: Records  # [N + 1] OP
    edges: Records  # [E] EDGE
    links: Records  # [D, D] LINK, nothing on the diagonal
    excess: FloatArray  # [D, D] slow-downs minus 1, or [0, 0] where devices do not slow each other down
    time_s: FloatArray  # [N, D]
    order: IntArray  # [N] index of each op
    ports: IntArray  # [E] the output of its producer that each edge carries
    sources: IntArray  # ops without inputs
    devices: Records  # [D] DEVICE
    buses: Records  # [L + 1] BUS
    queue: Records  # [N] ENTRY, a heap of ready ops for each device
    arriving: Records  # [N] ENTRY, independent links: ops by the arrival of their last input, a heap for each device
    bus_queue: Records  # [E] ENTRY, a heap of results for each bus
    events: Records  # [N + L] ENTRY, a heap of what becomes ready (op v) or free (bus b, as N + b)
    spans: Records  # [N] SPAN of ops, kept on demand
    records: Records  # [R] RECORD of transfers, kept on demand
    run: Records  # [1] RUN


def machine_for(
    problem: ScheduleProblem,
    semantics: Semantics,
    mode: int = 0,
    priority: FloatArray | None = None,
    keep: bool = False,
) -> Machine:
    """Make a machine, in O(N D + E log E), that records intervals if ``keep``.

    ``priority`` [N] are the values of the ops, by index.
    """
    n, d = problem.time_s.shape
    order = problem.topological_order
    links = tuple(LinkSharing).index(semantics.links)
    num_buses = {EGRESS: d, CHANNEL: d * d}.get(links, 0)
    way = IN_TURN
    if mode != SEQUENTIAL:
        way = OVER_BUSES if num_buses else BY_EVENTS if len(problem.excess) > 0 else BY_STARTS
    if problem not in _GRAPHS:
        _GRAPHS[problem] = _graph(problem)
    ops, edges, ports = _GRAPHS[problem][0].copy(), *_GRAPHS[problem][1:]
    if priority is not None:
        ops["value"][:n] = priority[order]
    run, link_table, devices = np.zeros(1, RUN), np.zeros((d, d), LINK), np.zeros(d, DEVICE)
    is_same = np.eye(d, dtype=np.bool_)
    link_table["latency_s"] = np.where(is_same, 0.0, problem.link_latency_s)
    link_table["bandwidth_bytes_per_s"] = np.where(is_same, np.inf, problem.link_bandwidth_bytes_per_s)
    devices["launch_s"] = problem.launch_s
    run["mode"], run["links"], run["keep"] = mode, links, keep
    run["op_overhead_s"], run["transfer_overhead_s"] = problem.op_overhead_s, problem.transfer_overhead_s
    run["limit_s"] = np.inf
    return Machine(
        way=(0,) * way,
        ops=ops,
        edges=edges,
        links=link_table,
        excess=problem.excess,
        time_s=problem.time_s[order],
        order=order.copy(),
        ports=ports,
        sources=np.flatnonzero(ops["num_inputs"][:n] == 0),
        devices=devices,
        buses=np.zeros(num_buses + 1, BUS),
        queue=np.zeros(n, ENTRY),
        arriving=np.zeros(n if way == BY_STARTS else 0, ENTRY),
        bus_queue=np.zeros(len(edges) if way == OVER_BUSES else 0, ENTRY),
        events=np.zeros(n + num_buses if way >= BY_EVENTS else 0, ENTRY),
        spans=np.zeros(n if keep else 0, SPAN),
        records=np.zeros(len(edges) if keep else 0, RECORD),
        run=run,
    )


def _graph(problem: ScheduleProblem) -> tuple[Records, Records, IntArray]:
    """Return OP [N + 1], EDGE [E] and their ports [E], numbered by place in the topological order."""
    n, order = problem.num_ops, problem.topological_order
    place = inverse_of(order)
    src, dst = place[problem.edge_src], place[problem.edge_dst]
    by_src = np.lexsort((-problem.edge_bytes, problem.edge_port, src))
    src, dst, ports = src[by_src], dst[by_src], problem.edge_port[by_src]
    is_first = np.append(True, (src[1:] != src[:-1]) | (ports[1:] != ports[:-1]))[: len(src)]
    ops, edges = np.zeros(n + 1, OP), np.zeros(len(src), EDGE)
    ops["first"][1:] = np.cumsum(np.bincount(src, minlength=n))
    ops["num_inputs"][:n] = np.bincount(dst, minlength=n)
    ops["key"][:n] = (order << 32) | np.arange(n)
    edges["producer"], edges["consumer"], edges["size_bytes"] = src, dst, problem.edge_bytes[by_src]
    edges["result"] = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
    ops["after_s"][:n] = least_after_s(problem)[order]
    return ops, edges, ports


@inlined
def assign_devices(m: Machine, placement: IntArray) -> None:
    """Put every op on its device, and prepare for a run."""
    for v in range(len(m.order)):
        m.ops[v].device = placement[m.order[v]]
    rewind(m)


@inlined
def rewind(m: Machine) -> None:
    """Reset all inputs of all ops to outstanding, and lay out the devices' heaps, empty."""
    for d in range(len(m.devices)):
        m.devices[d].base = 0
        m.devices[d].queued = 0
        m.devices[d].arriving = 0
        m.devices[d].stamp = -1
        m.devices[d].left_s = 0.0
    for v in range(len(m.order)):
        d = m.ops[v].device
        m.ops[v].waiting = m.ops[v].num_inputs
        m.ops[v].arrival_s = 0.0
        m.devices[d].base += 1
        m.devices[d].left_s += m.time_s[v, d]
    base = 0
    for d in range(len(m.devices)):
        size = m.devices[d].base
        m.devices[d].base = base
        base += size
    m.run[0].num_records = 0
    if m.run[0].mode == BY_PATH:
        _set_path_values(m)


@inner
def _set_path_values(m: Machine) -> None:
    """Rank ops by the longest path from their start to the end: nominal times on the placed devices, and links."""
    for v in range(len(m.order) - 1, -1, -1):
        home = m.ops[v].device
        longest_s = 0.0
        for k in range(m.ops[v].first, m.ops[v + 1].first):
            u = m.edges[k].consumer
            link = m.links[home, m.ops[u].device]
            behind_s = link.latency_s + m.edges[k].size_bytes / link.bandwidth_bytes_per_s - m.ops[u].value
            longest_s = max(longest_s, behind_s)
        m.ops[v].value = -(m.time_s[v, home] + longest_s)


@inlined
def link_s(m: Machine, k: int, home: int, away: int) -> float:
    """Return the seconds to send the tensor of edge k from ``home`` to ``away``."""
    link = m.links[home, away]
    cost_s: float = link.latency_s + m.edges[k].size_bytes / link.bandwidth_bytes_per_s
    return cost_s


@inlined
def is_late(m: Machine, v: int, d: int) -> bool:
    """Return whether op v, which device d has started, makes the run exceed its limit, by what follows or d's load."""
    late: bool = m.devices[d].until_s + max(m.ops[v].after_s, m.devices[d].left_s) > m.run[0].limit_s
    return late


@inlined
def note_op(m: Machine, v: int, start_s: float, end_s: float) -> None:
    """Record the interval of an op, if intervals are kept."""
    if m.run[0].keep:
        m.spans[v].start_s = start_s
        m.spans[v].end_s = end_s


@inlined
def note_transfer(m: Machine, k: int, away: int, start_s: float, end_s: float) -> None:
    """Record the interval of the transfer of edge k's tensor, if intervals are kept."""
    if m.run[0].keep:
        row = m.run[0].num_records
        m.records[row].op = m.edges[k].producer
        m.records[row].port = m.edges[k].result
        m.records[row].to = away
        m.records[row].start_s = start_s
        m.records[row].end_s = end_s
        m.records[row].size_bytes = m.edges[k].size_bytes
        m.run[0].num_records = row + 1


@inlined
def _precedes(heap: Records, i: int, value: float, key: int) -> bool:
    """Return whether entry i comes before (value, key); without branches, which processors would mispredict."""
    earlier: bool = (heap[i].value < value) | ((heap[i].value == value) & (heap[i].key < key))
    return earlier


@inlined
def push(heap: Records, base: int, size: int, value: float, key: int) -> None:
    """Add an entry to the min-heap of ``size`` entries that begins at ``base``."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if _precedes(heap, base + parent, value, key):
            break
        heap[base + i].value = heap[base + parent].value
        heap[base + i].key = heap[base + parent].key
        i = parent
    heap[base + i].value = value
    heap[base + i].key = key


@inlined
def pop(heap: Records, base: int, size: int) -> int:
    """Remove the first entry of the min-heap of ``size`` entries that begins at ``base``; return its key."""
    top: int = heap[base].key
    left = size - 1
    value, key = heap[base + left].value, heap[base + left].key
    i, child = 0, 1
    while child < left:
        other = child + 1
        if other < left and _precedes(heap, base + other, heap[base + child].value, heap[base + child].key):
            child = other
        if not _precedes(heap, base + child, value, key):
            break
        heap[base + i].value = heap[base + child].value
        heap[base + i].key = heap[base + child].key
        i = child
        child = 2 * i + 1
    heap[base + i].value = value
    heap[base + i].key = key
    return top
