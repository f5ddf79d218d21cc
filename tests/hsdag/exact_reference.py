"""Brute force over all placements and orders, and random problems to try it on; shares no code with the product."""

from __future__ import annotations

import itertools
import math

import numpy as np

from hsdag.runtime.schedule_problem import ScheduleProblem


def random_problem(seed: int, num_ops: int, num_devices: int, density: float = 0.35) -> ScheduleProblem:
    """Small whole numbers; some ops that one device only lacks; edges of one result that differ in size; overheads."""
    rng = np.random.default_rng(seed)
    time_s = rng.integers(0, 9, (num_ops, num_devices)).astype(float)
    if num_devices > 1:
        bare = rng.random(num_ops) < 0.2
        time_s[bare, rng.integers(0, num_devices, int(bare.sum()))] = np.nan
    edges = [(u, v) for v in range(num_ops) for u in range(v) if rng.random() < density]
    return ScheduleProblem.from_arrays(
        time_s,
        edges,
        output_bytes=rng.integers(0, 6, num_ops),
        edge_bytes=rng.integers(0, 6, len(edges)) if seed % 2 else None,
        link_latency_s=rng.integers(0, 3, (num_devices, num_devices)),
        link_bandwidth_bytes_per_s=rng.integers(1, 4, (num_devices, num_devices)),
        op_overhead_s=float(seed % 3 == 0),
    )


class BruteForce:
    """The shortest schedule of all placements and of all orders in which ops can be appended to their devices."""

    def __init__(self, problem: ScheduleProblem) -> None:
        self._p = problem
        self._inputs: list[dict[int, float]] = [{} for _ in range(problem.num_ops)]
        for u, v, size in zip(problem.edge_src, problem.edge_dst, problem.edge_bytes, strict=True):
            self._inputs[int(v)][int(u)] = max(float(size), self._inputs[int(v)].get(int(u), 0.0))
        self._best_s = math.inf

    def makespan_s(self) -> float:
        """The optimum."""
        for placement in itertools.product(range(self._p.num_devices), repeat=self._p.num_ops):
            if not any(math.isnan(self._p.time_s[v, d]) for v, d in enumerate(placement)):
                self._sent = self._sizes(placement)
                self._append(placement, {}, [0.0] * self._p.num_devices, 0.0, 0.0)
        return self._best_s

    def _sizes(self, placement: tuple[int, ...]) -> dict[tuple[int, int], float]:
        """Bytes by result and device: the largest edge that leads there."""
        sent: dict[tuple[int, int], float] = {}
        for v, inputs in enumerate(self._inputs):
            for u, size in inputs.items():
                sent[u, placement[v]] = max(size, sent.get((u, placement[v]), 0.0))
        return sent

    def _append(
        self, placement: tuple[int, ...], end: dict[int, float], free: list[float], last: float, latest: float
    ) -> None:
        """Append every op that can be next, in order of starts: ``latest`` is the last start, ``last`` the last end."""
        if last >= self._best_s:
            return
        if len(end) == len(placement):
            self._best_s = last
            return
        for v, inputs in enumerate(self._inputs):
            if v in end or any(u not in end for u in inputs):
                continue
            d = placement[v]
            start = max([free[d], *(end[u] + self._transfer_s(u, placement[u], d) for u in inputs)])
            if start < latest:
                continue
            ends = start + float(self._p.time_s[v, d])
            taken = [*free[:d], ends + self._p.op_overhead_s, *free[d + 1 :]]
            self._append(placement, {**end, v: ends}, taken, max(last, ends), start)

    def _transfer_s(self, u: int, a: int, b: int) -> float:
        if a == b:
            return 0.0
        size = self._sent[u, b]
        return float(self._p.link_latency_s[a, b] + size / self._p.link_bandwidth_bytes_per_s[a, b])


def every_placement(problem: ScheduleProblem) -> np.ndarray:
    """[D ** N, N]."""
    return np.array(list(itertools.product(range(problem.num_devices), repeat=problem.num_ops)))
