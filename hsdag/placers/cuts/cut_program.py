"""The cut of any number of devices as an integer program, for small problems: a check and a proof.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.cuts.boundary_costs import BoundaryCosts

MAX_TICKS = 2.0**40
"""Ticks that all costs together have at most."""

WORK_LIMIT = 2.0
"""Deterministic seconds of the solver: its answer does not depend on how busy the machine is."""


@dataclass(frozen=True, eq=False)
class ProvenPlacement:
    """A placement [N] and seconds that none beats; the same as its cost, but for rounding, where optimal."""

    placement: IntArray
    bound_s: float
    is_optimal: bool


def solved_program(
    costs: BoundaryCosts,
    hint: IntArray,
    held_bytes: FloatArray | None = None,
    memory_bytes: FloatArray | None = None,
) -> ProvenPlacement | None:
    """The cheapest placement [N] with at most ``memory_bytes`` [D] of ``held_bytes`` [N] on a device.

    Starts from ``hint`` [N]; None where nothing was found within ``WORK_LIMIT``. Costs are rounded down to ticks, and
    so is the bound.
    """
    program = _Program(costs, hint)
    if held_bytes is not None and memory_bytes is not None:
        program.limit(held_bytes, memory_bytes)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = WORK_LIMIT
    status = solver.solve(program.model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    placement = [next(d for d, x in row.items() if solver.boolean_value(x)) for row in program.on]
    bound_s = costs.constant_s + solver.best_objective_bound * program.tick_s
    return ProvenPlacement(np.asarray(placement, dtype=np.int64), bound_s, status == cp_model.OPTIMAL)


class _Program:
    """``on[v][d]``: op v runs on device d. A transfer, or a change of device, is paid for when its ends say so."""

    def __init__(self, costs: BoundaryCosts, hint: IntArray) -> None:
        self.model = cp_model.CpModel()
        self._costs = costs
        finite_s = float(costs.time_s[np.isfinite(costs.time_s)].sum())
        sizes = np.diff(costs.first) * costs.latency_s.sum()
        sent_s = float(sizes.sum()) + float(costs.size_bytes.sum()) * float(costs.s_per_byte.sum())
        changes_s = float(costs.change_s.sum()) * costs.num_ops
        self.tick_s = max(finite_s + sent_s + changes_s, 1e-300) / MAX_TICKS
        self.on = [self._choice(v, hint) for v in range(costs.num_ops)]
        work = [(x, costs.time_s[v, d]) for v, row in enumerate(self.on) for d, x in row.items()]
        sent = [pair for q in range(len(costs.source)) for pair in self._sent(q)]
        pairs = [(x, self._ticks(s)) for x, s in work + sent + list(self._changes())]
        self.model.minimize(cp_model.LinearExpr.weighted_sum([x for x, _ in pairs], [t for _, t in pairs]))

    def limit(self, held_bytes: FloatArray, memory_bytes: FloatArray) -> None:
        """No device holds more than its memory; sizes are rounded up to a millionth of the largest memory."""
        unit = max(float(memory_bytes[np.isfinite(memory_bytes)].max(initial=0.0)) / 1e6, 1.0)
        for d in np.flatnonzero(np.isfinite(memory_bytes)).tolist():
            held = [(row[d], int(np.ceil(held_bytes[v] / unit))) for v, row in enumerate(self.on) if d in row]
            room = int(memory_bytes[d] // unit)
            self.model.add(cp_model.LinearExpr.weighted_sum([x for x, _ in held], [b for _, b in held]) <= room)

    def _choice(self, v: int, hint: IntArray) -> dict[int, cp_model.IntVar]:
        able = np.flatnonzero(np.isfinite(self._costs.time_s[v])).tolist()
        row = {d: self.model.new_bool_var("") for d in able}
        self.model.add_exactly_one(row.values())
        for d, x in row.items():
            self.model.add_hint(x, bool(hint[v] == d))
        return row

    def _sent(self, q: int) -> list[tuple[cp_model.IntVar, float]]:
        """What result q may cost: for each home, destination and size, above what the next smaller costs."""
        costs, paid = self._costs, []
        members = range(costs.first[q], costs.first[q + 1])
        sizes = np.unique(costs.size_bytes[costs.first[q] : costs.first[q + 1]]).tolist()
        for home, stays in self.on[costs.source[q]].items():
            for away in range(costs.num_devices):
                below_s = 0.0
                for size in sizes if away != home else []:
                    cost_s = float(costs.latency_s[home, away] + size * costs.s_per_byte[home, away])
                    goes = self.model.new_bool_var("")
                    for k in members:
                        there = self.on[costs.reader[k]].get(away)
                        if costs.size_bytes[k] >= size and there is not None:
                            self.model.add_bool_or([stays.negated(), there.negated(), goes])
                    paid.append((goes, cost_s - below_s))
                    below_s = cost_s
        return paid

    def _changes(self) -> Iterator[tuple[cp_model.IntVar, float]]:
        """What it costs that an op runs on another device than the one before it."""
        for before, v in itertools.pairwise(self._costs.order.tolist()):
            for d, here in self.on[v].items():
                if self._costs.change_s[d] > 0:
                    changes = self.model.new_bool_var("")
                    stays = [self.on[before][d]] if d in self.on[before] else []
                    self.model.add_bool_or([here.negated(), *stays, changes])
                    yield changes, float(self._costs.change_s[d])

    def _ticks(self, seconds: float) -> int:
        return int(np.floor(seconds / self.tick_s))
