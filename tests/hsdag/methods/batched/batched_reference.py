"""Brute force over batched schedules, random problems, and a checker op by op; shares no code with the product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

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
Batch = tuple[float, float, int, frozenset[int]]
"""Start, end, op and inputs."""


def makespan_s(problem: BatchedProblem, schedule: BatchSchedule) -> float:
    """The end of the last batch, as the schedule says it. Raises ValueError with all that is wrong with it."""
    wrong = list(violations(problem, schedule))
    if wrong:
        raise ValueError(f"no schedule of problem {problem.costs.name!r}: {'; '.join(wrong[:5])}")
    return max(end for batches in _batches(problem, schedule) for _, end, _, _ in batches.values())


def violations(problem: BatchedProblem, schedule: BatchSchedule) -> Iterator[str]:
    """One sentence for each rule that is broken."""
    costs, table = problem.costs, problem.batches
    wrong = list(_of_sizes(problem, schedule))
    if wrong:
        yield from wrong
        return
    of_op = _batches(problem, schedule)
    held = costs.output_bytes.copy()
    for v, size in zip(costs.edge_dst.tolist(), costs.edge_bytes.tolist(), strict=True):
        held[v] += size
    slack = TOLERANCE * max(end for batches in of_op for _, end, _, _ in batches.values())
    for d in range(costs.num_devices):
        there = sorted((of_op[v][d] for v in range(costs.num_ops) if d in of_op[v]), key=lambda b: (b[0], b[1]))
        for first, second in itertools.pairwise(there):
            if second[0] < first[1] + costs.op_overhead_s - slack:
                yield f"op {costs.op_names[second[2]]!r} overlaps {costs.op_names[first[2]]!r} on device {d}"
        used = 0.0
        for _, _, v, inputs in there:
            used += costs.weight_bytes[v] + held[v] * len(inputs)
        if used > costs.memory_bytes[d] * (1 + TOLERANCE):
            yield f"device {d} needs {used:g} bytes of {costs.memory_bytes[d]:g}"
    for u, v, size in zip(costs.edge_src.tolist(), costs.edge_dst.tolist(), costs.edge_bytes.tolist(), strict=True):
        for (a, made), (b, read_by) in itertools.product(of_op[u].items(), of_op[v].items()):
            shared = len(made[3] & read_by[3])
            sent_s = 0.0
            if a != b:
                sent_s = costs.link_latency_s[a, b] + shared * size / costs.link_bandwidth_bytes_per_s[a, b]
            if shared and read_by[0] < made[1] + sent_s - slack:
                yield f"op {costs.op_names[v]!r} on device {b} does not wait for {costs.op_names[u]!r} of device {a}"
    assert table.num_inputs == sum(len(batch[3]) for batch in of_op[0].values())


def _of_sizes(problem: BatchedProblem, schedule: BatchSchedule) -> Iterator[str]:
    costs, table = problem.costs, problem.batches
    if schedule.device.shape != (costs.num_ops, table.num_inputs // table.group):
        yield f"devices are of {schedule.device.shape} ops and groups"
        return
    for v, row in enumerate(schedule.device.tolist()):
        for d in set(row):
            if not 0 <= d < costs.num_devices:
                yield f"op {costs.op_names[v]!r} is on device {d}, which does not exist"
                continue
            size = row.count(d) * table.group
            if size not in table.sizes or math.isnan(table.time_s[v, d, table.sizes.index(size)]):
                yield f"op {costs.op_names[v]!r} has a batch of {size} on device {d}, which is not allowed"
            if not schedule.start_s[v, d] >= 0:
                yield f"op {costs.op_names[v]!r} has no start on device {d}"


def _batches(problem: BatchedProblem, schedule: BatchSchedule) -> list[dict[int, Batch]]:
    """[N] batches by device."""
    table = problem.batches
    found: list[dict[int, Batch]] = []
    for v, row in enumerate(schedule.device.tolist()):
        of_op: dict[int, Batch] = {}
        for d in set(row):
            inputs = frozenset(g * table.group + k for g, e in enumerate(row) if e == d for k in range(table.group))
            start = float(schedule.start_s[v, d])
            of_op[d] = (start, start + float(table.time_s[v, d, table.sizes.index(len(inputs))]), v, inputs)
        found.append(of_op)
    return found
