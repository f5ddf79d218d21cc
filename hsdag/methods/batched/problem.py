"""Batches: several inputs divided over devices in the batch sizes these allow (DiviML, section III).

Legend: N ops, E edges, D devices, S batch sizes, L inputs, G groups of inputs that stay together.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hsdag.ir.graph.computation_graph import Csr, FloatArray, IntArray
from hsdag.ir.graph.partition import Partition
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

MOST_DIVISIONS = 2000
"""Ways to divide an op that lists look through; where there are more, they divide over fewer devices."""


@dataclass(frozen=True, eq=False)
class BatchTable:
    """What batches of an op take: t(i, u, b) of DiviML, for ``num_inputs`` inputs of the whole graph.

    ``time_s`` is [N, D, S], NaN where a device does not run an op in that size. ``group`` inputs always share their
    devices: with the greatest common divisor of the sizes, who is where has fewer answers, and some are lost.
    Raises ValueError for sizes that are not rising from 1 to ``num_inputs``, for a group that does not divide them,
    for tables of another shape, and for negative times.
    """

    num_inputs: int
    sizes: tuple[int, ...]
    time_s: FloatArray  # [N, D, S]
    group: int = 1

    def __post_init__(self) -> None:
        if self.num_inputs < 1 or not self.sizes:
            raise ValueError(f"batching needs inputs and batch sizes, not {self.num_inputs} and {self.sizes}")
        if list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 1 or self.sizes[-1] > self.num_inputs:
            raise ValueError(f"batch sizes must rise from 1 to {self.num_inputs} at most, not {self.sizes}")
        if self.group < 1 or any(size % self.group for size in (*self.sizes, self.num_inputs)):
            raise ValueError(f"groups of {self.group} do not divide {self.num_inputs} inputs and sizes {self.sizes}")
        if self.time_s.ndim != 3 or self.time_s.shape[2] != len(self.sizes):
            raise ValueError(f"time_s must be ops by devices by {len(self.sizes)} sizes, not {self.time_s.shape}")
        if np.any(self.time_s < 0) or np.any(np.isinf(self.time_s)):
            raise ValueError("times of batches must be finite and not negative")
        self.time_s.flags.writeable = False

    @staticmethod
    def quarters(problem: ScheduleProblem, num_inputs: int, fixed_share: float) -> BatchTable:
        """B/4, B/2, 3B/4 and B (DiviML, section V-C), a quarter staying together; halves or B where 4 divides not.

        A batch of b takes t (fixed_share + (1 - fixed_share) b).
        """
        group = num_inputs // math.gcd(num_inputs, 4)
        sizes = tuple(range(group, num_inputs + 1, group))
        times = problem.time_s[:, :, None] * (fixed_share + (1 - fixed_share) * np.asarray(sizes))
        return BatchTable(num_inputs, sizes, times, group)

    @property
    def num_groups(self) -> int:
        """G."""
        return self.num_inputs // self.group


@dataclass(frozen=True, eq=False)
class BatchSchedule:
    """Where and when: device of each op and group of inputs, and the start of each op's batch on each device."""

    device: IntArray  # [N, G]
    start_s: FloatArray  # [N, D], NaN where a device has no batch of an op


@dataclass(frozen=True, eq=False)
class BatchedProblem:
    """A problem with a batch table.

    Every op has at most one batch on a device. What goes from u's batch on one device to v's batch on another are
    the results of the inputs that both have, all at once: latency + inputs times bytes / bandwidth. The memory of a
    device holds the weights of ops that it has a batch of, and what these read and write for every input there, from
    the beginning: (6). Raises ValueError where the table is of other ops or devices.
    """

    costs: ScheduleProblem
    batches: BatchTable

    def __post_init__(self) -> None:
        if self.batches.time_s.shape[:2] != self.costs.time_s.shape:
            found, wanted = self.batches.time_s.shape[:2], self.costs.time_s.shape
            raise ValueError(f"the batch table must be of {wanted} ops and devices, not {found}")

    @staticmethod
    def of(costs: ScheduleProblem, batches: BatchTable) -> BatchedProblem:
        """The problem with all edges of a result at the size of the largest: a batch of results is sent whole."""
        largest = np.zeros(costs.num_ops)
        np.maximum.at(largest, costs.edge_src, costs.edge_bytes)
        pairs = np.unique(np.stack([costs.edge_src, costs.edge_dst], axis=1), axis=0)
        src, dst = pairs[:, 0].copy(), pairs[:, 1].copy()
        whole = replace(costs, edge_src=src, edge_dst=dst, edge_bytes=largest[src], edge_port=np.zeros_like(src))
        return BatchedProblem(whole, batches)

    @property
    def num_groups(self) -> int:
        """G."""
        return self.batches.num_groups

    @cached_property
    def inputs(self) -> Csr:
        """The ops that each op reads."""
        return Csr.build(self.costs.num_ops, self.costs.edge_dst, self.costs.edge_src)

    @cached_property
    def chains(self) -> IntArray:
        """[N] the chain of each op: an op that is the only reader of its only input joins it."""
        src, dst = self.costs.edge_src, self.costs.edge_dst
        num_out, num_in = (np.bincount(ends, minlength=self.costs.num_ops) for ends in (src, dst))
        joins = (num_out[src] == 1) & (num_in[dst] == 1)
        return Partition.from_pairs(self.costs.num_ops, src[joins], dst[joins]).labels

    @cached_property
    def group_time_s(self) -> FloatArray:
        """[N, D, G + 1] of batches by groups; NaN where a size is not allowed, 0 for no batch."""
        n, d = self.costs.time_s.shape
        table = np.full((n, d, self.num_groups + 1), np.nan)
        table[:, :, 0] = 0.0
        for k, size in enumerate(self.batches.sizes):
            table[:, :, size // self.batches.group] = self.batches.time_s[:, :, k]
        return table

    @cached_property
    def group_edge_bytes(self) -> FloatArray:
        """[E] bytes of one group."""
        return np.asarray(self.costs.edge_bytes * self.batches.group, dtype=np.float64)

    @cached_property
    def held_bytes(self) -> FloatArray:
        """[N] what an op reads and writes for one group: im + om of (6)."""
        read = np.bincount(self.costs.edge_dst, self.costs.edge_bytes, self.costs.num_ops)
        return np.asarray((self.costs.output_bytes + read) * self.batches.group, dtype=np.float64)

    @cached_property
    def s_per_byte(self) -> FloatArray:
        """[D, D] 0 on the diagonal."""
        own = np.eye(self.costs.num_devices, dtype=np.bool_)
        return np.asarray(np.where(own, 0.0, 1.0 / self.costs.link_bandwidth_bytes_per_s), dtype=np.float64)

    @cached_property
    def latency_s(self) -> FloatArray:
        """[D, D] 0 on the diagonal."""
        return np.asarray(np.where(np.eye(self.costs.num_devices, dtype=np.bool_), 0.0, self.costs.link_latency_s))

    @cached_property
    def divisions(self) -> IntArray:
        """[K, D] the ways to divide the groups over devices, whether an op allows them or not.

        Over all devices, or as many as there are no more than MOST_DIVISIONS ways for.
        """
        devices, groups, rows = self.costs.num_devices, self.num_groups, list[list[int]]()
        for shares in range(1, min(devices, groups) + 1):
            ways = itertools.combinations(range(devices), shares), itertools.combinations(range(1, groups), shares - 1)
            if (
                rows
                and len(rows) + math.prod(map(math.comb, (devices, groups - 1), (shares, shares - 1))) > MOST_DIVISIONS
            ):
                break
            for homes, cuts in itertools.product(*ways):
                count = dict(zip(homes, np.diff([0, *cuts, groups]).tolist(), strict=True))
                rows.append([count.get(d, 0) for d in range(devices)])
        return np.asarray(sorted(rows), dtype=np.int64)

    def makespan_s(self, schedule: BatchSchedule) -> float:
        """The end of the last batch."""
        op, home = np.nonzero(np.isfinite(schedule.start_s))
        size = (schedule.device[op] == home[:, None]).sum(axis=1)
        return float((schedule.start_s[op, home] + self.group_time_s[op, home, size]).max())
