"""What the costs of an executor say of one placement: its value, what limits it, and what moves gain.

Under HETERO submodels run in turn, so that all seconds add up to the latency. Under the work-conserving executor parts
run side by side, so that seconds are those of devices. The CUDA engine starts every op by itself, and sends results to
other devices one by one.

Legend: N ops, U units, D devices, B placements, S parts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray
from hsdag.methods.cuts.mincut import proven_bound
from hsdag.placing.subject import with_costs
from hsdag.reporting.explanation import BoundSaid, Gain, Limit
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.costs.op_by_op_costs import OpByOpCosts
from hsdag.runtime.costs.work_conserving_costs import WorkConservingCosts
from hsdag.runtime.objectives import Objective
from hsdag.runtime.problem.bounds.makespan import lower_bound
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.scoring.memory import MemoryCheck

AT_ONCE = 64
"""Moves that are simulated together."""


@dataclass(frozen=True, eq=False)
class CostedPlacement:
    """A placement [N] of a graph, with ranks [N] where it has some, and its costs."""

    graph: ComputationGraph
    devices: tuple[str, ...]
    placement: IntArray
    priority: IntArray | None
    objective: Objective
    costs: PlacementCosts

    @cached_property
    def value(self) -> float:
        """Simulated value of the placement; infinite where it is illegal."""
        return float(self.values(self.placement[None])[0])

    @cached_property
    def time_s(self) -> FloatArray:
        """[N] seconds of every op where it is."""
        return np.nan_to_num(self.costs.costs.time_s[np.arange(len(self.placement)), self.placement])

    def values(self, placements: IntArray, costs: PlacementCosts | None = None) -> FloatArray:
        """[B] simulated values of placements [B, N] that run by the same ranks."""
        priority = None if self.priority is None else [self.priority] * len(placements)
        return np.asarray((costs or self.costs).values(self.objective, placements, priority), dtype=np.float64)

    def limits(self) -> tuple[Limit, ...]:
        """What would be gained if each cost were free, the most first; the placement stays as it is."""
        each_of = {HeteroCosts: self._of_submodels, WorkConservingCosts: self._of_parts, OpByOpCosts: self._of_ops}
        found = (each for each in each_of[type(self.costs)](self.costs) if each.seconds > 0)
        return tuple(sorted(found, key=lambda limit: -limit.gain))

    def _limit(self, name: str, kind: str, without: PlacementCosts, seconds: float | None = None) -> Limit:
        """What is gained without something that takes so many ``seconds``, or as many as are gained."""
        left = float(self.values(self.placement[None], without)[0])
        return Limit(name, kind, self.value - left if seconds is None else seconds, 1.0 - left / self.value)

    def _idle_devices(self, time_s: FloatArray) -> Iterator[tuple[int, FloatArray]]:
        """Each device that holds an op, and the times [N, D] of ops where it takes none."""
        for d in np.unique(self.placement).tolist():
            yield d, np.where(np.arange(time_s.shape[1]) == d, 0.0 * time_s, time_s)

    def _of_submodels(self, costs: Any) -> Iterator[Limit]:
        own = costs.costs
        for d, time_s in self._idle_devices(own.time_s):
            yield self._limit(self.devices[d], "work", replace(costs, costs=replace(own, time_s=time_s)))
        yield self._limit("", "launches", replace(costs, costs=replace(own, launch_s=np.zeros_like(own.launch_s))))
        pairs = np.argwhere(costs.collector.crossings(self.placement[None], len(self.devices)).num[0] > 0).tolist()
        for among in [pairs, *([pair] for pair in pairs if len(pairs) > 1)]:
            latency_s, bandwidth = own.link_latency_s.copy(), own.link_bandwidth_bytes_per_s.copy()
            for a, b in among:
                latency_s[a, b], bandwidth[a, b] = 0.0, np.inf
            free = replace(own, link_latency_s=latency_s, link_bandwidth_bytes_per_s=bandwidth)
            name = "" if among is pairs else " to ".join(self.devices[d] for d in among[0])
            yield self._limit(name, "transfers", replace(costs, costs=free))

    def _of_parts(self, costs: Any) -> Iterator[Limit]:
        parts = costs.table.parts(self.placement, self.objective, self.priority)
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
        own = costs.costs
        for d, time_s in self._idle_devices(own.time_s):
            seconds = float(self.time_s[self.placement == d].sum())
            yield self._limit(self.devices[d], "work", OpByOpCosts(replace(own, time_s=time_s)), seconds)
        free = np.full_like(own.link_bandwidth_bytes_per_s, np.inf)
        links = replace(own, link_latency_s=np.zeros_like(own.link_latency_s), link_bandwidth_bytes_per_s=free)
        yield self._limit("", "transfers", OpByOpCosts(links))
        yield self._limit("", "slow-downs", OpByOpCosts(replace(own, slowdown=None)))


def simulated_gains(costed: CostedPlacement, problem: Problem, limit_s: float) -> tuple[tuple[Gain, ...], int]:
    """What each unit gains from where it is, the largest first, and how many units ``limit_s`` was not enough for.

    Every unit is moved to every other device by itself; those that take longest come first. A unit has no gain that no
    other device runs, or has the memory for.
    """
    begin_s = time.monotonic()
    unit = pieces(problem, costed.placement)
    heaviest = last_of_units(np.lexsort((costed.graph.flops, costed.time_s)), unit)
    home = costed.placement[heaviest]
    values = np.full((len(home), len(costed.devices)), np.nan)  # [U, D] with each unit on each device
    values[np.bincount(unit, ~floating_ops(costed.graph)) == 0] = costed.value  # such units are not run anywhere
    values[~problem.supported[problem.units.partition.labels[heaviest]]] = np.inf
    values[np.arange(len(home)), home] = np.inf
    longest_first = np.argsort(-np.bincount(unit, costed.time_s), kind="stable")
    todo = [(u, d) for u in longest_first.tolist() for d in np.flatnonzero(np.isnan(values[u])).tolist()]
    for begin in range(0, len(todo), AT_ONCE):
        if time.monotonic() - begin_s > limit_s:
            break
        some = np.array(todo[begin : begin + AT_ONCE])
        placements = np.where(unit == some[:, :1], some[:, 1:], costed.placement)
        values[some[:, 0], some[:, 1]] = _within_memory(problem, unit, placements, costed.values(placements))
    unmoved = np.isnan(values).any(axis=1)
    best = np.where(unmoved[:, None], np.inf, values).argmin(axis=1)
    moved = np.where(unmoved, np.inf, values[np.arange(len(home)), best])
    gains = []
    for u in np.argsort(-moved, kind="stable").tolist():
        if np.isfinite(moved[u]):
            op = int(heaviest[u])
            ops = tuple(costed.graph.op_names[v] for v in np.flatnonzero(unit == u).tolist())
            where = costed.devices[home[u]], costed.devices[best[u]]
            gain = float(moved[u]) - costed.value
            gains.append(Gain(costed.graph.op_names[op], costed.graph.op_types[op], ops, *where, float(moved[u]), gain))
    return tuple(gains), int(unmoved.sum())


def pieces(problem: Problem, placement: IntArray) -> IntArray:
    """[N] the unit of every op, by its number; a unit on several devices is as many."""
    key = problem.units.partition.labels * problem.num_devices + placement
    return np.asarray(np.unique(key, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def last_of_units(order: IntArray, unit: IntArray) -> IntArray:
    """[U] the op of each unit that comes last in ``order`` [N]."""
    found = np.zeros(int(unit.max()) + 1, dtype=np.int64)
    found[unit[order]] = order
    return found


def _within_memory(problem: Problem, unit: IntArray, placements: IntArray, values: FloatArray) -> FloatArray:
    """[B] the same values, infinite where a device lacks memory; units in pieces are not judged."""
    if int(unit.max()) + 1 != problem.num_units:
        return values
    memory = MemoryCheck(problem.known_costs, problem.semantics)
    if not memory.has_limits:
        return values
    first = np.unique(problem.units.partition.labels, return_index=True)[1]
    return np.where([memory.fits(placement[first]) for placement in placements], values, np.inf)


def bound_of(problem: Problem, costs: PlacementCosts, value: float) -> BoundSaid | None:
    """The largest bound that is known, and the share of ``value`` that it leaves open; None where nothing is proven.

    Under HETERO that is the minimum cut. Where devices work side by side, transfers are taken to be free: parts send
    less than units do where they compute a join twice.
    """
    priced = with_costs(problem, costs.costs, problem.known_costs.memory_bytes)
    if isinstance(costs, HeteroCosts):
        found = proven_bound(replace(priced, ops=costs, semantics=Semantics(execution=Execution.SEQUENTIAL)))
    else:
        nothing = np.zeros((problem.num_devices, problem.num_devices))
        free = replace(priced.known_costs, link_latency_s=nothing, link_bandwidth_bytes_per_s=nothing + np.inf)
        found = lower_bound(problem.objective, free, Execution.WORK_CONSERVING)
    if found is None or not np.isfinite(found.value):
        return None
    return BoundSaid(found.value, found.argument, max(0.0, 1.0 - found.value / value))
