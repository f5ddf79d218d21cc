"""DiviML's whole formulation for batches as a CP-SAT model. Legend: N ops, D devices, G groups of inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from hsdag.methods.batched.problem import BatchedProblem, BatchSchedule
from hsdag.methods.exact.formulation import MOST_HELD
from hsdag.methods.exact.solving import CpSatModel, Ticks
from hsdag.scoring.memory import MEMORY_TOLERANCE


class BatchModel(CpSatModel[BatchSchedule]):
    """The model of a batched problem; constraint numbers are those of DiviML, section IV-A.

    Every schedule of at most ``horizon_s`` seconds is a solution in ticks. ``check`` is called for every op while the
    model is made, and what it raises goes on to the caller.
    """

    def __init__(self, problem: BatchedProblem, horizon_s: float, check: Callable[[], object] = lambda: None) -> None:
        self._problem, self._p, p = problem, problem.costs, problem.costs
        time_s = problem.within(horizon_s * (1 + 1e-9)).group_time_s
        transfers = [size * problem.s_per_byte for size in np.unique(problem.group_edge_bytes).tolist()]
        durations = [time_s, [p.op_overhead_s], problem.latency_s, *transfers]
        self.ticks = Ticks.choose(durations, max(horizon_s, 1e-12))
        self._run, self._groups, self._devices = (
            self.ticks.down(time_s),
            range(problem.num_groups),
            range(p.num_devices),
        )
        self._horizon = int(self.ticks.down(horizon_s)) + (0 if self.ticks.is_exact else 1)
        self.model = cp_model.CpModel()
        self._divide_every_op(time_s)
        self._let_no_batches_overlap(self.ticks.down(time_s + p.op_overhead_s))
        for k in range(len(p.edge_src)):
            check()
            self._wait_for_input(k)
        self._end_after_every_batch()
        self._keep_within_memory()
        first = self._on[int(p.topological_order[0])]
        for g, h in itertools.pairwise(self._groups):  # groups are equal: those of the first op go by device
            self.model.add(sum(d * (there[g] - there[h]) for d, there in first.items()) <= 0)
        self.model.minimize(self._makespan)

    def _divide_every_op(self, time_s: np.ndarray) -> None:
        """(1), (4), (5): groups are on one device each, in at most one batch there, of a size that is allowed."""
        self._on: list[dict[int, list[cp_model.IntVar]]] = []
        self._size: list[dict[int, dict[int, cp_model.IntVar]]] = []
        for able in np.isfinite(time_s):  # [D, G + 1]
            on = {d: [self.model.new_bool_var("") for _ in self._groups] for d in self._devices if able[d, 1:].any()}
            for g in self._groups:
                self.model.add_exactly_one([there[g] for there in on.values()])
            sizes = {d: {n: self.model.new_bool_var("") for n in np.flatnonzero(able[d])[1:].tolist()} for d in on}
            for d, there in on.items():
                self.model.add_at_most_one(list(sizes[d].values()))
                self.model.add(sum(n * b for n, b in sizes[d].items()) == sum(there))
            self._on.append(on)
            self._size.append(sizes)
        self._start = [{d: self.model.new_int_var(0, self._horizon, "") for d in on} for on in self._on]
        self._end = [{d: s + self._load([i], d) for d, s in of.items()} for i, of in enumerate(self._start)]

    def _load(self, ops: Iterable[int], d: int) -> Any:  # an expression of OR-Tools, typed too widely
        """Ticks of all batches of ops on a device."""
        there = [(b, int(self._run[i, d, n])) for i in ops for n, b in self._size[i].get(d, {}).items()]
        return cp_model.LinearExpr.weighted_sum([b for b, _ in there], [ticks for _, ticks in there])

    def _let_no_batches_overlap(self, hold: np.ndarray) -> None:
        """(7)."""
        for d in self._devices:
            intervals = [
                self.model.new_optional_fixed_size_interval_var(self._start[i][d], int(hold[i, d, n]), b, "")
                for i, sizes in enumerate(self._size)
                for n, b in sizes.get(d, {}).items()
            ]
            self.model.add_no_overlap(intervals)

    def _wait_for_input(self, k: int) -> None:
        """(3): batches await those that they share groups with; what they share is sent at once."""
        u, v, problem = int(self._p.edge_src[k]), int(self._p.edge_dst[k]), self._problem
        fixed = self.ticks.down(problem.latency_s)
        each = self.ticks.down(problem.group_edge_bytes[k] * problem.s_per_byte)
        for (a, made), (b, read) in itertools.product(self._on[u].items(), self._on[v].items()):
            begin, after = self._start[v][b], self._end[u][a] + int(fixed[a, b])
            shared = [self.model.new_bool_var("") for _ in made]
            sent = cp_model.LinearExpr.weighted_sum(shared, [int(each[a, b])] * len(shared))
            for y, x, z in zip(shared, made, read, strict=True):
                # y may also hold where the group is not in both, which only asks for more
                self.model.add_bool_or([y, x.negated(), z.negated()])
                self.model.add(begin >= after + sent).only_enforce_if(y)

    def _end_after_every_batch(self) -> None:
        """(2), and redundant, the load of each device. Where there is no batch, its start is free to be 0."""
        self._makespan = self.model.new_int_var(0, self._horizon, "C")
        for end in (end for ends in self._end for end in ends.values()):
            self.model.add(self._makespan >= end)
        for d in self._devices:
            self.model.add(self._makespan >= self._load(range(self._p.num_ops), d))

    def _keep_within_memory(self) -> None:
        """(6), in units of bytes that fit 64 bits."""
        weights, held = self._p.weight_bytes, self._problem.held_bytes
        most_bytes = float((weights + len(self._groups) * held).sum())
        unit = float(2.0 ** max(np.ceil(np.log2(max(most_bytes, 1.0) / MOST_HELD)), 0.0))
        for d in self._devices:
            room_bytes = float(self._p.memory_bytes[d]) * (1 + MEMORY_TOLERANCE)
            if most_bytes <= room_bytes:
                continue
            terms = [(b, weights[i]) for i, of in enumerate(self._size) for b in of.get(d, {}).values()]
            terms += [(x, held[i]) for i, on in enumerate(self._on) for x in on.get(d, ())]
            taken = cp_model.LinearExpr.weighted_sum([x for x, _ in terms], [int(size / unit) for _, size in terms])
            self.model.add(taken <= int(room_bytes / unit))

    def hint(self, schedule: BatchSchedule) -> None:
        """Begin with a schedule, its groups in the order that is asked for."""
        order = np.argsort(schedule.device[int(self._p.topological_order[0])], kind="stable")
        starts = self.ticks.down(schedule.start_s)
        for i, on in enumerate(self._on):
            for d, there in on.items():
                for x, home in zip(there, schedule.device[i, order].tolist(), strict=True):
                    self.model.add_hint(x, home == d)
                self.model.add_hint(self._start[i][d], int(starts[i, d]))

    def read(self, value: Callable[[cp_model.IntVar], int]) -> BatchSchedule:
        """The schedule that the values of the variables describe."""
        device = [[next(d for d, there in on.items() if value(there[g])) for g in self._groups] for on in self._on]
        start = np.full(self._p.time_s.shape, np.nan)
        for i, row in enumerate(device):
            for d in set(row):
                start[i, d] = value(self._start[i][d])
        return BatchSchedule(np.array(device, dtype=np.int64), self.ticks.seconds(start))
