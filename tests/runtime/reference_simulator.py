"""A slow simulator, written from DOPPLER's Algorithms 1 and 2 and Placeto's A.5, that shares no code with the product.

At every moment it looks at all edges and all ops for tasks that could begin (EnumTasks), begins those whose resource
is free, transfers before ops, and otherwise waits for the next end of a task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from hsdag.runtime.schedule_problem import ScheduleProblem


@dataclass
class Reference:
    """One run; fill in the semantics, then call ``work_conserving`` or ``sequential``."""

    p: ScheduleProblem
    A: list[int]
    order: str = "fifo"
    links: str = "independent"
    priority: list[float] | None = None
    sigma: float = 0.0
    seed: int = 0
    begin: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    sent: dict[tuple[int, int], tuple[float, float, float]] = field(default_factory=dict)  # op, device: from, to, bytes

    def __post_init__(self) -> None:
        n, d = self.p.time_s.shape
        rng = np.random.default_rng(self.seed)
        self.f_op = np.exp(self.sigma * rng.standard_normal(n))
        self.f_link = np.exp(self.sigma * rng.standard_normal((n, d)))
        self.random = np.random.default_rng(self.seed).permutation(n)
        self.E = list(zip(self.p.edge_src.tolist(), self.p.edge_dst.tolist(), self.p.edge_bytes.tolist(), strict=True))
        self.inputs = [{u for u, v, _ in self.E if v == op} for op in range(n)]
        self.readers = [
            [(self.A[v], b) for u, v, b in self.E if u == op and self.A[v] != self.A[op]] for op in range(n)
        ]

    def cost(self, v: int, to: int) -> float:
        size = max(b for d, b in self.readers[v] if d == to)
        link = self.p.link_latency_s[self.A[v], to] + size / self.p.link_bandwidth_bytes_per_s[self.A[v], to]
        return float(link * self.f_link[v, to])

    def exec_s(self, v: int) -> float:
        return float(self.p.time_s[v, self.A[v]] * self.f_op[v])

    def way_to_end(self, v: int) -> float:
        if v in self.ways:
            return self.ways[v]
        lengths = [0.0]
        for u, w, size in self.E:
            if u == v:
                h, d = self.A[v], self.A[w]
                link = self.p.link_latency_s[h, d] + size / self.p.link_bandwidth_bytes_per_s[h, d] if h != d else 0.0
                lengths.append(self.way_to_end(w) + link)
        self.ways[v] = float(self.p.time_s[v, self.A[v]]) + max(lengths)
        return self.ways[v]

    def rank(self, v: int, ready: float) -> tuple[float, int]:
        if self.order == "critical-path":
            self.way_to_end(v)
        ranks = {
            "fifo": ready,
            "depth-first": -ready,
            "random": self.random[v],
            "critical-path": -self.ways.get(v, 0.0),
            "priority": self.priority[v] if self.priority else 0.0,
        }
        return float(ranks[self.order]), v

    def transfers(self, v: int) -> list[tuple[object, list[int]]]:
        """(resource, destinations) of the transfers that v's result needs."""
        away = sorted({d for d, _ in self.readers[v]})
        if self.links == "egress":
            return [(("bus", self.A[v]), away)] if away else []
        return [((("pair", self.A[v], d) if self.links == "channel" else ("own", v, d)), [d]) for d in away]

    def work_conserving(self) -> float:
        t, n = 0.0, len(self.A)
        self.ways: dict[int, float] = {}
        free: dict[object, float] = {}  # when each resource is free again
        while len(self.end) < n or max(self.end.values()) > t:
            there = {(v, self.A[v]): e for v, e in self.end.items()} | {k: s[1] for k, s in self.sent.items()}
            rdy = {k: e for k, e in there.items() if e <= t}
            moves = [
                (rdy[v, self.A[v]], v, bus, to)
                for v in range(n)
                if (v, self.A[v]) in rdy
                for bus, to in self.transfers(v)
                if (v, to[0]) not in self.sent and free.get(bus, 0.0) <= t
            ]
            if moves:
                _, v, bus, to = min(moves, key=lambda move: move[:2])
                done = t + max(self.cost(v, d) for d in to)
                self.sent |= {(v, d): (t, done, max(b for e, b in self.readers[v] if e == d)) for d in to}
                free[bus] = done + self.p.transfer_overhead_s
                continue
            chosen = []
            for d in range(self.p.num_devices):
                ops = [v for v in range(n) if self.A[v] == d and v not in self.begin]
                ops = [v for v in ops if all((u, d) in rdy for u in self.inputs[v])]
                if ops and free.get(d, 0.0) <= t:
                    chosen.append(min(self.rank(v, max((rdy[u, d] for u in self.inputs[v]), default=0.0)) for v in ops))
            for _, v in chosen:
                self.begin[v], self.end[v] = t, t + self.exec_s(v)
                free[self.A[v]] = self.end[v] + self.p.op_overhead_s
            if not chosen:
                t = min(s for s in [*free.values(), *there.values()] if s > t)
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
                self.sent |= {(v, d): (t, done, max(b for e, b in self.readers[v] if e == d)) for d in to}
                t = done + self.p.transfer_overhead_s
        return max(self.end.values())

    def peak_memory(self, device: int) -> float:
        """Bytes held at the fullest moment, counted anew at every moment at which anything begins."""
        held = []
        for v, home in enumerate(self.A):
            readers = {w for u, w, _ in self.E if u == v}
            for d, since, size in [(home, self.begin[v], self.p.output_bytes[v])] + [
                (d, s[0], s[2]) for (u, d), s in self.sent.items() if u == v
            ]:
                uses = [self.end[w] for w in readers if self.A[w] == d]
                uses += [s[1] for (u, e), s in self.sent.items() if u == v and d in (home, e)]
                held.append((d, since, max([*uses, self.end[v]]) if readers else math.inf, size))
        held = [h for h in held if h[0] == device]
        peak = max((sum(h[3] for h in held if h[1] <= t < h[2]) for t in {h[1] for h in held}), default=0.0)
        return float(peak + sum(self.p.weight_bytes[v] for v, d in enumerate(self.A) if d == device))
