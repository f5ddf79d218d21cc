"""The latency of placements under the work-conserving executor, simulated and calibrated.

The parts that a placement is cut into run side by side, each as soon as its inputs are there and its device is free.
A part takes the time of its ops, a launch, and some time for every byte it reads and writes: on CPU devices a tensor
changes its layout on leaving a part and on entering another. The makespan is the sum of durations along a chain of
parts, each of which the next one waits for; along that chain it is linear in the costs, and easy to calibrate. Where
devices slow each other down, parts that run side by side take longer, as ops do in the simulator.

Legend: N ops, D devices, B placements, S parts, E edges between parts, I instances, J edges between instances, P = 4 D
parameters (work factors, launches, seconds per byte read and written).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hsdag.base.errors import PlacementError
from hsdag.base.kernels import run_kernel
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.ir.graph.partition import Partition
from hsdag.runtime.costs.fitting import fit_by_kind, fit_factors
from hsdag.runtime.executor.cut import Instances
from hsdag.runtime.executor.merging import (
    ASSUMED_LAUNCH_S,
    CutCosts,
    PartSchedule,
    merged_makespan,
    plan_cut,
    tensors_of,
)
from hsdag.runtime.problem.placement_costs import PlacementCosts, Priorities
from hsdag.runtime.problem.schedule_problem import CostSource, ScheduleProblem, excess_of
from hsdag.runtime.simulator.execution import busiest_s

MOST_REMEMBERED = 1_000_000
"""Number of parts and edges of remembered placements, at some 50 bytes each; beyond it the oldest are forgotten."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of one placement, in running order, and the components of their durations."""

    device: IntArray  # [S]
    rank: FloatArray  # [S] smallest first
    work_s: FloatArray  # [S] seconds of the ops
    read_bytes: FloatArray  # [S]
    written_bytes: FloatArray  # [S]
    edges: IntArray  # [E, 2] pairs whose first part hands something to the second

    def rows(self, num_devices: int) -> FloatArray:
        """Return [S, 4 D] work, launches, and bytes read and written, each in the column of the part's device."""
        count = len(self.device)
        columns = np.stack([self.work_s, np.ones(count), self.read_bytes, self.written_bytes], axis=1)
        rows = np.zeros((count, 4, num_devices))
        rows[np.arange(count), :, self.device] = columns
        return rows.reshape(count, 4 * num_devices)


class PartTable:
    """A table of placements of ``graph``, cut as by the executor; ``op_s`` [N, D] is NaN where a device lacks an op."""

    def __init__(self, graph: ComputationGraph, op_s: FloatArray) -> None:
        self.graph = graph
        self.op_s = op_s
        self._remembered: OrderedDict[tuple[bool, bytes, bytes], Parts | None] = OrderedDict()
        self._size = 0

    def parts(self, placement: IntArray, priority: IntArray | None = None, *, by_load: bool = False) -> Parts | None:
        """Return the parts of a placement [N] with ranks [N], merged as by ``plan_cut``; None where it cannot run."""
        placement = np.ascontiguousarray(placement, dtype=np.int64)
        key = (by_load, placement.tobytes(), b"" if priority is None else priority.tobytes())
        if key in self._remembered:
            return self._remembered[key]
        parts = self._cut(placement, priority, by_load=by_load)
        self._remembered[key] = parts
        self._size += _size_of(parts)
        while self._size > MOST_REMEMBERED and len(self._remembered) > 1:
            self._size -= _size_of(self._remembered.popitem(last=False)[1])
        return parts

    def _cut(self, placement: IntArray, priority: IntArray | None, *, by_load: bool) -> Parts | None:
        if np.isnan(self.op_s[np.arange(len(placement)), placement]).any():
            return None
        try:
            ranks = None if priority is None else priority.astype(np.float64)
            plan = plan_cut(self.graph, placement, self.op_s.shape[1], ranks, by_load=by_load)
        except PlacementError:  # too many subgraphs
            return None
        work_s = self.op_s[plan.instances.op, plan.instances.device]
        if np.isnan(work_s).any():  # a join was copied to a device that lacks it
            return None
        return _measured(self.graph, plan.instances, plan.parts, plan.priority, work_s)


def _measured(
    graph: ComputationGraph, instances: Instances, parts: Partition, rank: FloatArray, work_s: FloatArray
) -> Parts:
    """Return the parts with work and bytes. A part writes a tensor once; each part that needs it reads it once."""
    count, label = parts.num_groups, parts.labels
    source, size_bytes, is_result, tensor, reader = tensors_of(graph, instances)
    crosses = np.flatnonzero(label[source[tensor]] != label[reader])
    written = is_result.copy()
    written[tensor[crosses]] = True
    read, by = np.divmod(np.unique(tensor[crosses] * np.int64(count) + label[reader[crosses]]), count)
    device = np.zeros(count, dtype=np.int64)
    device[label] = instances.device
    return Parts(
        device=device,
        rank=rank,
        work_s=np.bincount(label, work_s, count).astype(np.float64),
        read_bytes=np.bincount(by, size_bytes[read], count).astype(np.float64),
        written_bytes=np.bincount(label[source[written]], size_bytes[written], count).astype(np.float64),
        edges=np.stack(parts.quotient_edges(instances.edge_src, instances.edge_dst), axis=1),
    )


def _size_of(parts: Parts | None) -> int:
    return 1 if parts is None else len(parts.device) + len(parts.edges)


MOST_BYTES_PER_S = 5e10
"""Highest bandwidth at which a tensor is assumed to leave or enter a part."""

SCATTER, SCALE = 0.02, 1.0
"""Scatter of measured latencies, and share by which all launches or all bytes may be off together: latencies alone
hardly separate launches from bytes, so these stay closer to their previous values than under HETERO.
"""

LEVEL = np.array([1.0, 1.0])
"""How far one factor for all times may be off, since a profile may be from a busier moment than later measurements; and
how far, meanwhile, the added time of slow-downs, in units of its uncertainty.
"""

PROBED = 0.1
"""How far a measured slow-down may be off, as a share of the undisturbed time."""

CALIBRATION_ROUNDS = 3
"""Number of times that chains are found again, under the factors fitted along the chains before."""

STEPS_OF_AN_OP = 0.3
"""Interpreted steps of cutting a model and merging its parts, per op, in units of the time to simulate an op."""


@dataclass(frozen=True, eq=False)
class WorkConservingCosts(PlacementCosts):
    """Costs of one graph's ops; ``parameters`` [P] scale and complete the op times of ``table``.

    ``slowdown`` is as in a problem.
    """

    table: PartTable
    parameters: FloatArray
    source: CostSource
    slowdown: FloatArray | None = None  # [D, D]

    @staticmethod
    def of(
        graph: ComputationGraph, costs: ScheduleProblem, syncs: tuple[FloatArray, FloatArray] | None = None
    ) -> WorkConservingCosts:
        """Make costs from a profile, with measured ``syncs`` if any: [D, D] seconds of a launch, and per byte, or NaN.

        Without these, a tensor takes as long to write, and to read, as it takes to cross under HETERO. HETERO's
        probes find small tensors in the cache of the core that wrote them, but readers here are on another core. A
        launch then takes at least what the cut assumes.
        """
        s_per_byte = np.maximum(1.0 / costs.link_bandwidth_bytes_per_s, 1.0 / MOST_BYTES_PER_S)
        latency_s = costs.link_latency_s.mean(axis=0) + costs.link_latency_s.mean(axis=1)
        launch_s = np.maximum(costs.launch_s + latency_s, ASSUMED_LAUNCH_S)
        read, written = s_per_byte.mean(axis=0), s_per_byte.mean(axis=1)
        if syncs is not None:
            launch_s, read, written = (
                np.where(np.isnan(new), old, new)
                for old, new in zip((launch_s, read, written), map(_means, (*syncs, syncs[1])), strict=True)
            )
        parts = [np.ones(len(launch_s)), launch_s, read, written]
        return WorkConservingCosts(PartTable(graph, costs.time_s), np.concatenate(parts), costs.source, costs.slowdown)

    @property
    def num_devices(self) -> int:
        """Return D."""
        return int(self.table.op_s.shape[1])

    @property
    def steps(self) -> float:
        """Return the interpreted steps of cutting and merging."""
        return STEPS_OF_AN_OP * self.table.graph.num_ops

    @cached_property
    def excess(self) -> FloatArray:
        """Return [D, D] slow-downs minus 1; [0, 0] where devices do not slow each other down."""
        return excess_of(self.slowdown, self.num_devices)

    @cached_property
    def cut_costs(self) -> CutCosts:
        """Return the costs in the form of the executor's own schedules; NaN where a device lacks an op."""
        work, launch_s, read, written = self.parameters.reshape(4, -1)
        return CutCosts(self.table.op_s * work, launch_s, read, written)

    @cached_property
    def costs(self) -> ScheduleProblem:  # type: ignore[override]
        """Return the costs by op and link: a crossing result is written, launches its reader's part, and is read."""
        cut_costs = self.cut_costs
        with np.errstate(divide="ignore"):
            bandwidth = 1.0 / (cut_costs.write_s_per_byte[:, None] + cut_costs.read_s_per_byte[None, :])
        return ScheduleProblem.from_graph(
            self.table.graph,
            cut_costs.op_s,
            launch_s=cut_costs.launch_s,
            link_latency_s=np.tile(cut_costs.launch_s, (self.num_devices, 1)),
            link_bandwidth_bytes_per_s=bandwidth,
            source=self.source,
            slowdown=self.slowdown,
        )

    def latency_s(self, placements: IntArray, priority: Priorities | None = None) -> FloatArray:
        """Return [B] the simulated makespans of placements [B, N] of ops; infinite where one is illegal.

        A part's rank is the smallest ``priority`` of its ops; without priorities the largest b-level runs first.
        """
        parts_of = self._parts(placements, priority)
        return np.array([np.inf if parts is None else self._schedule(parts)[0] for parts in parts_of], dtype=np.float64)

    def period_s(self, placements: IntArray) -> FloatArray:
        """Return [B] the simulated seconds per inference in steady state: the load of the busiest device.

        Devices that slow each other down begin together, and each works until its own load is done. Infinite where a
        placement is illegal.
        """
        loads_s = np.full((len(placements), self.num_devices), np.inf)
        for load_s, placement in zip(loads_s, placements, strict=True):
            parts = self.table.parts(placement, by_load=True)
            if parts is not None:
                load_s[:] = np.bincount(parts.device, parts.rows(self.num_devices) @ self.parameters, self.num_devices)
        legal = np.isfinite(loads_s[:, 0])
        periods_s = np.full(len(placements), np.inf)
        periods_s[legal] = busiest_s(loads_s[legal], self.excess)
        return periods_s

    def chain_s(self, placement: IntArray) -> FloatArray:
        """Return [P] the seconds of each parameter in the makespan of a legal placement [N]; they add up to it."""
        parts = self.table.parts(placement)
        assert parts is not None
        return self._chain_row(parts)[:-1] * self.parameters

    def calibrated(
        self, placements: IntArray, measured_s: FloatArray, priority: Priorities | None = None
    ) -> WorkConservingCosts:
        """Return costs refitted to measured latencies [B] of placements [B, N].

        Non-negative least squares on relative errors along the longest chains, pulled towards the present figures as
        far as LEVEL and SCALE go: with one factor for all times, then with one for each device's work and one each for
        all launches, all bytes and the added time of slow-downs, then device by device. The chains are then found
        again. Without observations nothing changes.
        """
        parts_of = self._parts(placements, priority)
        seen = [
            (parts, float(s))
            for parts, s in zip(parts_of, measured_s, strict=True)
            if parts and np.isfinite(s) and s > 0
        ]
        if not seen:
            return self
        fitted = self
        scale = 1.0
        share = PROBED / self.excess.max(initial=PROBED)  # the uncertain share of the added time of slow-downs
        for _ in range(CALIBRATION_ROUNDS):
            rows = np.stack([fitted._chain_row(parts) for parts, _ in seen])
            added_s = rows[:, -1] / scale
            rows[:, :-1] *= self.parameters
            rows[:, -1] = share * added_s
            wanted_s = np.array([s for _, s in seen]) + (scale - 1.0 + share) * added_s
            factors = self._fitted_factors(rows / wanted_s[:, None])
            fitted = replace(self, parameters=self.parameters * factors[:-1], source=CostSource.CALIBRATED)
            if self.slowdown is not None:
                scale = 1.0 + share * float(factors[-1] - 1.0)
                fitted = replace(fitted, slowdown=1.0 + scale * (self.slowdown - 1.0))
        return fitted

    def _fitted_factors(self, rows: FloatArray) -> FloatArray:
        """Return [P + 1] factors of the parameters and of slow-downs' added time, for rows [B, P + 1] of chains."""
        both = np.stack([rows[:, :-1].sum(axis=1), rows[:, -1]], axis=1)
        level = np.append(np.full(len(self.parameters), fit_factors(both, LEVEL, SCATTER)[0]), 1.0)
        sizes = [self.num_devices, 2 * self.num_devices, 1]
        return level * fit_by_kind(rows * level, self.num_devices, sizes, [SCALE] * 3, SCATTER)

    def _parts(self, placements: IntArray, priority: Priorities | None) -> list[Parts | None]:
        priority = priority or [None] * len(placements)
        return [self.table.parts(p, ranks) for p, ranks in zip(placements, priority, strict=True)]

    def _schedule(self, parts: Parts) -> tuple[float, PartSchedule]:
        """Return the makespan, and the schedule, whose durations are those of parts that run alone."""
        count = len(parts.device)
        schedule = PartSchedule.empty(count, self.num_devices, self.excess)
        schedule.duration_s[:] = parts.rows(self.num_devices) @ self.parameters
        schedule.device[:] = parts.device
        schedule.b_level_s[:] = -parts.rank
        schedule.follows[parts.edges[:, 0], parts.edges[:, 1]] = True
        schedule.num_inputs[:] = schedule.follows.sum(axis=0)
        return float(run_kernel(merged_makespan, 0.05 * count * count, schedule, count)), schedule

    def _chain_row(self, parts: Parts) -> FloatArray:
        """Return [P + 1] each parameter's coefficient along the longest chain, and the seconds that slow-downs add.

        The components of a part are stretched as the part is: multiplied with the parameters, the first P give the
        makespan. The last is the growth of the makespan, to first order, if all slow-downs minus 1 double.
        """
        _, schedule = self._schedule(parts)
        chain = _longest_chain(schedule)
        taken_s, alone_s = (schedule.end_s - schedule.start_s)[chain], schedule.duration_s[chain]
        stretch = np.divide(taken_s, alone_s, out=np.ones_like(alone_s), where=alone_s > 0)
        return np.append(stretch @ parts.rows(self.num_devices)[chain], (taken_s - alone_s).sum())


def _means(table: FloatArray) -> FloatArray:
    """Return [D] the means of the columns without NaN; NaN for a column without any figure."""
    return np.array([seen.mean() if len(seen := column[~np.isnan(column)]) else np.nan for column in table.T])


def _longest_chain(s: PartSchedule) -> BoolArray:
    """Return [S] the parts on a chain that fills the time from the start to the end of the last part.

    A part begins when the last of its inputs ends, or the part before it on its device; from the end back, the chain
    takes an input that ends then, or else the part before on the device.
    """
    chosen = np.zeros(len(s.device), dtype=np.bool_)
    candidates = np.array([np.argmax(s.end_s)])
    while len(candidates):
        p = candidates[0]
        chosen[p] = True
        before = ~chosen & (s.end_s == s.start_s[p])
        candidates = np.flatnonzero(before & s.follows[:, p])
        if not len(candidates):
            candidates = np.flatnonzero(before & (s.device == s.device[p]))
    return chosen
