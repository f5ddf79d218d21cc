"""DiviML's formulation with batches as a CP-SAT model: an optional interval for each op, device and batch size.

Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from hsdag.ir.graph import BoolArray, FloatArray, IntArray
from hsdag.placers.exact.batches import BatchedProblem, BatchSchedule
from hsdag.placers.exact.formulation import Formulation, MemoryRule, Symmetry
from hsdag.placers.exact.ticks import Ticks

Literals = dict[int, list[cp_model.IntVar]]
"""[G] literals by device."""


@dataclass(frozen=True, eq=False)
class Standing:
    """What of a schedule is given: where ops are, and when they begin."""

    schedule: BatchSchedule
    is_free: BoolArray  # [N] ops that are placed again


class BatchedIntervals:
    """The model of one batched problem; constraint numbers are those of DiviML, section IV-A.

    Every schedule of at most ``horizon_s`` seconds is a solution in ticks, so that the bound of the model is one of
    the problem, but for what ``standing`` fixes. Batches that are longer, or fit into no memory, do not come into it;
    an op without any other makes the model infeasible. ``wake`` is asked while it is built, and may raise.
    """

    def __init__(
        self,
        problem: BatchedProblem,
        ticks: Ticks,
        horizon_s: float,
        standing: Standing | None = None,
        symmetry: Symmetry = Symmetry.TASKS,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._p, self.ticks, self._wake = problem.costs, ticks, wake
        self._problem = problem.within(horizon_s * (1 + 1e-9))
        self._standing, self._symmetry = standing, Symmetry.NONE if standing is not None else symmetry
        self._horizon = int(ticks.down(horizon_s)) + (0 if ticks.is_exact else 1)
        self._run = ticks.down(problem.group_time_s)  # [N, D, G + 1]
        self._overhead = int(ticks.down(self._p.op_overhead_s))
        self._groups = range(problem.num_groups)
        self.model = cp_model.CpModel()
        self._true = self.model.new_constant(1)
        self._false = self.model.new_constant(0)
        self._is_free = np.ones(self._p.num_ops, dtype=np.bool_) if standing is None else standing.is_free
        self._place_every_group_once()
        self._make_batches_of_allowed_sizes()
        self._let_no_batches_overlap_on_a_device()
        self._wait_for_inputs()
        self._end_after_every_batch()
        self._keep_within_memory()
        self._order_what_is_alike()
        self.model.minimize(self.makespan)

    def _place_every_group_once(self) -> None:
        """(1)."""
        can = np.asarray(np.isfinite(self._problem.group_time_s[:, :, 1:]).any(axis=2))
        self.on: list[Literals] = []
        for i in range(self._p.num_ops):
            if self._standing is not None and not self._is_free[i]:
                row = self._standing.schedule.device[i].tolist()
                self.on.append({d: [self._true if e == d else self._false for e in row] for d in sorted(set(row))})
                continue
            devices = np.flatnonzero(can[i]).tolist()
            self.on.append({d: [self.model.new_bool_var(f"x{i},{d},{g}") for g in self._groups] for d in devices})
            for g in self._groups:
                self.model.add_exactly_one([self.on[i][d][g] for d in devices])

    def _make_batches_of_allowed_sizes(self) -> None:
        """(4) and (5): at most one batch of an op on each device, of a size that is allowed."""
        self.size: list[dict[int, dict[int, cp_model.IntVar]]] = []
        self.start: list[dict[int, cp_model.IntVar]] = []
        self.end: list[dict[int, Any]] = []
        for i, on in enumerate(self.on):
            self._wake()
            self.size.append({d: self._sizes(i, d, there) for d, there in on.items()})
            self.start.append({d: self._start(i, d) for d in on})
            self.end.append({d: self.start[i][d] + self._taken(i, d) for d in on})

    def _sizes(self, i: int, d: int, there: list[cp_model.IntVar]) -> dict[int, cp_model.IntVar]:
        if not self._is_free[i]:
            return {sum(x is self._true for x in there): self._true}
        allowed = [n for n in range(1, len(there) + 1) if np.isfinite(self._problem.group_time_s[i, d, n])]
        of = {n: self.model.new_bool_var(f"b{i},{d},{n}") for n in allowed}
        self.model.add_at_most_one(list(of.values()))
        self.model.add(sum(n * b for n, b in of.items()) == sum(there))
        return of

    def _start(self, i: int, d: int) -> cp_model.IntVar:
        if self._standing is not None and not self._is_free[i]:
            return self.model.new_constant(int(self.ticks.down(self._standing.schedule.start_s[i, d])))
        return self.model.new_int_var(0, self._horizon, f"s{i},{d}")

    def _taken(self, i: int, d: int) -> Any:  # an expression of OR-Tools, which types it too widely
        of = self.size[i][d]
        return cp_model.LinearExpr.weighted_sum(list(of.values()), [int(self._run[i, d, n]) for n in of])

    def _let_no_batches_overlap_on_a_device(self) -> None:
        """(7)."""
        for d in range(self._p.num_devices):
            intervals = [
                self.model.new_optional_fixed_size_interval_var(
                    self.start[i][d], int(self._run[i, d, n]) + self._overhead, b, f"i{i},{d},{n}"
                )
                for i in range(self._p.num_ops)
                for n, b in self.size[i].get(d, {}).items()
            ]
            self.model.add_no_overlap(intervals)

    def _wait_for_inputs(self) -> None:
        """(3), for batches that share a group: what they share is sent at once."""
        p, fixed = self._p, self.ticks.down(self._problem.latency_s)
        for k, (u, v) in enumerate(zip(p.edge_src.tolist(), p.edge_dst.tolist(), strict=True)):
            each = self.ticks.down(self._problem.group_edge_bytes[k] * self._problem.s_per_byte)
            for a, made in self.on[u].items():
                self._wake()
                for b, read in self.on[v].items():
                    both = self._both(made, read)
                    self._wait(self.end[u][a], self.start[v][b], both, int(fixed[a, b]), int(each[a, b]))

    def _both(self, made: list[cp_model.IntVar], read: list[cp_model.IntVar]) -> list[list[cp_model.IntVar]]:
        """For each group that two batches can share, the literals that say it is in both."""
        found = []
        for x, y in zip(made, read, strict=True):
            if x is not self._false and y is not self._false:
                found.append([z for z in (x, y) if z is not self._true])
        return found

    def _wait(self, end: Any, start: cp_model.IntVar, both: list[list[cp_model.IntVar]], fixed: int, each: int) -> None:
        if not both:
            return
        if not each or len(self._groups) == 1:
            for literals in both:
                self.model.add(start >= end + fixed + each).only_enforce_if(literals)
            return
        shared = [self._conjunction(literals) for literals in both]
        sent = cp_model.LinearExpr.weighted_sum(shared, [each] * len(shared))
        for y in shared:
            self.model.add(start >= end + fixed + sent).only_enforce_if(y)

    def _conjunction(self, literals: list[cp_model.IntVar]) -> cp_model.IntVar:
        """A literal that holds where all do; it may also hold where they do not, which only asks for more."""
        if len(literals) < 2:
            return literals[0] if literals else self._true
        y = self.model.new_bool_var("")
        self.model.add_bool_or([y, *(x.negated() for x in literals)])
        return y

    def _end_after_every_batch(self) -> None:
        """(2); and redundant, the load of each device."""
        self.makespan = self.model.new_int_var(0, self._horizon, "C")
        for ends in self.end:
            for end in ends.values():
                self.model.add(self.makespan >= end)  # where there is no batch, its start is free to be 0
        for d in range(self._p.num_devices):
            load = sum(self._taken(i, d) for i in range(self._p.num_ops) if d in self.on[i])
            self.model.add(self.makespan >= load)

    def _keep_within_memory(self) -> None:
        """(6), on devices that all ops together do not fit on."""
        f, batches = Formulation(self._p, MemoryRule.RESERVED), self._problem.batches
        for d in range(self._p.num_devices):
            there = [i for i in range(self._p.num_ops) if d in self.on[i]]
            room = f.room(d, there, batches.num_inputs)
            if room is None:
                continue
            used: list[Any] = [0]
            for i in there:
                used += [int(room.weights[i]) * b for b in self.size[i][d].values()]
                used += [int(room.results[i]) * batches.group * x for x in self.on[i][d]]
            self.model.add(sum(used) <= room.size)

    def _order_what_is_alike(self) -> None:
        """Groups are equal, so those of the first op go by device; identical devices go by tasks (section VI)."""
        if self._symmetry is Symmetry.NONE:
            return
        first = self.on[int(self._p.topological_order[0])]
        homes = [sum(d * there[g] for d, there in first.items()) for g in self._groups]
        for one, other in itertools.pairwise(homes):
            self.model.add(one <= other)
        for a, b in self._twins():
            self.model.add(sum(self._weight(i, a) for i in range(self._p.num_ops))
                           >= sum(self._weight(i, b) for i in range(self._p.num_ops)))  # fmt: skip

    def _twins(self) -> list[tuple[int, int]]:
        """Identical devices, in batches of all sizes too."""
        times = self._problem.group_time_s
        return [
            (a, b) for a, b in Formulation(self._p).twins if np.array_equal(times[:, a], times[:, b], equal_nan=True)
        ]

    def _weight(self, i: int, d: int) -> Any:
        if self._symmetry is Symmetry.BUSY:
            return self._taken(i, d)
        return sum(self.size[i][d].values() if self._symmetry is Symmetry.BATCHES else self.on[i][d])

    def hint(self, schedule: BatchSchedule) -> None:
        """Begin with a schedule, its groups in the order that the symmetry rule asks for."""
        order = np.arange(len(self._groups))
        if self._symmetry is not Symmetry.NONE:
            order = np.argsort(schedule.device[int(self._p.topological_order[0])], kind="stable")
        for i in np.flatnonzero(self._is_free).tolist():
            row = schedule.device[i, order]
            for d, there in self.on[i].items():
                for g, x in enumerate(there):
                    self.model.add_hint(x, bool(row[g] == d))
                for n, b in self.size[i][d].items():
                    self.model.add_hint(b, bool((row == d).sum() == n))
        for i, starts in enumerate(self.start):
            for d, start in starts.items():
                if np.isfinite(schedule.start_s[i, d]):
                    self.model.add_hint(start, int(self.ticks.down(schedule.start_s[i, d])))

    def read(self, value: Callable[[cp_model.IntVar], int]) -> tuple[IntArray, FloatArray]:
        """Devices [N, G] and starts [N, D] in ticks, NaN where there is no batch."""
        device = np.empty((self._p.num_ops, len(self._groups)), dtype=np.int64)
        start = np.full((self._p.num_ops, self._p.num_devices), np.nan)
        for i, on in enumerate(self.on):
            for g in self._groups:
                device[i, g] = next(d for d, there in on.items() if value(there[g]))
            for d in set(device[i].tolist()):
                start[i, d] = value(self.start[i][d])
        return device, start


def ticks_of(problem: BatchedProblem, horizon_s: float) -> Ticks:
    """Ticks for the durations of a batched problem in a horizon."""
    each = [size * problem.s_per_byte for size in np.unique(problem.group_edge_bytes).tolist()]
    durations = [problem.group_time_s, [problem.costs.op_overhead_s], problem.latency_s, *each]
    return Ticks.choose(durations, horizon_s)


def num_waits(problem: BatchedProblem) -> int:
    """How many constraints the waiting for inputs comes to, at most."""
    return len(problem.costs.edge_src) * problem.costs.num_devices**2 * problem.num_groups
