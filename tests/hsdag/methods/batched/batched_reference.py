"""Brute force over batched schedules, random problems, and a checker op by op; shares no code with the product."""

from __future__ import annotations

import itertools
import math

import numpy as np

from hsdag.methods.batched.problem import BatchedProblem, BatchSchedule, BatchTable
from hsdag.runtime.problem.schedule_problem import ScheduleProblem


def random_batched(seed: int, num_ops: int = 3, num_devices: int = 2, num_groups: int = 2) -> BatchedProblem:
    """Small whole numbers; some sizes that a device only lacks, uneven links, at times overheads and memory."""
    rng = np.random.default_rng(seed)
    group = 1 + seed % 2
    sizes = tuple(group * n for n in range(1, num_groups + 1))
    one = rng.integers(0, 5, (num_ops, num_devices, 1))
    times = one + rng.integers(0, 4, (num_ops, num_devices, 1)) * np.arange(1, num_groups + 1).astype(float)
    times[rng.random(times.shape) < 0.1] = np.nan
    times[:, 0, -1] = rng.integers(1, 12, num_ops)  # everything can be whole on the first device
    edges = [(u, v) for v in range(num_ops) for u in range(v) if rng.random() < 0.6]
    costs = ScheduleProblem.from_arrays(
        np.nan_to_num(times[:, :, 0], nan=1.0),
        edges,
        output_bytes=rng.integers(0, 4, num_ops),
        weight_bytes=rng.integers(0, 5, num_ops),
        link_latency_s=rng.integers(0, 3, (num_devices, num_devices)),
        link_bandwidth_bytes_per_s=rng.integers(1, 4, (num_devices, num_devices)),
        memory_bytes=[math.inf, *rng.choice([math.inf, 12.0], num_devices - 1)],
        op_overhead_s=float(seed % 3 == 0),
    )
    return BatchedProblem(costs, BatchTable(group * num_groups, sizes, times, group))


class BatchedBruteForce:
    """The shortest schedule of all placements of groups and all orders in which batches can be appended."""

    def __init__(self, problem: BatchedProblem) -> None:
        self._p, self._table = problem.costs, problem.batches
        self._num_groups = problem.batches.num_inputs // problem.batches.group
        self._edges = list(
            zip(self._p.edge_src.tolist(), self._p.edge_dst.tolist(), self._p.edge_bytes.tolist(), strict=True)
        )
        self._best_s = math.inf

    def makespan_s(self) -> float:
        """The optimum; infinite where nothing is allowed."""
        rows = list(itertools.product(range(self._p.num_devices), repeat=self._num_groups))
        for placement in itertools.product(rows, repeat=self._p.num_ops):
            run = self._times(placement)
            if run is not None and self._fits(placement):
                self._append(placement, run, {}, [0.0] * self._p.num_devices, 0.0)
        return self._best_s

    def _times(self, placement: tuple[tuple[int, ...], ...]) -> dict[tuple[int, int], float] | None:
        run = {}
        for v, row in enumerate(placement):
            for d in set(row):
                size = row.count(d) * self._table.group
                seconds = float(self._table.time_s[v, d, self._table.sizes.index(size)])
                if math.isnan(seconds):
                    return None
                run[v, d] = seconds
        return run

    def _fits(self, placement: tuple[tuple[int, ...], ...]) -> bool:
        for d in range(self._p.num_devices):
            used = 0.0
            for v, row in enumerate(placement):
                moved = self._p.output_bytes[v] + sum(size for _, w, size in self._edges if w == v)
                used += self._p.weight_bytes[v] * (d in row) + row.count(d) * self._table.group * moved
            if used > self._p.memory_bytes[d]:
                return False
        return True

    def _append(
        self,
        placement: tuple[tuple[int, ...], ...],
        run: dict[tuple[int, int], float],
        end: dict[tuple[int, int], float],
        free: list[float],
        last: float,
    ) -> None:
        if last >= self._best_s:
            return
        if len(end) == len(run):
            self._best_s = last
            return
        for v, d in run:
            inputs = [(u, a) for u, w, _ in self._edges if w == v for a in set(placement[u])]
            inputs = [(u, a) for u, a in inputs if self._shared(placement, u, a, v, d)]
            if (v, d) in end or any(batch not in end for batch in inputs):
                continue
            start = max([free[d], *(end[u, a] + self._sent_s(placement, u, a, v, d) for u, a in inputs)])
            ends = start + run[v, d]
            taken = [*free[:d], ends + self._p.op_overhead_s, *free[d + 1 :]]
            self._append(placement, run, {**end, (v, d): ends}, taken, max(last, ends))

    def _shared(self, placement: tuple[tuple[int, ...], ...], u: int, a: int, v: int, b: int) -> int:
        return sum(x == a and y == b for x, y in zip(placement[u], placement[v], strict=True))

    def _sent_s(self, placement: tuple[tuple[int, ...], ...], u: int, a: int, v: int, b: int) -> float:
        if a == b:
            return 0.0
        size = max(size for x, y, size in self._edges if (x, y) == (u, v))
        inputs = self._shared(placement, u, a, v, b) * self._table.group
        return float(self._p.link_latency_s[a, b] + inputs * size / self._p.link_bandwidth_bytes_per_s[a, b])


TOLERANCE = 1e-9
"""Share of the makespan, or of a memory, that is rounding."""


def makespan_s(problem: BatchedProblem, schedule: BatchSchedule) -> float:
    """The end of the last batch, as the schedule says it. Raises ValueError where a rule is broken."""
    costs, table, ends = problem.costs, problem.batches, {}
    ops, devices = range(costs.num_ops), range(costs.num_devices)
    assert schedule.device.shape == (costs.num_ops, table.num_inputs // table.group)
    for v, row in enumerate(schedule.device.tolist()):
        for d in set(row):
            run_s = float(table.time_s[v, d, table.sizes.index(row.count(d) * table.group)])
            ends[v, d] = float(schedule.start_s[v, d]) + run_s
            if not (schedule.start_s[v, d] >= 0 and run_s >= 0):
                raise ValueError(f"op {v} has no start or no such batch on device {d}")
    makespan, held = max(ends.values()), costs.output_bytes.copy()
    np.add.at(held, costs.edge_dst, costs.edge_bytes)
    slack = TOLERANCE * makespan
    for d in devices:
        there = sorted((float(schedule.start_s[v, d]), ends[v, d]) for v in ops if (v, d) in ends)
        if any(second[0] < first[1] + costs.op_overhead_s - slack for first, second in itertools.pairwise(there)):
            raise ValueError(f"two batches overlap on device {d}")
        inputs = (schedule.device == d).sum(axis=1) * table.group
        if (costs.weight_bytes[inputs > 0].sum() + held @ inputs) > costs.memory_bytes[d] * (1 + TOLERANCE):
            raise ValueError(f"device {d} lacks memory")
    for u, v, size in zip(costs.edge_src.tolist(), costs.edge_dst.tolist(), costs.edge_bytes.tolist(), strict=True):
        for a, b in itertools.product(devices, devices):
            shared = int(((schedule.device[u] == a) & (schedule.device[v] == b)).sum()) * table.group
            sent_s = costs.link_latency_s[a, b] + shared * size / costs.link_bandwidth_bytes_per_s[a, b]
            if shared and schedule.start_s[v, b] < ends[u, a] + (sent_s if a != b else 0.0) - slack:
                raise ValueError(f"op {v} on device {b} does not wait for op {u} of device {a}")
    return makespan
