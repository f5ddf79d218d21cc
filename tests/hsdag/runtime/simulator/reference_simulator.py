"""A slow simulator, written from DOPPLER's Algorithms 1 and 2 and Placeto's A.5, that shares no code with the product.

At every moment it looks at all edges and all ops for tasks that could begin (EnumTasks), begins those whose resource
is free, transfers before ops, and otherwise waits for the next end of a task. Beside it, random problems to run both
simulators on, and how far apart they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Order, Semantics
from hsdag.runtime.simulator.simulation import simulate

Case = tuple[ScheduleProblem, np.ndarray, np.ndarray]
SIMULATED = [links for links in LinkSharing if links is not LinkSharing.BLOCKING]


def random_case(
    seed: int,
    num_ops: int,
    num_devices: int,
    op_overhead_s: float = 0.0,
    transfer_overhead_s: float = 0.0,
    contended: bool = False,
) -> Case:
    """A problem, a placement and priorities; every other one of small whole numbers, so that ties abound.

    Where it is contended and of whole numbers, devices 0 and 1 alone slow each other down, by powers of 2.
    """
    rng = np.random.default_rng(seed)
    n, d = num_ops, num_devices
    tied = seed % 2 == 0

    def amounts(high: float, *shape: int) -> np.ndarray:
        return rng.integers(0, 4, shape).astype(float) if tied else high * rng.random(shape)

    slowdown = 1.0 + rng.exponential(0.5, (d, d))
    if tied:
        slowdown = np.ones((d, d))
        slowdown[:2, :2] = 2.0 ** rng.integers(0, 3, (min(d, 2), min(d, 2)))
    u, v = np.nonzero(np.triu(rng.random((n, n)) < rng.uniform(0, 4) / n, 1))
    label = rng.permutation(n)  # op indices need not be topological
    problem = ScheduleProblem.from_arrays(
        amounts(2, n, d),
        np.stack([label[u], label[v]], axis=1),
        output_bytes=amounts(5, n),
        edge_bytes=amounts(5, len(u)),
        link_latency_s=amounts(1, d, d),
        link_bandwidth_bytes_per_s=np.where(rng.random((d, d)) < 0.3, np.inf, 1.0 + amounts(9, d, d)),
        weight_bytes=amounts(5, n),
        launch_s=amounts(1, d),
        op_overhead_s=op_overhead_s,
        transfer_overhead_s=transfer_overhead_s,
        slowdown=slowdown if contended else None,
    )
    return problem, rng.integers(0, d, n), rng.integers(0, 5, n).astype(float)


def largest_deviation(case: Case, how: Semantics) -> float:
    """The largest relative deviation from the reference in any figure of a run; infinite if transfers differ."""
    problem, placement, priority = case
    order = how.order or Order.FIFO
    slow = Reference(problem, placement.tolist(), order.value, how.links.value, priority.tolist(), how.seed)
    expected = slow.sequential() if how.execution is Execution.SEQUENTIAL else slow.work_conserving()
    found = simulate(problem, placement, how, priority)
    t = found.transfers
    sent = list(zip(t.op.tolist(), t.dst_device.tolist(), strict=True))
    if sorted(sent) != sorted(slow.sent):
        return math.inf
    pairs = [
        ([found.makespan_s], [expected]),
        (found.start_s, [slow.begin[v] for v in range(problem.num_ops)]),
        (found.end_s, [slow.end[v] for v in range(problem.num_ops)]),
        (np.stack([t.start_s, t.end_s, t.size_bytes], axis=1).ravel(), np.array([slow.sent[k] for k in sent]).ravel()),
        (found.peak_memory_bytes, slow.peak_memory()),
    ]
    a, b = (np.concatenate([np.asarray(pair[side], dtype=np.float64) for pair in pairs]) for side in (0, 1))
    scale = np.maximum(np.abs(a), np.abs(b))
    return float(np.max(np.abs(a - b) / np.where(scale > 0, scale, 1.0)))


@dataclass
class Reference:
    """One run; fill in the semantics, then call ``work_conserving`` or ``sequential``, or ``period`` alone."""

    p: ScheduleProblem
    A: list[int]
    order: str = "fifo"
    links: str = "independent"
    priority: list[float] | None = None
    seed: int = 0
    begin: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    sent: dict[tuple[int, int], tuple[float, float, float]] = field(default_factory=dict)  # op, device: from, to, bytes

    def __post_init__(self) -> None:
        n = self.p.num_ops
        self.random = np.random.default_rng(self.seed).permutation(n)
        self.inputs: list[set[int]] = [set() for _ in range(n)]
        self.readers: list[list[tuple[int, float]]] = [[] for _ in range(n)]  # (op, bytes)
        edges = zip(self.p.edge_src.tolist(), self.p.edge_dst.tolist(), self.p.edge_bytes.tolist(), strict=True)
        for u, v, size in edges:
            self.inputs[v].add(u)
            self.readers[u].append((v, size))
        self.ways: dict[int, float] = {}

    def size(self, v: int, to: int) -> float:
        return max(size for w, size in self.readers[v] if self.A[w] == to)

    def link(self, v: int, to: int, size: float) -> float:
        home = self.A[v]
        return float(self.p.link_latency_s[home, to] + size / self.p.link_bandwidth_bytes_per_s[home, to])

    def cost(self, v: int, to: int) -> float:
        return self.link(v, to, self.size(v, to))

    def exec_s(self, v: int) -> float:
        return float(self.p.time_s[v, self.A[v]])

    def way_to_end(self, v: int) -> float:
        if v not in self.ways:
            lengths = [0.0]
            for w, size in self.readers[v]:
                lengths.append(self.way_to_end(w) + (self.link(v, self.A[w], size) if self.A[w] != self.A[v] else 0.0))
            self.ways[v] = float(self.p.time_s[v, self.A[v]]) + max(lengths)
        return self.ways[v]

    def rank(self, v: int, ready: float) -> tuple[float, int]:
        priority = {"fifo": ready, "depth-first": -ready, "random": float(self.random[v])}
        if self.order == "critical-path":
            priority[self.order] = -self.way_to_end(v)
        if self.priority is not None:
            priority["priority"] = self.priority[v]
        return priority[self.order], v

    def transfers(self, v: int) -> list[tuple[object, list[int]]]:
        """(resource, destinations) of the transfers that v's result needs."""
        away = sorted({self.A[w] for w, _ in self.readers[v]} - {self.A[v]})
        if self.links == "egress":
            return [(("bus", self.A[v]), away)] if away else []
        return [((("pair", self.A[v], d) if self.links == "channel" else ("own", v, d)), [d]) for d in away]

    def slow(self, v: int, others: list[int]) -> float:
        """How many times as long v takes beside others: fair sharing adds up what each of them costs."""
        table = self.p.slowdown
        return 1.0 if table is None else 1.0 + sum(float(table[self.A[v], self.A[w]]) - 1.0 for w in others if w != v)

    def work_conserving(self) -> float:
        t, ops = 0.0, range(len(self.A))
        left: dict[int, float] = {}  # seconds of work of the ops that run
        free: dict[object, float] = {}  # when each resource is free again
        there: dict[tuple[int, int], float] = {}  # when the result of an op is on a device
        unsent = [(v, bus, to) for v in ops for bus, to in self.transfers(v)]
        unbegun = [[v for v in ops if self.A[v] == d] for d in range(self.p.num_devices)]
        while len(self.end) < len(self.A) or max(self.end.values()) > t:
            ready = {k for k, at in there.items() if at <= t}
            moves = [m for m in unsent if (m[0], self.A[m[0]]) in ready and free.get(m[1], 0.0) <= t]
            if moves:
                v, bus, to = move = min(moves, key=lambda m: (self.end[m[0]], m[0]))
                unsent.remove(move)
                done = t + max(self.cost(v, d) for d in to)
                self.sent |= {(v, d): (t, done, self.size(v, d)) for d in to}
                there |= {(v, d): done for d in to}
                free[bus] = done + self.p.transfer_overhead_s
                continue
            chosen = []
            for d, mine in enumerate(unbegun):
                if free.get(d, 0.0) <= t:
                    now = [v for v in mine if all((u, d) in ready for u in self.inputs[v])]
                    priority = [self.rank(v, max((there[u, d] for u in self.inputs[v]), default=0.0)) for v in now]
                    chosen += [min(priority)[1]] if priority else []
            for v in chosen:
                unbegun[self.A[v]].remove(v)
                left[v] = self.exec_s(v)
                self.begin[v], self.end[v] = t, t + left[v]
                there[v, self.A[v]] = self.end[v]
                free[self.A[v]] = self.end[v] + self.p.op_overhead_s
            if chosen:
                continue
            left = {v: s for v, s in left.items() if self.end[v] > t}
            slow = {v: self.slow(v, list(left)) for v in left}
            for v in left:
                self.end[v] = there[v, self.A[v]] = t + left[v] * slow[v]
                free[self.A[v]] = self.end[v] + self.p.op_overhead_s
            later = min(s for s in [*free.values(), *there.values()] if s > t)
            left = {v: s - (later - t) / slow[v] for v, s in left.items()}
            t = later
        return max(self.end.values())

    def sequential(self) -> float:
        t, before = 0.0, -1
        for v in self.p.topological_order.tolist():
            t += self.p.launch_s[self.A[v]] if self.A[v] != before else 0.0
            before = self.A[v]
            self.begin[v], self.end[v] = t, t + self.exec_s(v)
            t = self.end[v] + self.p.op_overhead_s
            for _, to in self.transfers(v):
                done = t + max(self.cost(v, d) for d in to)
                self.sent |= {(v, d): (t, done, self.size(v, d)) for d in to}
                t = done + self.p.transfer_overhead_s
        return max(self.end.values())

    def period(self) -> float:
        """Load of the busiest resource when requests follow each other without a gap."""
        load: dict[object, float] = {}
        for v, home in enumerate(self.A):
            load[home] = load.get(home, 0.0) + self.exec_s(v) + self.p.op_overhead_s
            for bus, to in self.transfers(v):
                held: dict[str, list[object]] = {"independent": [], "blocking": [home, *to]}
                for resource in held.get(self.links, [bus]):
                    cost = max(self.cost(v, d) for d in to) + self.p.transfer_overhead_s
                    load[resource] = load.get(resource, 0.0) + cost
        return max(load.values())

    def peak_memory(self) -> list[float]:
        """Bytes that each device holds at its fullest moment, counted anew whenever anything begins there."""
        held: list[list[tuple[float, float, float]]] = [[] for _ in range(self.p.num_devices)]  # from, until, bytes
        for v, home in enumerate(self.A):
            copies = {d: self.sent[v, d] for d in range(self.p.num_devices) if (v, d) in self.sent}
            uses = [self.end[v], *(s[1] for s in copies.values())]
            uses += [self.end[w] for w, _ in self.readers[v] if self.A[w] == home]
            until = max(uses) if self.readers[v] else math.inf
            held[home].append((self.begin[v], until, float(self.p.output_bytes[v])))
            for d, (since, landed, size) in copies.items():
                last = max([landed, *(self.end[w] for w, _ in self.readers[v] if self.A[w] == d)])
                held[d].append((since, last, size))
        weights = [float(sum(self.p.weight_bytes[v] for v, h in enumerate(self.A) if h == d)) for d in range(len(held))]
        moments = [{since for since, _, _ in mine} for mine in held]
        peaks = [
            max((sum(size for since, until, size in mine if since <= t < until) for t in times), default=0.0)
            for mine, times in zip(held, moments, strict=True)
        ]
        return [w + peak for w, peak in zip(weights, peaks, strict=True)]
