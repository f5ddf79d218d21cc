"""DiviML's formulation with batches as a CP-SAT model: an optional interval for each op, device and batch size.

Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.exact.batches import BatchedProblem, BatchSchedule
from hsdag.placers.exact.formulation import Formulation, MemoryRule
from hsdag.placers.exact.ticks import Ticks

Literals = dict[int, list[cp_model.IntVar]]
"""[G] literals by device."""


class BatchedIntervals:
    """The model of one batched problem; constraint numbers are those of DiviML, section IV-A.

    Every schedule of at most ``horizon_s`` seconds is a solution in ticks, so that the bound of the model is one of
    the problem. Batches that are longer, or fit into no memory, do not come into it; an op without any other makes the
    model infeasible. ``wake`` is asked while it is built, and may raise.
    """

    def __init__(
        self,
        problem: BatchedProblem,
        ticks: Ticks,
        horizon_s: float,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._p, self.ticks, self._wake = problem.costs, ticks, wake
        self._problem = problem.within(horizon_s * (1 + 1e-9))
        self._horizon = int(ticks.down(horizon_s)) + (0 if ticks.is_exact else 1)
        self._run = ticks.down(problem.group_time_s)  # [N, D, G + 1]
        self._overhead = int(ticks.down(self._p.op_overhead_s))
        self._groups = range(problem.num_groups)
        self.model = cp_model.CpModel()
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
            self.start.append({d: self.model.new_int_var(0, self._horizon, f"s{i},{d}") for d in on})
            self.end.append({d: self.start[i][d] + self._taken(i, d) for d in on})

    def _sizes(self, i: int, d: int, there: list[cp_model.IntVar]) -> dict[int, cp_model.IntVar]:
        allowed = [n for n in range(1, len(there) + 1) if np.isfinite(self._problem.group_time_s[i, d, n])]
        of = {n: self.model.new_bool_var(f"b{i},{d},{n}") for n in allowed}
        self.model.add_at_most_one(list(of.values()))
        self.model.add(sum(n * b for n, b in of.items()) == sum(there))
        return of

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
                    self._wait(self.end[u][a], self.start[v][b], (made, read), int(fixed[a, b]), int(each[a, b]))

    def _wait(
        self, end: Any, start: cp_model.IntVar, on: tuple[list[cp_model.IntVar], ...], fixed: int, each: int
    ) -> None:
        """``start`` waits for ``end`` and what is sent of the groups that are ``on`` both sides, if any."""
        if not each or len(self._groups) == 1:
            for both in zip(*on, strict=True):
                self.model.add(start >= end + fixed + each).only_enforce_if(both)
            return
        shared = [self.model.new_bool_var("") for _ in self._groups]
        sent = cp_model.LinearExpr.weighted_sum(shared, [each] * len(shared))
        for y, made, read in zip(shared, *on, strict=True):
            # y may also hold where the group is not on both sides, which only asks for more
            self.model.add_bool_or([y, made.negated(), read.negated()])
            self.model.add(start >= end + fixed + sent).only_enforce_if(y)

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
        first = self.on[int(self._p.topological_order[0])]
        homes = [sum(d * there[g] for d, there in first.items()) for g in self._groups]
        for one, other in itertools.pairwise(homes):
            self.model.add(one <= other)
        times = self._problem.group_time_s
        for a, b in Formulation(self._p).twins:
            if np.array_equal(times[:, a], times[:, b], equal_nan=True):
                tasks = [sum(x for on in self.on for x in on.get(d, ())) for d in (a, b)]
                self.model.add(tasks[0] >= tasks[1])

    def hint(self, schedule: BatchSchedule) -> None:
        """Begin with a schedule, its groups in the order that is asked for."""
        order = np.argsort(schedule.device[int(self._p.topological_order[0])], kind="stable")
        for i, on in enumerate(self.on):
            row = schedule.device[i, order]
            for d, there in on.items():
                for g, x in enumerate(there):
                    self.model.add_hint(x, bool(row[g] == d))
                for n, b in self.size[i][d].items():
                    self.model.add_hint(b, bool((row == d).sum() == n))
                if np.isfinite(schedule.start_s[i, d]):
                    self.model.add_hint(self.start[i][d], int(self.ticks.down(schedule.start_s[i, d])))

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
