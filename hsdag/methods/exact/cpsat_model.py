"""DiviML's formulation as a CP-SAT model: optional intervals on devices, and conditional precedences.

Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from ortools.sat.python import cp_model

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.exact.batches import BatchedProblem, BatchSchedule
from hsdag.methods.exact.formulation import Formulation, MemoryRule
from hsdag.methods.exact.solving import Ticks

MOST_OPS_WITH_LOADS = 150
"""Ops up to which every op also waits for the load of its ancestors: those constraints are quadratic in number."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What a part of a problem sees of the rest of it."""

    arrival_s: FloatArray  # [N, D] when the inputs from outside are on a device
    device_free_s: FloatArray  # [D]
    tail_s: FloatArray  # [N, D] what follows the end of an op on a device
    device_tail_s: FloatArray  # [D] what follows the last op of a device


class IntervalModel:
    """The model of one problem; constraint numbers are those of DiviML, section IV-A.

    Every schedule of at most ``horizon_s`` seconds is a solution in ticks, so that the bound of the model is one of
    the problem. Of a ``batched`` problem, whose costs are those of the formulation, batches that are longer or fit into
    no memory do not come into it. ``pinned`` are devices by op. Loads are redundant: a model without them is sooner
    made, and its bound rises later. While the model is made, ``check`` is called for every op, and what it raises goes
    on to the caller. Where an op has no device left, there is no solution.
    """

    def __init__(
        self,
        formulation: Formulation,
        horizon_s: float,
        batched: BatchedProblem | None = None,
        around: Surroundings | None = None,
        *,
        ticks: Ticks | None = None,
        pinned: Mapping[int, int] | None = None,
        with_loads: bool = True,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        p = formulation.problem
        self._f, self._p, self._check = formulation, p, check
        self._batched, self._around, self._pinned = batched, around, pinned or {}
        time_s = np.stack([np.zeros_like(p.time_s), p.time_s], axis=2)
        if batched is not None:
            time_s = batched.within(horizon_s * (1 + 1e-9)).group_time_s
        self._groups = range(time_s.shape[2] - 1)
        self._can = np.isfinite(time_s) & formulation.allowed[:, :, None]  # [N, D, G + 1]
        self.ticks = ticks or Ticks.choose(self._durations(time_s), max(horizon_s, 1e-12))
        self._run = self.ticks.down(time_s)
        self._hold = self.ticks.down(time_s + p.op_overhead_s)  # how long the device is taken
        self._horizon = int(self.ticks.down(horizon_s)) + (0 if self.ticks.is_exact else 1)
        self.model = cp_model.CpModel()
        self._place_every_group_once()
        self._make_batches_of_allowed_sizes()
        self._give_every_batch_a_start()
        self._let_no_batches_overlap_on_a_device()
        self._wait_for_inputs()
        self._end_after_every_batch()
        if with_loads:
            self._let_devices_carry_their_load()
        self._keep_within_memory()
        if around is None and not self._pinned:
            self._order_what_is_alike()
        self.model.minimize(self.makespan)

    @staticmethod
    def of_batches(
        problem: BatchedProblem, horizon_s: float, check: Callable[[], object] = lambda: None
    ) -> IntervalModel:
        """The model of a batched problem, with the paper's rule of memory."""
        return IntervalModel(Formulation(problem.costs, MemoryRule.RESERVED), horizon_s, problem, check=check)

    def _durations(self, time_s: FloatArray) -> list[ArrayLike]:
        """All durations that a schedule has."""
        p, b, around = self._p, self._batched, self._around
        if b is not None:
            each = [size * b.s_per_byte for size in np.unique(b.group_edge_bytes).tolist()]
            return [time_s, [p.op_overhead_s], b.latency_s, *each]
        beyond = [] if around is None else list(vars(around).values())
        return [*self._f.durations_s, *beyond]

    def _place_every_group_once(self) -> None:
        """(1), over the devices that run an op and could hold it."""
        can = np.asarray(self._can[:, :, 1:].any(axis=2))
        for i, d in self._pinned.items():
            can[i, np.arange(self._p.num_devices) != d] = False
        self.on = [
            {d: [self.model.new_bool_var(f"x{i},{d},{g}") for g in self._groups] for d in np.flatnonzero(row).tolist()}
            for i, row in enumerate(can)
        ]
        for on in self.on:
            for g in self._groups:
                self.model.add_exactly_one([there[g] for there in on.values()])

    def _make_batches_of_allowed_sizes(self) -> None:
        """(4) and (5): at most one batch of an op on each device, of a size that is allowed."""
        self.size: list[dict[int, dict[int, cp_model.IntVar]]] = []
        for i, on in enumerate(self.on):
            self.size.append({d: {1: there[0]} for d, there in on.items()})
            for d, there in on.items() if self._batched is not None else ():
                of = {n: self.model.new_bool_var(f"b{i},{d},{n}") for n in np.flatnonzero(self._can[i, d])[1:].tolist()}
                self.model.add_at_most_one(list(of.values()))
                self.model.add(sum(n * b for n, b in of.items()) == sum(there))
                self.size[i][d] = of

    def _give_every_batch_a_start(self) -> None:
        """Of one input, an op has the same start and end on all devices."""
        if self._batched is None:
            self._begin, self._at = self._starts(), [{d: there[0] for d, there in on.items()} for on in self.on]
            self._finish = [s + self._sum([i], self._at[i]) for i, s in enumerate(self._begin)]
            self.start = [dict.fromkeys(on, s) for on, s in zip(self.on, self._begin, strict=True)]
            self.end = [dict.fromkeys(on, s) for on, s in zip(self.on, self._finish, strict=True)]
            return
        self.start = [
            {d: self.model.new_int_var(0, self._horizon, f"s{i},{d}") for d in on} for i, on in enumerate(self.on)
        ]
        self.end = [{d: s + self._sum([i], [d]) for d, s in starts.items()} for i, starts in enumerate(self.start)]

    def _starts(self) -> list[cp_model.IntVar]:
        heads, tails = self.ticks.down(self._f.heads_s), self.ticks.down(self._f.tails_s)
        starts = []
        for i, on in enumerate(self.on):
            latest = max(self._horizon - int(tails[i]) - min((int(self._run[i, d, 1]) for d in on), default=0), 0)
            starts.append(self.model.new_int_var(min(int(heads[i]), latest), latest, f"s{i}"))
        if self._around is not None:
            first = self.ticks.down(np.maximum(self._around.arrival_s, self._around.device_free_s))
            for i, on in enumerate(self.on):
                for d, here in on.items():
                    if first[i, d]:
                        self.model.add(starts[i] >= int(first[i, d])).only_enforce_if(here)
        return starts

    def _sum(self, ops: Iterable[int], devices: Iterable[int]) -> Any:  # an expression of OR-Tools, typed too widely
        """Ticks of all batches of ops on devices."""
        there = [(b, int(self._run[i, d, n])) for i in ops for d in devices for n, b in self.size[i].get(d, {}).items()]
        return cp_model.LinearExpr.weighted_sum([b for b, _ in there], [ticks for _, ticks in there])

    def _let_no_batches_overlap_on_a_device(self) -> None:
        """(7), for ops of one input that are not ordered by precedence with all others; with overheads for all."""
        reach = self._f.reach
        ordered = (reach | reach.T | np.eye(self._p.num_ops, dtype=np.bool_)).all(axis=1)
        free = ~ordered | (self._p.op_overhead_s > 0) | (self._batched is not None)
        for d in range(self._p.num_devices):
            intervals = [
                self.model.new_optional_fixed_size_interval_var(
                    self.start[i][d], int(self._hold[i, d, n]), b, f"i{i},{d},{n}"
                )
                for i in np.flatnonzero(free).tolist()
                for n, b in self.size[i].get(d, {}).items()
            ]
            self.model.add_no_overlap(intervals)

    def _wait_for_inputs(self) -> None:
        """(3): a result is sent once to each device, at the size of the largest edge that leads there."""
        for u, consumers in enumerate(self._f.consumers):
            self._check()
            for v, size in consumers.items():
                if self._batched is not None:
                    self._wait_for_batches(u, v, size * self._batched.batches.group, self._batched)
                    continue
                self.model.add(self._begin[v] >= self._finish[u])
                self._wait_for_transfer(u, v, size, ())
                for w, larger in consumers.items():
                    if larger > size:
                        self._wait_for_transfer(u, v, larger, (w,))

    def _wait_for_transfer(self, u: int, v: int, size: float, beside: tuple[int, ...]) -> None:
        """v awaits ``size`` bytes of u where they are apart and the ops ``beside`` are where v is."""
        cost = self.ticks.down(self._f.transfer_s(size))
        for a, from_a in self._at[u].items():
            least = min((int(cost[a, b]) for b in self._at[v] if b != a), default=0)
            after = self._begin[u] + int(self._run[u, a, 1])
            if least and not beside:
                apart = [from_a] + ([self._at[v][a].negated()] if a in self._at[v] else [])
                self.model.add(self._begin[v] >= after + least).only_enforce_if(apart)
            for b, at_b in self._at[v].items():
                if a == b or int(cost[a, b]) <= (0 if beside else least) or any(b not in self._at[w] for w in beside):
                    continue
                literals = [from_a, at_b, *(self._at[w][b] for w in beside)]
                self.model.add(self._begin[v] >= after + int(cost[a, b])).only_enforce_if(literals)

    def _wait_for_batches(self, u: int, v: int, size: float, batched: BatchedProblem) -> None:
        """Batches of v await those of u that they share groups with; what they share is sent at once."""
        fixed, each = self.ticks.down(batched.latency_s), self.ticks.down(size * batched.s_per_byte)
        for (a, made), (b, read) in itertools.product(self.on[u].items(), self.on[v].items()):
            begin, after, groups = self.start[v][b], self.end[u][a] + int(fixed[a, b]), zip(made, read, strict=True)
            if not each[a, b] or len(made) == 1:
                for both in groups:
                    self.model.add(begin >= after + int(each[a, b])).only_enforce_if(both)
                continue
            shared = [self.model.new_bool_var("") for _ in made]
            sent = cp_model.LinearExpr.weighted_sum(shared, [int(each[a, b])] * len(shared))
            for y, (x, z) in zip(shared, groups, strict=True):
                # y may also hold where the group is not in both, which only asks for more
                self.model.add_bool_or([y, x.negated(), z.negated()])
                self.model.add(begin >= after + sent).only_enforce_if(y)

    def _end_after_every_batch(self) -> None:
        """(2), and what the surroundings ask for after that. Where there is no batch, its start is free to be 0."""
        self.makespan = self.model.new_int_var(0, self._horizon, "C")
        if self._batched is not None:
            for end in (end for ends in self.end for end in ends.values()):
                self.model.add(self.makespan >= end)
            return
        for i, end in enumerate(self._finish):
            if not self._f.consumers[i] or self._around is not None:
                self.model.add(self.makespan >= end)
        if self._around is not None:
            behind = self.ticks.down(np.maximum(self._around.tail_s, self._around.device_tail_s))
            for i, at in enumerate(self._at):
                for d, here in at.items():
                    if behind[i, d]:
                        self.model.add(self.makespan >= self._finish[i] + int(behind[i, d])).only_enforce_if(here)

    def _let_devices_carry_their_load(self) -> None:
        """Redundant: the makespan holds a device's load, and so does what lies before and behind every op."""
        ops = list(range(self._p.num_ops))
        for d in range(self._p.num_devices):
            self.model.add(self.makespan >= self._sum(ops, [d]))
        if self._batched is not None:
            return
        reach = self._f.reach
        pivots = np.flatnonzero((reach | reach.T).sum(axis=1) == len(ops) - 1)
        pivots = pivots[np.argsort(reach[:, pivots].sum(axis=0), kind="stable")].tolist()
        for p, q in itertools.pairwise(pivots):
            between = np.flatnonzero(reach[p] & reach[:, q]).tolist()
            for d in range(self._p.num_devices):
                if len(between) > 1:
                    self.model.add(self._begin[q] >= self._finish[p] + self._sum(between, [d]))
        if not 2 <= len(ops) <= MOST_OPS_WITH_LOADS:
            return
        for i in ops:
            self._check()
            before, behind = np.flatnonzero(reach[:, i]).tolist(), np.flatnonzero(reach[i]).tolist()
            for d in range(self._p.num_devices):
                if len(before) > 1:
                    self.model.add(self._begin[i] >= self._sum(before, [d]))
                if len(behind) > 1:
                    self.model.add(self.makespan >= self._finish[i] + self._sum(behind, [d]))

    def _keep_within_memory(self) -> None:
        """(6) under the memory rule, where it can bind; under PEAK with every result's life as an interval."""
        num_inputs, group = (self._batched.batches.num_inputs, self._batched.batches.group) if self._batched else (1, 1)
        for d in range(self._p.num_devices):
            there = [i for i, on in enumerate(self.on) if d in on]
            room = self._f.room(d, there, num_inputs)
            if room is None:
                continue
            terms = [(b, int(room.weights[i])) for i in there for b in self.size[i][d].values()]
            terms += [(x, int(room.results[i]) * group) for i in there for x in self.on[i][d]]
            held = cp_model.LinearExpr.weighted_sum([x for x, _ in terms], [size for _, size in terms])
            self.model.add(held <= room.size)
            for i in there:
                self._check()
                if room.running[i]:
                    self.model.add(held + int(room.running[i]) * sum(self.size[i][d].values()) <= room.size)
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
            if d in self._at[u] and (size := int(self._p.output_bytes[u] / unit)):
                intervals.append(self._life_at_home(u, d))
                sizes.append(size)
            for smallest in sorted(set(consumers.values())):
                # the copy has the size of its largest edge: one layer for each size that is reached
                below = max((s for s in consumers.values() if s < smallest), default=0.0)
                layer = int(smallest / unit) - int(below / unit)
                readers = [v for v, size in consumers.items() if size >= smallest and d in self._at[v]]
                if layer and readers:
                    intervals.append(self._life_of_copy(u, d, readers))
                    sizes.append(layer)
        return intervals, sizes

    def _life_at_home(self, u: int, d: int) -> cp_model.IntervalVar:
        here, consumers = self._at[u][d], self._f.consumers[u]
        until = self.model.new_int_var(0, self._horizon + 1, f"h{u},{d}")
        length = self.model.new_int_var(0, self._horizon + 1, f"l{u},{d}")
        self.model.add(until >= self._finish[u]).only_enforce_if(here)
        if not consumers:  # what nobody reads is kept
            self.model.add(until >= self.makespan).only_enforce_if(here)
        sent = self.ticks.down(self._f.transfer_s(min(consumers.values(), default=0.0)))
        for v in consumers:
            for b, at_b in self._at[v].items():
                last = self._finish[v] if b == d else self._finish[u] + int(sent[d, b])
                self.model.add(until >= last).only_enforce_if([here, at_b])
        return self.model.new_optional_interval_var(self._begin[u], length, until, here, f"home{u},{d}")

    def _life_of_copy(self, u: int, d: int, readers: list[int]) -> cp_model.IntervalVar:
        """A copy that is there when any of ``readers`` is on d and u is not; it arrives from the end of u on."""
        there = self.model.new_bool_var(f"c{u},{d}")
        for v in readers:
            absent = [self._at[u][d]] if d in self._at[u] else []
            self.model.add_bool_or([there, self._at[v][d].negated(), *absent])
        begin, until, length = (self.model.new_int_var(0, self._horizon + 1, f"{k}{u},{d}") for k in ("f", "t", "m"))
        slack = 0 if self.ticks.is_exact else 1
        self.model.add(begin >= self._finish[u])
        self.model.add(begin <= self._finish[u] + slack)
        for v in readers:
            self.model.add(until >= self._finish[v]).only_enforce_if([there, self._at[v][d]])
        return self.model.new_optional_interval_var(begin, length, until, there, f"copy{u},{d}")

    def _order_what_is_alike(self) -> None:
        """Groups are equal, so those of the first op go by device; identical devices go by tasks (section VI)."""
        first = self.on[int(self._p.topological_order[0])]
        homes = [sum(d * there[g] for d, there in first.items()) for g in self._groups]
        for one, other in itertools.pairwise(homes):
            self.model.add(one <= other)
        for a, b in self._f.twins:
            if np.array_equal(self._can[:, a], self._can[:, b]) and np.array_equal(self._run[:, a], self._run[:, b]):
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
                for n, b in self.size[i][d].items() if self._batched is not None else ():
                    self.model.add_hint(b, bool((row == d).sum() == n))
                if np.isfinite(schedule.start_s[i, d]):
                    self.model.add_hint(self.start[i][d], int(self.ticks.down(schedule.start_s[i, d])))

    def read(self, value: Callable[[cp_model.IntVar], int]) -> BatchSchedule:
        """The schedule that the values of the variables describe."""
        device = np.empty((self._p.num_ops, len(self._groups)), dtype=np.int64)
        start = np.full((self._p.num_ops, self._p.num_devices), np.nan)
        for i, on in enumerate(self.on):
            for g in self._groups:
                device[i, g] = next(d for d, there in on.items() if value(there[g]))
            for d in set(device[i].tolist()):
                start[i, d] = value(self.start[i][d])
        return BatchSchedule(device, self.ticks.seconds(start))
