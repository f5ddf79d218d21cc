"""What units gain from where they are: every one of them moved to every other device, by itself, and simulated.

Legend: N ops, U units, D devices, B moves.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from hsdag.explaining.costed import CostedPlacement
from hsdag.explaining.explanation import Gain
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.problem.problem import Problem
from hsdag.scoring.memory import MemoryCheck

LIMIT_S = 20.0
"""Seconds after which no further move is simulated; units that take longest come first."""

AT_ONCE = 64
"""Moves that are simulated together."""


@dataclass(frozen=True, eq=False)
class Moves:
    """The units of a placement [N], and the values [U, D] with each of them on each device.

    Values are infinite where a device does not run a unit or lacks memory for it, and NaN where time was over.
    ``unit`` is [N]: what a placer ties together, in pieces where the placement has it on several devices.
    """

    costed: CostedPlacement
    unit: IntArray  # [N]
    values: FloatArray  # [U, D]
    heaviest: IntArray  # [U] the op that takes longest

    @property
    def num_unmoved(self) -> int:
        """Units that time was not enough for."""
        return int(np.isnan(self.values).any(axis=1).sum())

    def gains(self) -> tuple[Gain, ...]:
        """Of every unit that could move, the largest first."""
        own, found = self.costed, []
        home = own.placement[self.heaviest]
        others = self.values.copy()
        others[np.arange(len(home)), home] = np.inf
        others[np.isnan(self.values).any(axis=1)] = np.inf
        best = others.argmin(axis=1)
        moved = others[np.arange(len(home)), best]
        members = np.split(np.argsort(self.unit, kind="stable"), np.cumsum(np.bincount(self.unit))[:-1])
        for u in np.argsort(-np.where(np.isinf(moved), -np.inf, moved), kind="stable").tolist():
            if np.isfinite(moved[u]):
                graph, v = own.graph, int(self.heaviest[u])
                ops = tuple(graph.op_names[op] for op in members[u].tolist())
                here, there = own.devices[home[u]], own.devices[best[u]]
                gain = float(moved[u]) - own.value
                found.append(Gain(graph.op_names[v], graph.op_types[v], ops, here, there, float(moved[u]), gain))
        return tuple(found)


def simulated_moves(costed: CostedPlacement, problem: Problem, limit_s: float = LIMIT_S) -> Moves:
    """Simulate the moves of all units, as far as ``limit_s`` goes."""
    begin_s, num_devices = time.monotonic(), len(costed.devices)
    unit = pieces(problem, costed.placement)
    heaviest = heaviest_ops(costed, unit)
    home, values = costed.placement[heaviest], np.full((len(heaviest), num_devices), np.nan)
    works = ~floating_ops(costed.graph)
    values[np.arange(len(home)), home] = costed.value
    supported = problem.supported[problem.units.partition.labels[heaviest]]
    values[~supported] = np.inf
    taken_s = np.bincount(unit, _time_s(costed), len(home))
    is_idle = np.bincount(unit, works, len(home)) == 0  # such units are not run anywhere
    values[is_idle] = costed.value
    todo = [(u, d) for u in np.argsort(-taken_s, kind="stable").tolist() for d in np.flatnonzero(np.isnan(values[u]))]
    for first in range(0, len(todo), AT_ONCE):
        if time.monotonic() - begin_s > limit_s:
            break
        some = np.array(todo[first : first + AT_ONCE])
        placements = np.tile(costed.placement, (len(some), 1))
        for row, (u, d) in zip(placements, some.tolist(), strict=True):
            row[unit == u] = d
        values[some[:, 0], some[:, 1]] = _within_memory(problem, unit, placements, costed.values(placements))
    return Moves(costed, unit, values, heaviest)


def pieces(problem: Problem, placement: IntArray) -> IntArray:
    """[N] the unit of every op, by its number; a unit on several devices is as many."""
    key = problem.units.partition.labels * problem.num_devices + placement
    return np.asarray(np.unique(key, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def heaviest_ops(costed: CostedPlacement, unit: IntArray) -> IntArray:
    """[U] of each unit the op that takes longest where it is, of equal ones the one with most operations."""
    return last_of_units(np.lexsort((costed.graph.flops, _time_s(costed))), unit)


def last_of_units(order: IntArray, unit: IntArray) -> IntArray:
    """[U] the op of each unit that comes last in ``order`` [N]."""
    found = np.zeros(int(unit.max()) + 1, dtype=np.int64)
    found[unit[order]] = order
    return found


def _time_s(costed: CostedPlacement) -> FloatArray:
    """[N] seconds of every op where it is."""
    costs = costed.costs.costs
    return np.asarray(np.nan_to_num(costs.time_s[np.arange(len(costed.placement)), costed.placement]))


def _within_memory(problem: Problem, unit: IntArray, placements: IntArray, values: FloatArray) -> FloatArray:
    """[B] the same values, infinite where a device lacks memory; units in pieces are not judged."""
    if problem.costs is None or int(unit.max()) + 1 != problem.num_units:
        return values
    judge = MemoryCheck(problem.costs, problem.semantics)
    if not judge.has_limits:
        return values
    first = np.unique(problem.units.partition.labels, return_index=True)[1]
    return np.where([judge.fits(placement[first]) for placement in placements], values, np.inf)
