"""Plain list schedulers for tests: slow, obvious, sharing nothing with the product."""

from __future__ import annotations

from itertools import permutations

import numpy as np

from hsdag.runtime.problem.schedule_problem import ScheduleProblem

Schedule = tuple[dict[int, int], dict[int, float], dict[int, float]]
"""Device, start and end of each op."""


class Plain:
    """A problem as dictionaries, with the literature's averages."""

    def __init__(self, problem: ScheduleProblem) -> None:
        self.num_ops, self.num_devices = problem.num_ops, problem.num_devices
        self.time_s = problem.time_s.tolist()
        self.able = [[d for d in range(self.num_devices) if problem.supported[v, d]] for v in range(self.num_ops)]
        self.overhead_s = problem.op_overhead_s
        self.latency_s = problem.link_latency_s.tolist()
        self.bandwidth = problem.link_bandwidth_bytes_per_s.tolist()
        triples = zip(problem.edge_src.tolist(), problem.edge_dst.tolist(), problem.edge_bytes.tolist(), strict=True)
        self.edges = list(triples)
        self.inputs = {v: [(u, size) for u, w, size in self.edges if w == v] for v in range(self.num_ops)}
        self.readers = {u: [(w, size) for v, w, size in self.edges if v == u] for u in range(self.num_ops)}

    def link_s(self, u: int, v: int, size: float) -> float:
        return 0.0 if u == v else float(self.latency_s[u][v] + size / self.bandwidth[u][v])

    def mean_time_s(self, v: int) -> float:
        return float(sum(self.time_s[v][d] for d in self.able[v]) / len(self.able[v]))

    def mean_link_s(self, size: float) -> float:
        pairs = list(permutations(range(self.num_devices), 2))
        return sum(self.link_s(u, v, size) for u, v in pairs) / len(pairs) if pairs else 0.0

    def upward_s(self, with_links: bool) -> dict[int, float]:
        rank: dict[int, float] = {}
        while len(rank) < self.num_ops:
            for v in range(self.num_ops):
                if v not in rank and all(w in rank for w, _ in self.readers[v]):
                    behind = [rank[w] + (self.mean_link_s(size) if with_links else 0.0) for w, size in self.readers[v]]
                    rank[v] = self.mean_time_s(v) + max(behind, default=0.0)
        return {v: round(seconds, 9) for v, seconds in rank.items()}  # what is equal but for rounding ties

    def ready_s(self, v: int, d: int, device: dict[int, int], end: dict[int, float]) -> float:
        return max((end[u] + self.link_s(device[u], d, size) for u, size in self.inputs[v]), default=0.0)


def heft(problem: ScheduleProblem) -> Schedule:
    """Topcuoglu et al. 2002, figure 2."""
    plain = Plain(problem)
    rank = plain.upward_s(with_links=True)
    device: dict[int, int] = {}
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    while len(device) < plain.num_ops:
        ready = [v for v in rank if v not in device and all(u in device for u, _ in plain.inputs[v])]
        v = min(ready, key=lambda v: (-rank[v], v))
        choices = []
        for d in plain.able[v]:
            begin = first_gap(plain, v, d, device, start, end)
            choices.append((begin + plain.time_s[v][d], d, begin))
        end[v], device[v], start[v] = min(choices)
    return device, start, end


def first_gap(
    plain: Plain, v: int, d: int, device: dict[int, int], start: dict[int, float], end: dict[int, float]
) -> float:
    """The first time that v can start on d, between two ops or behind all."""
    ready = plain.ready_s(v, d, device, end)
    taken = sorted((start[u], end[u] + plain.overhead_s) for u in device if device[u] == d)
    idle_since = 0.0
    for begin, until in [*taken, (np.inf, np.inf)]:
        earliest = max(idle_since, ready)
        if begin > idle_since and earliest + plain.time_s[v][d] + plain.overhead_s <= begin:
            return float(earliest)
        idle_since = max(idle_since, until)
    raise AssertionError("the last gap has no end")


def etf(problem: ScheduleProblem) -> Schedule:
    """Of all ready pairs the one that starts first."""
    plain = Plain(problem)
    level = plain.upward_s(with_links=False)
    device: dict[int, int] = {}
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    free = [0.0] * plain.num_devices
    while len(device) < plain.num_ops:
        pairs = []
        for v in level:
            if v not in device and all(u in device for u, _ in plain.inputs[v]):
                for d in plain.able[v]:
                    begin = max(free[d], plain.ready_s(v, d, device, end))
                    pairs.append((begin, -level[v], v, begin + plain.time_s[v][d], d))
        begin, _, v, until, d = min(pairs)
        start[v], end[v], device[v] = begin, until, d
        free[device[v]] = end[v] + plain.overhead_s
    return device, start, end


def greedy(problem: ScheduleProblem) -> Schedule:
    """Ops breadth first, each where the largest end of all so far stays smallest, then its own."""
    plain = Plain(problem)
    device: dict[int, int] = {}
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    free = [0.0] * plain.num_devices
    waiting = [v for v in range(plain.num_ops) if not plain.inputs[v]]
    for v in waiting:  # grows while it is read
        choices = []
        for d in plain.able[v]:
            begin = max(free[d], plain.ready_s(v, d, device, end))
            until = begin + plain.time_s[v][d]
            choices.append((max([until, *end.values()]), until, d, begin))
        _, end[v], device[v], start[v] = min(choices)
        free[device[v]] = end[v] + plain.overhead_s
        for w, _ in plain.readers[v]:
            if w not in waiting and all(u in device for u, _ in plain.inputs[w]):
                waiting.append(w)
    return device, start, end
