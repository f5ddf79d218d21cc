"""Checking batched schedules, op by op and input by input; shares nothing with what makes them.

Legend: N ops, D devices, L inputs, G groups of inputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from hsdag.placers.exact.batches import BatchedProblem, BatchSchedule

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
