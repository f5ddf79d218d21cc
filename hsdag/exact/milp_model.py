"""DiviML's mixed-integer program (1)-(7), the reference formulation: batches, big-M precedences, order variables.

Legend: N ops, D devices, L inputs (groups, where some stay together), S batch sizes.
"""

from __future__ import annotations

import numpy as np

from hsdag.exact.batches import BatchSchedule, BatchTable
from hsdag.exact.formulation import Formulation, MemoryRule, Symmetry
from hsdag.exact.linear import LinearModel
from hsdag.ir.graph import FloatArray, IntArray

Terms = list[tuple[int, float]]


class BatchedModel:
    """The program of a problem with a batch table; minimises C, the end of all inputs.

    ``horizon_s`` is a time in which some schedule ends: the big M. Departures from the paper: (3) holds for pairs
    that share an input, as section III says, not for all; a transfer carries all inputs that its two batches share,
    in the paper each by itself; edges of one result may differ in size, and the largest that leads to a device counts;
    memory may ask for less than (6). PEAK memory is not linear here, and is refused.
    """

    def __init__(self, f: Formulation, horizon_s: float, batches: BatchTable | None = None) -> None:
        p = f.problem
        if f.memory is MemoryRule.PEAK and np.isfinite(p.memory_bytes).any():
            raise ValueError("the MILP knows the memory rules 'running' and 'reserved', not 'peak'")
        self._f, self._p = f, p
        self._batches = batches or BatchTable.single(p)
        self.unit_s = horizon_s / 1000 if horizon_s > 0 else 1.0
        self._big = horizon_s / self.unit_s * (1 + 1e-9)
        self._time = self._batches.time_s / self.unit_s  # [N, D, S]
        self._overhead = p.op_overhead_s / self.unit_s
        self._sizes = [size // self._batches.group for size in self._batches.sizes]
        self._is_single = self._batches.num_groups == 1
        self.linear = LinearModel()
        self._choose_devices()
        self._choose_batches()
        self._end_after_every_batch()
        self._wait_for_inputs()
        self._let_no_batches_overlap()
        self._keep_within_memory()
        self._break_symmetry()

    def _choose_devices(self) -> None:
        """(1)."""
        can = self._f.allowed & np.isfinite(self._time).any(axis=2)
        self.on: list[list[dict[int, int]]] = []
        for i in range(self._p.num_ops):
            each = [{d: self.linear.binary() for d in np.flatnonzero(can[i]).tolist()} for _ in self._inputs]
            if not each[0]:
                raise ValueError(f"op {self._p.op_names[i]!r} fits on no device")
            for choices in each:
                self.linear.row([(x, 1.0) for x in choices.values()], 1, 1)
            self.on.append(each)

    def _choose_batches(self) -> None:
        """(4) and (5): on each device at most one batch of an op, of a size that is allowed; its start."""
        self.batch: list[dict[int, dict[int, int]]] = []
        self.start: list[dict[int, int]] = []
        heads = self._f.heads_s / self.unit_s if self._batches.num_inputs == 1 else np.zeros(self._p.num_ops)
        for i in range(self._p.num_ops):
            of_op: dict[int, dict[int, int]] = {}
            for d in self.on[i][0]:
                sizes = np.flatnonzero(np.isfinite(self._time[i, d])).tolist()
                of_op[d] = {k: self.linear.binary() for k in sizes}
                self.linear.row([(b, 1.0) for b in of_op[d].values()], high=1)
                members = [(self.on[i][n][d], -1.0) for n in self._inputs]
                self.linear.row([*[(b, self._sizes[k]) for k, b in of_op[d].items()], *members], 0, 0)
            self.batch.append(of_op)
            first = self.linear.variable(min(float(heads[i]), self._big), self._big)
            others = list(of_op)[1:]
            later = {d: first if self._is_single else self.linear.variable(0, self._big) for d in others}
            self.start.append(dict.fromkeys(list(of_op)[:1], first) | later)

    def _end_after_every_batch(self) -> None:
        """(2); and redundant, the load of each device."""
        self.makespan = self.linear.variable(0, self._big, cost=1.0)
        for i, starts in enumerate(self.start):
            for d, start in starts.items() if not self._is_single else [next(iter(starts.items()))]:
                devices = list(starts) if self._is_single else [d]
                taken = [term for a in devices for term in self._taken(i, a)]
                self.linear.row([(start, 1.0), *taken, (self.makespan, -1.0)], high=0)
        for d in range(self._p.num_devices):
            load = [term for i in range(self._p.num_ops) if d in self.batch[i] for term in self._taken(i, d)]
            self.linear.row([*load, (self.makespan, -1.0)], high=0)

    def _taken(self, i: int, d: int) -> Terms:
        return [(b, float(self._time[i, d, k])) for k, b in self.batch[i][d].items()]

    def _wait_for_inputs(self) -> None:
        """(3)."""
        for u, consumers in enumerate(self._f.consumers):
            for v, size in consumers.items():
                self._wait(u, v, size, None)
                for w, larger in consumers.items():
                    if larger > size:
                        self._wait(u, v, larger, w)

    def _wait(self, u: int, v: int, size: float, beside: int | None) -> None:
        """v starts when u has ended and ``size`` bytes have come, where w, if any, is on the device of v too."""
        size *= self._batches.group
        cost = self._f.transfer_s(size) / self.unit_s
        fixed = self._f.transfer_s(0.0) / self.unit_s
        if self._is_single and beside is None:
            whole = [term for a in self.on[u][0] for term in self._taken(u, a)]
            starts = [(next(iter(self.start[u].values())), 1.0), (next(iter(self.start[v].values())), -1.0)]
            self.linear.row([*starts, *whole], high=0)
        for a in self.on[u][0]:
            for b in self.on[v][0]:
                if (beside is not None and (a == b or b not in self.on[beside][0])) or (self._is_single and a == b):
                    continue
                if not self._is_single and cost[a, b] > fixed[a, b]:
                    self._after_all(u, v, a, b, beside, (float(fixed[a, b]), float(cost[a, b] - fixed[a, b])))
                    continue
                for n in self._inputs:
                    literals = [self.on[u][n][a], self.on[v][n][b]]
                    literals += [self.on[beside][n][b]] if beside is not None else []
                    self._after(self.start[u][a], self._taken(u, a), self.start[v][b], float(cost[a, b]), literals)

    def _after(self, first: int, taken: Terms, second: int, gap: float, literals: list[int]) -> None:
        """first + taken + gap <= second, where all ``literals`` are 1."""
        big = gap if self._is_single else self._big + gap  # for a single input the order itself holds anyway
        on = [(x, big) for x in literals]
        self.linear.row([(first, 1.0), *taken, (second, -1.0), *on], high=big * len(literals) - gap)

    def _after_all(self, u: int, v: int, a: int, b: int, beside: int | None, cost: tuple[float, float]) -> None:
        """v on b starts when what both share of u's batch on a has come: a fixed cost, and one for each input."""
        fixed, each = cost
        sent = [self.linear.variable(0, 1) for _ in self._inputs]
        for n, y in enumerate(sent):
            literals = [self.on[u][n][a], self.on[v][n][b]]
            literals += [self.on[beside][n][b]] if beside is not None else []
            self.linear.row([(y, 1.0), *((x, -1.0) for x in literals)], low=1.0 - len(literals))
        big = self._big + fixed + each * len(sent)
        ends = [(self.start[u][a], 1.0), *self._taken(u, a), (self.start[v][b], -1.0), *((y, each) for y in sent)]
        for y in sent:
            self.linear.row([*ends, (y, big)], high=big - fixed)

    def _let_no_batches_overlap(self) -> None:
        """(7), for pairs that no path orders; several inputs can make batches of ordered ops overlap as well."""
        reach = self._f.reach
        for i in range(self._p.num_ops):
            for j in range(i + 1, self._p.num_ops):
                shared = sorted(set(self.batch[i]) & set(self.batch[j]))
                is_ordered = bool(reach[i, j] or reach[j, i])
                if not shared or (is_ordered and self._is_single and not self._overhead):
                    continue
                before: int | None = None
                for d in shared:
                    before = self.linear.binary() if before is None or not self._is_single else before
                    self._either(i, j, d, before)

    def _either(self, i: int, j: int, d: int, before: int) -> None:
        """i's batch on d is before j's where ``before`` is 1, else behind it, if both are there."""
        there = [(b, 1.0) for of in (self.batch[i][d], self.batch[j][d]) for b in of.values()]
        big = self._big + self._overhead
        hold = [(i, j, 1.0), (j, i, -1.0)]
        for first, second, sign in hold:
            taken = [(b, cost + self._overhead) for b, cost in self._taken(first, d)]
            terms = [(self.start[first][d], 1.0), *taken, (self.start[second][d], -1.0)]
            present = [(b, big * one) for b, one in there]
            # starts + big (there + order) <= big * 3, or * 2 where the order counts the other way
            limit = 3 * big if sign > 0 else 2 * big
            self.linear.row([*terms, *present, (before, sign * big)], high=limit)

    def _keep_within_memory(self) -> None:
        """(6), or what RUNNING asks for: weights once for each device that has a batch."""
        p, f = self._p, self._f
        for d in np.flatnonzero(np.isfinite(p.memory_bytes)).tolist():
            room = float(p.memory_bytes[d]) * (1 + 1e-9)
            there = [i for i in range(p.num_ops) if d in self.batch[i]]
            held = [(b, float(p.weight_bytes[i]) / room) for i in there for b in self.batch[i][d].values() if room]
            if f.memory is MemoryRule.RESERVED:
                each = f.reserved_bytes * self._batches.group / (room or 1.0)
                held += [(self.on[i][n][d], float(each[i])) for i in there for n in self._inputs]
            self.linear.row(held, high=1.0 if room else 0.0)
            if f.memory is MemoryRule.RUNNING and room:
                for i in there:
                    running = [(b, float(f.running_bytes[i, d]) / room) for b in self.batch[i][d].values()]
                    self.linear.row([*held, *running], high=1.0)

    def _break_symmetry(self) -> None:
        """Identical devices are ordered (section VI)."""
        rule = self._f.symmetry
        for a, b in self._f.twins if rule is not Symmetry.NONE else ():
            terms: Terms = []
            for d, sign in ((a, 1.0), (b, -1.0)):
                for i in range(self._p.num_ops):
                    if d not in self.batch[i]:
                        continue
                    if rule is Symmetry.BUSY:
                        terms += [(x, sign * cost) for x, cost in self._taken(i, d)]
                    elif rule is Symmetry.BATCHES:
                        terms += [(x, sign) for x in self.batch[i][d].values()]
                    else:
                        terms += [(self.on[i][n][d], sign) for n in self._inputs]
            self.linear.row(terms, low=0)

    @property
    def _inputs(self) -> range:
        return range(self._batches.num_groups)

    def read(self, values: FloatArray) -> BatchSchedule:
        """The schedule that a solution stands for."""
        n, d = self._p.num_ops, self._p.num_devices
        device = np.empty((n, self._batches.num_groups), dtype=np.int64)
        start_s = np.full((n, d), np.nan)
        for i in range(n):
            for k in self._inputs:
                device[i, k] = max(self.on[i][k], key=lambda a: values[self.on[i][k][a]])
            for a in set(device[i].tolist()):
                start_s[i, a] = values[self.start[i][a]] * self.unit_s
        return BatchSchedule(device, start_s)

    def hint(self, device: IntArray) -> tuple[list[int], list[float]]:
        """Variables and values of a placement, [N] of all inputs or [N, L], to begin with."""
        table = np.broadcast_to(device[:, None] if device.ndim == 1 else device, (len(device), len(self._inputs)))
        chosen = [
            (x, float(table[i, n] == d))
            for i, each in enumerate(self.on)
            for n, of in enumerate(each)
            for d, x in of.items()
        ]
        return [x for x, _ in chosen], [value for _, value in chosen]
