"""DiviML's formulation for OR-Tools CP-SAT, with optional intervals and conditional precedences.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.exact.assignment import DeviceChoiceModel
from hsdag.methods.exact.base import ExactPlacer, ExactSearch
from hsdag.methods.exact.formulation import Formulation, MemoryRule
from hsdag.methods.exact.solving import Ticks

MOST_OPS_WITH_LOADS = 150
"""Bound the start of every op by the load of its ancestors up to this many ops; these constraints are quadratic."""


class IntervalModel(DeviceChoiceModel[tuple[IntArray, FloatArray]]):
    """Model whose solutions are devices [N] and starts [N]; numbers of constraints are those of DiviML, IV-A.

    Every schedule of at most ``horizon_s`` seconds is a solution in ticks, so a bound of the model is one of the
    problem.
    """

    def __init__(self, formulation: Formulation, horizon_s: float, check: Callable[[], object] = lambda: None) -> None:
        super().__init__(formulation, check)
        self.ticks = Ticks.choose(formulation.durations_s, horizon_s)
        self._run = self.ticks.down(self._p.time_s)
        self._horizon = int(self.ticks.down(horizon_s)) + (0 if self.ticks.is_exact else 1)
        self._give_every_op_a_start()
        self._let_no_ops_overlap_on_a_device()
        self._wait_for_inputs()
        self._end_after_every_op()
        self._let_devices_carry_their_load()
        if formulation.memory is MemoryRule.PEAK:
            self._keep_peaks_within_memory()
        self.model.minimize(self.makespan)

    def _give_every_op_a_start(self) -> None:
        """Add a start variable, and an end, for every op."""
        heads, tails = self.ticks.down(self._f.heads_s), self.ticks.down(self._f.tails_s)
        self.start, self.end = list[cp_model.IntVar](), list[Any]()
        for i, on in enumerate(self.on):
            latest = max(self._horizon - int(tails[i]) - min((int(self._run[i, d]) for d in on), default=0), 0)
            self.start.append(self.model.new_int_var(min(int(heads[i]), latest), latest, f"s{i}"))
            taken = cp_model.LinearExpr.weighted_sum(list(on.values()), [int(self._run[i, d]) for d in on])
            self.end.append(self.start[i] + taken)

    def _let_no_ops_overlap_on_a_device(self) -> None:
        """Add (7) for ops that precedence does not order with all others; with overheads for all ops."""
        hold = self.ticks.down(self._p.time_s + self._p.op_overhead_s)
        free = np.flatnonzero(self._f.unordered.any(axis=1) | (self._p.op_overhead_s > 0)).tolist()
        for d in range(self._p.num_devices):
            intervals = [
                self.model.new_optional_fixed_size_interval_var(
                    self.start[i], int(hold[i, d]), self.on[i][d], f"i{i},{d}"
                )
                for i in free
                if d in self.on[i]
            ]
            self.model.add_no_overlap(intervals)

    def _wait_for_inputs(self) -> None:
        """Add (3): a result is sent once to each device, at the size of the largest edge that leads there."""
        for u, consumers in enumerate(self._f.consumers):
            self._check()
            for v, size in consumers.items():
                self.model.add(self.start[v] >= self.end[u])
                self._wait_for_transfer(u, v, size, ())
                for w, larger in consumers.items():
                    if larger > size:
                        self._wait_for_transfer(u, v, larger, (w,))

    def _wait_for_transfer(self, u: int, v: int, size: float, beside: tuple[int, ...]) -> None:
        """Let v wait for ``size`` bytes of u if they are on different devices and the ops ``beside`` are with v."""
        cost = self.ticks.down(self._f.transfer_s(size))
        for a, from_a in self.on[u].items():
            least = min((int(cost[a, b]) for b in self.on[v] if b != a), default=0)
            after = self.start[u] + int(self._run[u, a])
            if least and not beside:
                apart = [from_a] + ([self.on[v][a].negated()] if a in self.on[v] else [])
                self.model.add(self.start[v] >= after + least).only_enforce_if(apart)
            for b, at_b in self.on[v].items():
                if a == b or int(cost[a, b]) <= (0 if beside else least) or any(b not in self.on[w] for w in beside):
                    continue
                literals = [from_a, at_b, *(self.on[w][b] for w in beside)]
                self.model.add(self.start[v] >= after + int(cost[a, b])).only_enforce_if(literals)

    def _end_after_every_op(self) -> None:
        """Add (2)."""
        self.makespan = self.model.new_int_var(0, self._horizon, "C")
        for i, end in enumerate(self.end):
            if not self._f.consumers[i]:
                self.model.add(self.makespan >= end)

    def _let_devices_carry_their_load(self) -> None:
        """Add redundant constraints: the makespan is at least every load, and that of ops before and after every op."""
        devices = range(self._p.num_devices)
        for d in devices:
            self.model.add(self.makespan >= self._total(self._run[:, d], range(self._p.num_ops), d))
        reach = self._f.reach
        pivots = np.flatnonzero((reach | reach.T).sum(axis=1) == self._p.num_ops - 1)
        pivots = pivots[np.argsort(reach[:, pivots].sum(axis=0), kind="stable")].tolist()
        for p, q in itertools.pairwise(pivots):
            between = np.flatnonzero(reach[p] & reach[:, q]).tolist()
            for d in devices if len(between) > 1 else ():
                self.model.add(self.start[q] >= self.end[p] + self._total(self._run[:, d], between, d))
        for i in range(self._p.num_ops if 2 <= self._p.num_ops <= MOST_OPS_WITH_LOADS else 0):
            self._check()
            before, behind = np.flatnonzero(reach[:, i]).tolist(), np.flatnonzero(reach[i]).tolist()
            for d in devices:
                if len(before) > 1:
                    self.model.add(self.start[i] >= self._total(self._run[:, d], before, d))
                if len(behind) > 1:
                    self.model.add(self.makespan >= self.end[i] + self._total(self._run[:, d], behind, d))

    def _keep_peaks_within_memory(self) -> None:
        """Add the lifetime of every result as an interval, in addition to the weights."""
        for d, there, capacity in self._f.capacities(self.on):
            intervals, sizes = self._lives(d, capacity.unit_bytes)
            left = self.model.new_int_var(0, capacity.size, f"room{d}")
            self.model.add(left + self._total(capacity.resident, there, d) == capacity.size)
            self.model.add_cumulative(intervals, sizes, left)

    def _lives(self, d: int, unit: float) -> tuple[list[cp_model.IntervalVar], list[int]]:
        """Return intervals and sizes in units of results and copies on device d, from creation to the last use."""
        intervals, sizes = [], []
        for u, consumers in enumerate(self._f.consumers):
            self._check()
            if d in self.on[u] and (size := int(self._p.output_bytes[u] / unit)):
                intervals.append(self._life_at_home(u, d))
                sizes.append(size)
            for smallest in sorted(set(consumers.values())):
                # a copy has the size of its largest edge, so there is one layer for each size
                below = max((s for s in consumers.values() if s < smallest), default=0.0)
                layer = int(smallest / unit) - int(below / unit)
                readers = [v for v, size in consumers.items() if size >= smallest and d in self.on[v]]
                if layer and readers:
                    intervals.append(self._life_of_copy(u, d, readers))
                    sizes.append(layer)
        return intervals, sizes

    def _life_at_home(self, u: int, d: int) -> cp_model.IntervalVar:
        here = self.on[u][d]
        consumers = self._f.consumers[u]
        until = self.model.new_int_var(0, self._horizon + 1, f"h{u},{d}")
        length = self.model.new_int_var(0, self._horizon + 1, f"l{u},{d}")
        self.model.add(until >= self.end[u]).only_enforce_if(here)
        if not consumers:  # results without readers are kept
            self.model.add(until >= self.makespan).only_enforce_if(here)
        sent = self.ticks.down(self._f.transfer_s(min(consumers.values(), default=0.0)))
        for v in consumers:
            for b, at_b in self.on[v].items():
                last = self.end[v] if b == d else self.end[u] + int(sent[d, b])
                self.model.add(until >= last).only_enforce_if([here, at_b])
        return self.model.new_optional_interval_var(self.start[u], length, until, here, f"home{u},{d}")

    def _life_of_copy(self, u: int, d: int, readers: list[int]) -> cp_model.IntervalVar:
        """Return the lifetime of a copy of u, present if any of ``readers`` is on d and u is not.

        It arrives after the end of u.
        """
        there = self.model.new_bool_var(f"c{u},{d}")
        for v in readers:
            absent = [self.on[u][d]] if d in self.on[u] else []
            self.model.add_bool_or([there, self.on[v][d].negated(), *absent])
        begin, until, length = (self.model.new_int_var(0, self._horizon + 1, f"{k}{u},{d}") for k in ("f", "t", "m"))
        self.model.add(begin >= self.end[u])
        self.model.add(begin <= self.end[u] + (0 if self.ticks.is_exact else 1))
        for v in readers:
            self.model.add(until >= self.end[v]).only_enforce_if([there, self.on[v][d]])
        return self.model.new_optional_interval_var(begin, length, until, there, f"copy{u},{d}")

    def hint(self, device: IntArray, start_s: FloatArray) -> None:
        """Begin with devices [N] and starts [N]."""
        for i, start in enumerate(self.ticks.down(start_s).tolist()):
            self.model.add_hint(self.start[i], start)
        self.hint_devices(device)

    def read(self, value: Callable[[cp_model.IntVar], int]) -> tuple[IntArray, FloatArray]:
        """Return devices [N] and starts [N] in seconds."""
        return self.devices(value), self.ticks.seconds([value(start) for start in self.start])


class CpSatPlacer(ExactPlacer):
    """The whole problem as one program, with optional intervals for latency; the default exact method."""

    name = "cpsat"
    argument = "CP-SAT"
    knows_peaks = True

    def _latency(self, search: ExactSearch) -> None:
        model = IntervalModel(search.formulation, search.horizon_s, check=search.left_s)
        if search.incumbent.best is not None:
            model.hint(search.incumbent.best.placement, search.starts_s(search.incumbent.best))
        search.solve(model, model.ticks, lambda schedule: search.consider(*schedule))
