"""Attribute the cost of a placement: its simulated value, what limits it, and what moving units would gain.

Under HETERO submodels run in turn, so all seconds add up to the latency. Under the work-conserving executor parts run
side by side, so seconds are those of devices. The CUDA engine starts every op by itself and sends results to other
devices one by one.

Legend: N ops, U units, D devices, B placements, S parts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hsdag.commands.explain.explanation import Gain, Limit, ReportedBound
from hsdag.commands.place.loaded_model import with_costs
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray
from hsdag.methods.cuts.mincut import proven_bound
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.objectives import Objective
from hsdag.runtime.problem.bounds.makespan import lower_bound
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.search.evaluators.memory import MemoryCheck

AT_ONCE = 64
"""Number of moves that are simulated in one call."""


@dataclass(frozen=True, eq=False)
class Attribution:
    """The costs of a placement, [N] device indices with ranks [N] if it has any, attributed to their causes."""

    graph: ComputationGraph
    devices: tuple[str, ...]
    placement: IntArray
    priority: IntArray | None
    objective: Objective
    costs: PlacementCosts

    @cached_property
    def value(self) -> float:
        """Return the simulated value of the placement; infinite if a device cannot run one of its ops."""
        return float(self.values(self.placement[None])[0])

    @cached_property
    def time_s(self) -> FloatArray:
        """Return the seconds of every op on its device, [N]."""
        return np.nan_to_num(self.costs.costs.time_s[np.arange(len(self.placement)), self.placement])

    def values(self, placements: IntArray, costs: PlacementCosts | None = None) -> FloatArray:
        """Return the simulated values [B] of placements [B, N] that run with the same ranks."""
        priority = None if self.priority is None else [self.priority] * len(placements)
        return np.asarray((costs or self.costs).values(self.objective, placements, priority), dtype=np.float64)

    def limits(self) -> tuple[Limit, ...]:
        """Return what would be gained if each kind of cost were zero and the placement the same, largest gain first."""
        each_of = {HeteroCosts: self._of_submodels, WorkConservingCosts: self._of_parts, OpByOpCosts: self._of_ops}
        limits = (limit for limit in each_of[type(self.costs)](self.costs) if limit.seconds > 0)
        return tuple(sorted(limits, key=lambda limit: -limit.gain))

    def _limit(self, name: str, kind: str, without: PlacementCosts, seconds: float | None = None) -> Limit:
        """Return the gain under the costs ``without`` one of their parts.

        ``seconds`` is what that part takes, by default the time that is gained.
        """
        left = float(self.values(self.placement[None], without)[0])
        return Limit(name, kind, self.value - left if seconds is None else seconds, 1.0 - left / self.value)

    def _idle_devices(self, time_s: FloatArray) -> Iterator[tuple[int, FloatArray]]:
        """Yield each device that holds an op, with op times [N, D] in which that device takes no time."""
        for d in np.unique(self.placement).tolist():
            yield d, np.where(np.arange(time_s.shape[1]) == d, 0.0 * time_s, time_s)

    def _of_submodels(self, costs: Any) -> Iterator[Limit]:
        """Yield the limits under HETERO: work of devices, launches, and transfers in all and by link."""
        tables = costs.costs
        for d, time_s in self._idle_devices(tables.time_s):
            yield self._limit(self.devices[d], "work", replace(costs, costs=replace(tables, time_s=time_s)))
        yield self._limit(
            "", "launches", replace(costs, costs=replace(tables, launch_s=np.zeros_like(tables.launch_s)))
        )
        pairs = np.argwhere(costs.collector.crossings(self.placement[None], len(self.devices)).num[0] > 0).tolist()
        for among in [pairs, *([pair] for pair in pairs if len(pairs) > 1)]:
            latency_s, bandwidth = tables.link_latency_s.copy(), tables.link_bandwidth_bytes_per_s.copy()
            for a, b in among:
                latency_s[a, b], bandwidth[a, b] = 0.0, np.inf
            free = replace(tables, link_latency_s=latency_s, link_bandwidth_bytes_per_s=bandwidth)
            name = "" if among is pairs else " to ".join(self.devices[d] for d in among[0])
            yield self._limit(name, "transfers", replace(costs, costs=free))

    def _of_parts(self, costs: Any) -> Iterator[Limit]:
        """Yield the limits under the work-conserving executor: work of devices, launches, transfers and slow-downs."""
        parts = costs.table.parts(self.placement, self.priority, by_load=self.objective.is_steady)
        if parts is None:
            return
        per_device = costs.parameters.reshape(4, -1)  # [4, D] of work, a launch, a byte read and a byte written
        made_of = [parts.work_s, np.ones(len(parts.device)), parts.read_bytes, parts.written_bytes]
        rows = per_device[:, parts.device] * np.stack(made_of)  # [4, S] seconds of each part alone

        def free(name: str, kind: str, entries: Any, seconds: float) -> Limit:
            table = per_device.copy()
            table[entries] = 0.0
            return self._limit(name, kind, replace(costs, parameters=table.ravel()), seconds)

        for d in np.unique(self.placement).tolist():
            yield free(self.devices[d], "work", np.s_[0, d], float(rows[0, parts.device == d].sum()))
        yield free("", "launches", np.s_[1], float(rows[1].sum()))
        yield free("", "transfers", np.s_[2:], float(rows[2:].sum()))
        yield self._limit("", "slow-downs", replace(costs, slowdown=None))

    def _of_ops(self, costs: Any) -> Iterator[Limit]:
        """Yield the limits under the CUDA engine: work of devices, transfers and slow-downs."""
        tables = costs.costs
        for d, time_s in self._idle_devices(tables.time_s):
            seconds = float(self.time_s[self.placement == d].sum())
            yield self._limit(self.devices[d], "work", OpByOpCosts(replace(tables, time_s=time_s)), seconds)
        free = np.full_like(tables.link_bandwidth_bytes_per_s, np.inf)
        links = replace(tables, link_latency_s=np.zeros_like(tables.link_latency_s), link_bandwidth_bytes_per_s=free)
        yield self._limit("", "transfers", OpByOpCosts(links))
        yield self._limit("", "slow-downs", OpByOpCosts(replace(tables, slowdown=None)))


def simulated_gains(attribution: Attribution, problem: Problem, limit_s: float) -> tuple[tuple[Gain, ...], int]:
    """Return what each unit gains from its device, largest first, and the number of units not simulated in time.

    Every unit is moved, by itself, to every other device that runs it and has the memory, units that take longest
    first. A unit that no other device can take has no gain.

    Args:
        limit_s: Seconds after which no further moves are simulated.
    """
    begin_s = time.monotonic()
    graph, value = attribution.graph, attribution.value
    unit = pieces(problem, attribution.placement)
    heaviest = last_of_units(np.lexsort((graph.flops, attribution.time_s)), unit)
    home = attribution.placement[heaviest]
    values = np.full((len(home), len(attribution.devices)), np.nan)  # [U, D] with each unit on each device
    values[np.bincount(unit, ~floating_ops(graph)) == 0] = value  # units of constants run nowhere
    values[~problem.supported[problem.units.partition.labels[heaviest]]] = np.inf
    values[np.arange(len(home)), home] = np.inf
    longest_first = np.argsort(-np.bincount(unit, attribution.time_s), kind="stable")
    todo = [(u, d) for u in longest_first.tolist() for d in np.flatnonzero(np.isnan(values[u])).tolist()]
    for begin in range(0, len(todo), AT_ONCE):
        if time.monotonic() - begin_s > limit_s:
            break
        some = np.array(todo[begin : begin + AT_ONCE])
        placements = np.where(unit == some[:, :1], some[:, 1:], attribution.placement)
        values[some[:, 0], some[:, 1]] = _within_memory(problem, unit, placements, attribution.values(placements))
    unmoved = np.isnan(values).any(axis=1)
    best = np.where(unmoved[:, None], np.inf, values).argmin(axis=1)
    moved = np.where(unmoved, np.inf, values[np.arange(len(home)), best])
    gains = []
    for u in np.argsort(-moved, kind="stable").tolist():
        if np.isfinite(moved[u]):
            op = int(heaviest[u])
            ops = tuple(graph.op_names[v] for v in np.flatnonzero(unit == u).tolist())
            where = attribution.devices[home[u]], attribution.devices[best[u]]
            gain = float(moved[u]) - value
            gains.append(Gain(graph.op_names[op], graph.op_types[op], ops, *where, float(moved[u]), gain))
    return tuple(gains), int(unmoved.sum())


def pieces(problem: Problem, placement: IntArray) -> IntArray:
    """Return the number of every op's unit, [N]; a unit spread over several devices counts as one unit per device."""
    key = problem.units.partition.labels * problem.num_devices + placement
    return np.asarray(np.unique(key, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def last_of_units(order: IntArray, unit: IntArray) -> IntArray:
    """Return for each unit its op that comes last in ``order`` [N], [U]."""
    last = np.zeros(int(unit.max()) + 1, dtype=np.int64)
    last[unit[order]] = order
    return last


def _within_memory(problem: Problem, unit: IntArray, placements: IntArray, values: FloatArray) -> FloatArray:
    """Return the values [B], infinite for placements that exceed a device's memory.

    Placements are not checked if some unit is spread over several devices.
    """
    if int(unit.max()) + 1 != problem.num_units:
        return values
    memory = MemoryCheck(problem.known_costs, problem.semantics)
    if not memory.has_limits:
        return values
    first = np.unique(problem.units.partition.labels, return_index=True)[1]
    return np.where([memory.fits(placement[first]) for placement in placements], values, np.inf)


def bound_of(problem: Problem, costs: PlacementCosts, value: float) -> ReportedBound | None:
    """Return the largest known lower bound and the share of ``value`` above it, or None if nothing is proven.

    Under HETERO the bound is the minimum cut. Where devices work side by side, transfers are taken to be free, because
    parts send less than units do where they compute a join twice.
    """
    priced = with_costs(problem, costs.costs, problem.known_costs.memory_bytes)
    if isinstance(costs, HeteroCosts):
        bound = proven_bound(replace(priced, ops=costs, semantics=Semantics(execution=Execution.SEQUENTIAL)))
    else:
        nothing = np.zeros((problem.num_devices, problem.num_devices))
        free = replace(priced.known_costs, link_latency_s=nothing, link_bandwidth_bytes_per_s=nothing + np.inf)
        bound = lower_bound(problem.objective, free, Execution.WORK_CONSERVING)
    if bound is None or not np.isfinite(bound.value):
        return None
    return ReportedBound(bound.value, bound.argument, max(0.0, 1.0 - bound.value / value))
