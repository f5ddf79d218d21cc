"""DiviML's formulation for latency as a CP-SAT model: optional intervals on devices, and conditional precedences.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.exact.formulation import Formulation, MemoryRule
from hsdag.placers.exact.ticks import Ticks

MOST_OPS_WITH_LOADS = 150
"""Ops up to which every op also waits for the load of its ancestors: those constraints are quadratic in number."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What a part of a problem sees of the rest of it; a part that is all sees nothing."""

    arrival_s: FloatArray  # [N, D] when the inputs from outside are on a device
    device_free_s: FloatArray  # [D]
    tail_s: FloatArray  # [N, D] what follows the end of an op on a device
    device_tail_s: FloatArray  # [D] what follows the last op of a device
    pinned: Mapping[int, int] = field(default_factory=dict)  # device by op

    @staticmethod
    def nothing(num_ops: int, num_devices: int, pinned: Mapping[int, int] | None = None) -> Surroundings:
        """No rest, but perhaps ops whose device is given."""
        table, row = np.zeros((num_ops, num_devices)), np.zeros(num_devices)
        return Surroundings(table, row, table, row, pinned or {})


class LatencyModel:
    """The model of one problem; constraint numbers are those of DiviML, section IV-A, for a single input.

    Every schedule of at most ``horizon_s`` seconds is a solution in ticks, so that the bound of the model is one of
    the problem. Loads are redundant: a model without them is sooner made, and its bound rises later. Raises ValueError
    when an op has no device left. While the model is made, ``check`` is called for every op, and what it raises goes on
    to the caller.
    """

    def __init__(
        self,
        formulation: Formulation,
        ticks: Ticks,
        horizon_s: float,
        around: Surroundings | None = None,
        *,
        with_loads: bool = True,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        p = formulation.problem
        self._f, self._p, self.ticks, self._check = formulation, p, ticks, check
        self._around = around or Surroundings.nothing(p.num_ops, p.num_devices)
        self._is_alone = around is None
        self._run = ticks.down(p.time_s)  # [N, D]
        self._hold = ticks.down(p.time_s + p.op_overhead_s)  # how long the device is taken
        self._horizon = int(ticks.down(horizon_s)) + (0 if ticks.is_exact else 1)
        self.model = cp_model.CpModel()
        self._place_each_op_once()
        self._give_every_op_a_start()
        self._let_no_ops_overlap_on_a_device()
        self._wait_for_inputs()
        self._end_after_every_op()
        if with_loads:
            self._let_devices_carry_their_load()
        self._keep_within_memory()
        self._order_identical_devices()
        self.model.minimize(self.makespan)

    def _place_each_op_once(self) -> None:
        """(1), over the devices that run an op and could hold it."""
        allowed = self._f.allowed.copy()
        for i, d in self._around.pinned.items():
            allowed[i, np.arange(self._p.num_devices) != d] = False
        self._devices = [np.flatnonzero(row).tolist() for row in allowed]
        for i, devices in enumerate(self._devices):
            if not devices:
                raise ValueError(f"op {self._p.op_names[i]!r} fits on no device")
        self.on = [{d: self.model.new_bool_var(f"x{i},{d}") for d in ds} for i, ds in enumerate(self._devices)]
        for choices in self.on:
            self.model.add_exactly_one(list(choices.values()))

    def _give_every_op_a_start(self) -> None:
        heads, tails = self.ticks.down(self._f.heads_s), self.ticks.down(self._f.tails_s)
        best = np.array([min(int(self._run[i, d]) for d in ds) for i, ds in enumerate(self._devices)])
        latest = self._horizon - tails - best
        self.start = [
            self.model.new_int_var(min(int(heads[i]), max(int(latest[i]), 0)), max(int(latest[i]), 0), f"s{i}")
            for i in range(self._p.num_ops)
        ]
        self.end = [
            start + cp_model.LinearExpr.weighted_sum(list(on.values()), [int(self._run[i, d]) for d in on])
            for i, (start, on) in enumerate(zip(self.start, self.on, strict=True))
        ]
        arrival, free = self.ticks.down(self._around.arrival_s), self.ticks.down(self._around.device_free_s)
        for i, on in enumerate(self.on):
            for d, here in on.items():
                if earliest := max(int(arrival[i, d]), int(free[d])):
                    self.model.add(self.start[i] >= earliest).only_enforce_if(here)

    def _let_no_ops_overlap_on_a_device(self) -> None:
        """(7), for ops that are not ordered by precedence with all others; with overheads for all."""
        reach = self._f.reach
        ordered = reach | reach.T | np.eye(self._p.num_ops, dtype=np.bool_)
        free = ~ordered.all(axis=1) | (self._p.op_overhead_s > 0)
        for d in range(self._p.num_devices):
            intervals = [
                self.model.new_optional_fixed_size_interval_var(
                    self.start[i], int(self._hold[i, d]), self.on[i][d], f"i{i},{d}"
                )
                for i in np.flatnonzero(free).tolist()
                if d in self.on[i]
            ]
            self.model.add_no_overlap(intervals)

    def _wait_for_inputs(self) -> None:
        """(3): a result is sent once to each device, at the size of the largest edge that leads there."""
        for u, consumers in enumerate(self._f.consumers):
            self._check()
            for v, size in consumers.items():
                self.model.add(self.start[v] >= self.end[u])
                self._wait_for_transfer(u, v, size, ())
                for w, larger in consumers.items():
                    if larger > size:
                        self._wait_for_transfer(u, v, larger, (w,))

    def _wait_for_transfer(self, u: int, v: int, size: float, beside: tuple[int, ...]) -> None:
        """v awaits ``size`` bytes of u where they are apart and the ops ``beside`` are where v is."""
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
        """(2), and what the surroundings ask for after that."""
        self.makespan = self.model.new_int_var(0, self._horizon, "C")
        tail, device_tail = self.ticks.down(self._around.tail_s), self.ticks.down(self._around.device_tail_s)
        for i, on in enumerate(self.on):
            if not self._f.consumers[i] or not self._is_alone:
                self.model.add(self.makespan >= self.end[i])
            for d, here in on.items():
                if behind := max(int(tail[i, d]), int(device_tail[d])):
                    self.model.add(self.makespan >= self.end[i] + behind).only_enforce_if(here)

    def _let_devices_carry_their_load(self) -> None:
        """Redundant: the makespan holds a device's load, and so does what lies before and behind every op."""
        ops = list(range(self._p.num_ops))
        for d in range(self._p.num_devices):
            self.model.add(self.makespan >= self._load(ops, d))
        reach = self._f.reach
        pivots = np.flatnonzero((reach | reach.T).sum(axis=1) == len(ops) - 1)
        pivots = pivots[np.argsort(reach[:, pivots].sum(axis=0), kind="stable")].tolist()
        for p, q in itertools.pairwise(pivots):
            between = np.flatnonzero(reach[p] & reach[:, q]).tolist()
            for d in range(self._p.num_devices):
                if len(between) > 1:
                    self.model.add(self.start[q] >= self.end[p] + self._load(between, d))
        if not 2 <= len(ops) <= MOST_OPS_WITH_LOADS:
            return
        for i in ops:
            self._check()
            before, behind = np.flatnonzero(reach[:, i]).tolist(), np.flatnonzero(reach[i]).tolist()
            for d in range(self._p.num_devices):
                if len(before) > 1:
                    self.model.add(self.start[i] >= self._load(before, d))
                if len(behind) > 1:
                    self.model.add(self.makespan >= self.end[i] + self._load(behind, d))

    def _load(self, ops: list[int], d: int) -> Any:  # an expression of OR-Tools, which types it too widely
        there = [i for i in ops if d in self.on[i]]
        return cp_model.LinearExpr.weighted_sum([self.on[i][d] for i in there], [int(self._run[i, d]) for i in there])

    def _keep_within_memory(self) -> None:
        """(6) under the memory rule, where it can bind; under PEAK with every result's life as an interval."""
        for d in range(self._p.num_devices):
            there = [i for i, on in enumerate(self.on) if d in on]
            room = self._f.room(d, there)
            if room is None:
                continue
            held = cp_model.LinearExpr.weighted_sum([self.on[i][d] for i in there], room.held[there].tolist())
            self.model.add(held <= room.size)
            for i in there:
                self._check()
                if room.running[i]:
                    self.model.add(held + int(room.running[i]) * self.on[i][d] <= room.size)
            if self._f.memory is MemoryRule.PEAK:
                intervals, sizes = self._lives(d, room.unit_bytes)
                left = self.model.new_int_var(0, room.size, f"room{d}")
                self.model.add(left + held == room.size)
                self.model.add_cumulative(intervals, sizes, left)

    def _lives(self, d: int, unit: float) -> tuple[list[cp_model.IntervalVar], list[int]]:
        """Results and copies on device d in units, from the start of op or transfer to the last use."""
        intervals, sizes = [], []
        for u, consumers in enumerate(self._f.consumers):
            self._check()
            if d in self.on[u] and (size := int(self._p.output_bytes[u] / unit)):
                intervals.append(self._life_at_home(u, d))
                sizes.append(size)
            for smallest in sorted(set(consumers.values())):
                # the copy has the size of its largest edge: one layer for each size that is reached
                below = max((s for s in consumers.values() if s < smallest), default=0.0)
                layer = int(smallest / unit) - int(below / unit)
                readers = [v for v, size in consumers.items() if size >= smallest and d in self.on[v]]
                if layer and readers:
                    intervals.append(self._life_of_copy(u, d, readers))
                    sizes.append(layer)
        return intervals, sizes

    def _life_at_home(self, u: int, d: int) -> cp_model.IntervalVar:
        here, consumers = self.on[u][d], self._f.consumers[u]
        until = self.model.new_int_var(0, self._horizon + 1, f"h{u},{d}")
        length = self.model.new_int_var(0, self._horizon + 1, f"l{u},{d}")
        self.model.add(until >= self.end[u]).only_enforce_if(here)
        if not consumers:  # what nobody reads is kept
            self.model.add(until >= self.makespan).only_enforce_if(here)
        for v, size in consumers.items():
            cost = self.ticks.down(self._f.transfer_s(max([size, *consumers.values()])))
            for b, at_b in self.on[v].items():
                last = self.end[v] if b == d else self.end[u] + self._sent(u, d, b, cost)
                self.model.add(until >= last).only_enforce_if([here, at_b])
        return self.model.new_optional_interval_var(self.start[u], length, until, here, f"home{u},{d}")

    def _sent(self, u: int, a: int, b: int, largest: IntArray) -> int:
        """Ticks of the transfer of u's result from a to b; of its smallest edge where edges differ."""
        sizes = set(self._f.consumers[u].values())
        if len(sizes) == 1:
            return int(largest[a, b])
        return int(self.ticks.down(self._f.transfer_s(min(sizes)))[a, b])

    def _life_of_copy(self, u: int, d: int, readers: list[int]) -> cp_model.IntervalVar:
        """A copy that is there when any of ``readers`` is on d and u is not; it arrives from the end of u on."""
        there = self.model.new_bool_var(f"c{u},{d}")
        for v in readers:
            absent = [self.on[u][d]] if d in self.on[u] else []
            self.model.add_bool_or([there, self.on[v][d].negated(), *absent])
        begin, until, length = (self.model.new_int_var(0, self._horizon + 1, f"{k}{u},{d}") for k in ("f", "t", "m"))
        slack = 0 if self.ticks.is_exact else 1
        self.model.add(begin >= self.end[u])
        self.model.add(begin <= self.end[u] + slack)
        for v in readers:
            self.model.add(until >= self.end[v]).only_enforce_if([there, self.on[v][d]])
        return self.model.new_optional_interval_var(begin, length, until, there, f"copy{u},{d}")

    def _order_identical_devices(self) -> None:
        """By tasks (DiviML, section VI); only where nothing else distinguishes the devices."""
        for a, b in self._f.twins if self._is_alone else ():
            tasks = [sum(on[d] for on in self.on if d in on) for d in (a, b)]
            self.model.add(tasks[0] >= tasks[1])

    def hint(self, device: IntArray, start_s: FloatArray) -> None:
        """Begin with a schedule [N] in seconds, brought to what the symmetry rule asks for."""
        for i, on in enumerate(self.on):
            for d, here in on.items():
                self.model.add_hint(here, int(device[i]) == d)
            self.model.add_hint(self.start[i], int(self.ticks.down(start_s[i])))

    def read(self, value: Callable[[cp_model.IntVar], int]) -> tuple[IntArray, IntArray]:
        """Devices [N] and starts [N] in ticks that the values of the variables describe."""
        device = [next(d for d, here in on.items() if value(here)) for on in self.on]
        start = [value(start) for start in self.start]
        return np.asarray(device, dtype=np.int64), np.asarray(start, dtype=np.int64)
