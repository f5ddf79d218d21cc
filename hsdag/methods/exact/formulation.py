"""What exact models share: memory rules, precedence, transfer times, and identical devices.

Legend: N ops, E edges, D devices.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray, inverse_of
from hsdag.runtime.problem.bounds.simple import least_after_s, least_before_s
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem

MOST_HELD = 2.0**56
"""Count memory in bytes up to this number, and beyond it in a power of two of bytes, to stay within 64 bits."""


class MemoryRule(Enum):
    """What a device's memory must hold.

    PEAK is what the simulator measures. RUNNING requires less, so its bounds hold. RESERVED is DiviML's (6), which
    reserves the inputs and outputs of all ops from the beginning: it requires more.
    """

    PEAK = "peak"  # weights, and results from the start of their op to their last use
    RUNNING = "running"  # weights, and what any one op reads and writes
    RESERVED = "reserved"  # weights, and the inputs and outputs of all ops


@dataclass(frozen=True, eq=False)
class Capacity:
    """The memory of a device in whole units; all sizes are rounded down, so that what fits still fits."""

    size: int
    resident: IntArray  # [N] weights of an op, plus its inputs and outputs if the rule reserves them
    running: IntArray  # [N] what it takes in addition while it runs; 0 if the rule does not count that
    unit_bytes: float


@dataclass(frozen=True, eq=False)
class Formulation:
    """A scheduling problem with derived quantities that models need."""

    problem: ScheduleProblem
    memory: MemoryRule = MemoryRule.RUNNING

    @cached_property
    def consumers(self) -> list[dict[int, float]]:
        """Return the bytes that each consumer of an op reads in one transfer, [N].

        Of parallel edges the largest counts, of several results the sum.
        """
        p = self.problem.with_single_results
        consumers = [dict[int, float]() for _ in range(self.problem.num_ops)]
        for u, v, size in zip(p.edge_src.tolist(), p.edge_dst.tolist(), p.edge_bytes.tolist(), strict=True):
            consumers[u][v] = size
        return consumers

    @cached_property
    def reach(self) -> BoolArray:
        """Return whether a path leads from one op to another, [N, N], in O(N E)."""
        reach = np.zeros((self.problem.num_ops, self.problem.num_ops), dtype=np.bool_)
        for u in self.problem.topological_order[::-1].tolist():
            for v in self.consumers[u]:
                reach[u] |= reach[v]
                reach[u, v] = True
        return reach

    @cached_property
    def unordered(self) -> BoolArray:
        """Return whether no path connects two ops, [N, N]; False on the diagonal."""
        return ~(self.reach | self.reach.T | np.eye(self.problem.num_ops, dtype=np.bool_))

    @cached_property
    def allowed(self) -> BoolArray:
        """Return whether an op could run on a device that held nothing else, [N, D]; a row may be all False."""
        p = self.problem
        alone = self.running_bytes + p.weight_bytes[:, None]
        return np.asarray(p.supported & (alone <= p.memory_bytes * (1 + 1e-9)), dtype=np.bool_)

    @cached_property
    def running_bytes(self) -> FloatArray:
        """Return the least bytes that an op's result and inputs take while it runs, [N, D]; 0 if it takes no time."""
        p = self.problem.with_single_results
        read = np.bincount(p.edge_dst, np.minimum(p.edge_bytes, p.output_bytes[p.edge_src]), p.num_ops)
        return np.where(p.time_s > 0, (p.output_bytes + read)[:, None], 0.0)

    @cached_property
    def reserved_bytes(self) -> FloatArray:
        """Return the bytes of inputs and outputs of each op, [N]: im + om of (6)."""
        p = self.problem.with_single_results
        return np.asarray(p.output_bytes + np.bincount(p.edge_dst, p.edge_bytes, p.num_ops), dtype=np.float64)

    def capacities(self, on: Sequence[Container[int]]) -> Iterator[tuple[int, list[int], Capacity]]:
        """Yield each device whose memory can bind, the ops that ``on`` [N] allows there, and its capacity."""
        for d in range(self.problem.num_devices):
            there = [i for i, devices in enumerate(on) if d in devices]
            if (capacity := self.capacity(d, there)) is not None:
                yield d, there, capacity

    def capacity(self, d: int, there: list[int]) -> Capacity | None:
        """Return the memory of device d for the ops ``there`` under the memory rule; None if they cannot exceed it."""
        p = self.problem
        results_bytes, running_bytes = np.zeros(p.num_ops), self.running_bytes[:, d]
        if self.memory is MemoryRule.RESERVED:
            results_bytes, running_bytes = self.reserved_bytes, results_bytes
        most_bytes = float((p.weight_bytes + results_bytes)[there].sum())
        beside_bytes = float(running_bytes[there].max(initial=0.0))
        if self.memory is MemoryRule.PEAK:
            copies = sum(max(consumers.values(), default=0.0) for consumers in self.consumers)
            beside_bytes = max(float(p.output_bytes.sum()) + copies, beside_bytes)
        most_bytes += beside_bytes
        room_bytes = float(p.memory_bytes[d]) * (1 + 1e-9)
        if most_bytes <= room_bytes:
            return None
        unit = float(2.0 ** max(np.ceil(np.log2(most_bytes / MOST_HELD)), 0.0))
        in_units = [np.floor(size / unit).astype(np.int64) for size in (p.weight_bytes, results_bytes, running_bytes)]
        weights, results, running = in_units
        return Capacity(int(room_bytes / unit), weights + results, running, unit)

    def transfer_s(self, size_bytes: float) -> FloatArray:
        """Return the seconds that a result of this size takes from device to device, [D, D]; 0 on the diagonal."""
        p = self.problem
        is_same = np.eye(p.num_devices, dtype=np.bool_)
        return np.where(is_same, 0.0, p.link_latency_s + size_bytes / p.link_bandwidth_bytes_per_s)

    @property
    def durations_s(self) -> list[ArrayLike]:
        """Return all durations in seconds that a schedule of the problem may contain."""
        p = self.problem
        transfers = [self.transfer_s(size) for size in np.unique(p.with_single_results.edge_bytes)]
        return [p.time_s, [p.op_overhead_s, p.transfer_overhead_s], p.launch_s, *transfers]

    @cached_property
    def heads_s(self) -> FloatArray:
        """Return the earliest start of every op in seconds, [N]: the longest path to it at fastest times."""
        return least_before_s(self.problem)

    @cached_property
    def tails_s(self) -> FloatArray:
        """Return the least seconds between the end of an op and the end of all, [N]."""
        return least_after_s(self.problem)


def generous_horizon_s(problem: ScheduleProblem) -> float:
    """Return seconds within which all ops, launches and transfers fit one after another, at their slowest."""
    off = ~np.eye(problem.num_devices, dtype=np.bool_)
    each_s = problem.op_overhead_s + float(problem.launch_s.max())
    ops_s = float(np.nanmax(problem.time_s, axis=1).sum()) + each_s * problem.num_ops
    sent_s = problem.transfer_overhead_s * len(problem.edge_bytes)
    latency_s, bandwidth = problem.link_latency_s[off], problem.link_bandwidth_bytes_per_s[off]
    for size, count in zip(*np.unique(problem.edge_bytes, return_counts=True), strict=True):
        slowest_s = latency_s + size / bandwidth
        sent_s += count * float(slowest_s[np.isfinite(slowest_s)].max(initial=0.0))
    return max(ops_s + sent_s, 1e-12)


def identical_devices(problem: ScheduleProblem) -> list[IntArray]:
    """Return groups of identical devices: exchanging two devices of a group does not change the problem."""
    num = problem.num_devices
    first = np.array([next(a for a in range(d + 1) if _are_identical(problem, a, d)) for d in range(num)])
    return [kind for d in range(num) if len(kind := np.flatnonzero(first == d)) > 1]


def _are_identical(problem: ScheduleProblem, a: int, b: int) -> bool:
    swap = np.arange(problem.num_devices)
    swap[[a, b]] = [b, a]
    off = ~np.eye(problem.num_devices, dtype=np.bool_)
    links = problem.link_latency_s, problem.link_bandwidth_bytes_per_s
    return all(
        np.array_equal(table, table[..., swap], equal_nan=True)
        for table in (problem.time_s, problem.memory_bytes, problem.launch_s)
    ) and all(np.array_equal(table[off], table[np.ix_(swap, swap)][off]) for table in links)


def memory_can_bind(problem: ScheduleProblem) -> bool:
    """Return whether all weights, results and copies together exceed some device's memory."""
    everything = problem.weight_bytes.sum() + problem.output_bytes.sum() + problem.edge_bytes.sum()
    return bool(np.any(everything > problem.memory_bytes))


def induced(problem: ScheduleProblem, ops: IntArray) -> ScheduleProblem:
    """Return the problem of only the ops ``ops`` [M], in this order, with the edges among them.

    Of their labels, types, meta-ops and roles are kept.
    """
    place = np.full(problem.num_ops, -1, dtype=np.int64)
    place[ops] = np.arange(len(ops))
    inside = (place[problem.edge_src] >= 0) & (place[problem.edge_dst] >= 0)
    return replace(
        problem,
        op_names=tuple(problem.op_names[v] for v in ops),
        time_s=problem.time_s[ops],
        output_bytes=problem.output_bytes[ops],
        weight_bytes=problem.weight_bytes[ops],
        edge_src=place[problem.edge_src[inside]],
        edge_dst=place[problem.edge_dst[inside]],
        edge_bytes=problem.edge_bytes[inside],
        edge_port=problem.edge_port[inside],
        topological_order=np.argsort(inverse_of(problem.topological_order)[ops], kind="stable"),
        labels=replace(
            OpLabels.empty(len(ops), [problem.labels.types[v] for v in ops]),
            meta_ops=tuple(problem.labels.meta_ops[v] for v in ops),
            roles=tuple(problem.labels.roles[v] for v in ops),
        ),
    )


def with_inputs(problem: ScheduleProblem, inputs: IntArray, ops: IntArray) -> ScheduleProblem:
    """Return the problem of ``ops`` [M] preceded by ``inputs`` [I], which take no time and have no weights."""
    part = induced(problem, np.append(inputs, ops))
    is_op = np.arange(part.num_ops) >= len(inputs)
    return replace(part, time_s=part.time_s * is_op[:, None], weight_bytes=part.weight_bytes * is_op)
