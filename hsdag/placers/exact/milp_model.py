"""DiviML's mixed-integer program (1)-(7), the reference formulation: batches, big-M precedences, order variables.

Legend: N ops, D devices, L inputs (groups, where some stay together), S batch sizes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hsdag.ir.graph import BoolArray, FloatArray, IntArray
from hsdag.placers.exact.batches import BatchSchedule, BatchTable
from hsdag.placers.exact.formulation import Formulation, MemoryRule
from hsdag.placers.exact.highs import highs_program
from hsdag.placers.exact.linear import INFINITE, LinearModel
from hsdag.placers.exact.solving import Program

Terms = list[tuple[int, float]]

ENTRIES_OF_ROW = 5
"""Variables of a row for two batches, each of one size: starts, batches or devices, and the order or none."""


class BatchedModel:
    """The program of a problem with a batch table; minimises C, the end of all inputs.

    ``horizon_s`` is a time in which some schedule ends: the big M. Departures from the paper: (3) holds for pairs
    that share an input, as section III says, not for all; a transfer carries all inputs that its two batches share,
    in the paper each by itself; edges of one result may differ in size, and the largest that leads to a device counts;
    memory may ask for less than (6). PEAK memory is not linear here, and is refused. While the rows of ops are made,
    ``check`` is called for every op, and its exceptions reach the caller.
    """

    def __init__(
        self,
        f: Formulation,
        horizon_s: float,
        batches: BatchTable | None = None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        p = f.problem
        if f.memory is MemoryRule.PEAK and np.isfinite(p.memory_bytes).any():
            raise ValueError("the MILP knows the memory rules 'running' and 'reserved', not 'peak'")
        self._f, self._p, self._check = f, p, check
        self._batches = batches or BatchTable.single(p)
        self.unit_s = horizon_s / 1000 if horizon_s > 0 else 1.0
        self._big = horizon_s / self.unit_s * (1 + 1e-9)
        self._time = self._batches.time_s / self.unit_s  # [N, D, S]
        self._overhead = p.op_overhead_s / self.unit_s
        self.hold = self._time + self._overhead  # [N, D, S]
        self._sizes = np.asarray(self._batches.sizes) / self._batches.group
        self._is_single = self._batches.num_groups == 1
        self.linear = LinearModel()
        self._choose_devices()
        self._choose_batches()
        self._end_after_every_batch()
        self._wait_for_inputs()
        self._let_no_batches_overlap()
        self._keep_within_memory()
        self._order_identical_devices()

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
        self.batch = np.full(self._time.shape, -1, dtype=np.int64)  # [N, D, S] variables, -1 where there is none
        self.start = np.full(self._time.shape[:2], -1, dtype=np.int64)  # [N, D]
        heads = self._f.heads_s / self.unit_s if self._batches.num_inputs == 1 else np.zeros(self._p.num_ops)
        for i, each in enumerate(self.on):
            for d in each[0]:
                for k in np.flatnonzero(np.isfinite(self._time[i, d])).tolist():
                    self.batch[i, d, k] = self.linear.binary()
                batches = self._of_each(i, d, np.ones(len(self._sizes)))
                self.linear.row(batches, high=1)
                members = [(each[n][d], -1.0) for n in self._inputs]
                self.linear.row([*self._of_each(i, d, self._sizes), *members], 0, 0)
            devices = list(each[0])
            self.start[i, devices] = self.linear.variable(min(float(heads[i]), self._big), self._big)
            for d in devices[1:] if not self._is_single else ():
                self.start[i, d] = self.linear.variable(0, self._big)

    def _of_each(self, i: int, d: int, values: FloatArray) -> Terms:
        """The batches of an op on a device, each with the value [S] of its size."""
        return [(b, v) for b, v in zip(self.batch[i, d].tolist(), values.tolist(), strict=True) if b >= 0]

    def _taken(self, i: int, d: int) -> Terms:
        return self._of_each(i, d, self._time[i, d])

    def _end_after_every_batch(self) -> None:
        """(2); and redundant, the load of each device."""
        self.makespan = self.linear.variable(0, self._big, cost=1.0)
        for i, each in enumerate(self.on):
            for together in [list(each[0])] if self._is_single else [[d] for d in each[0]]:
                taken = [term for d in together for term in self._taken(i, d)]
                self.linear.row([(int(self.start[i, together[0]]), 1.0), *taken, (self.makespan, -1.0)], high=0)
        for d in range(self._p.num_devices):
            load = [term for i in range(self._p.num_ops) for term in self._taken(i, d)]
            self.linear.row([*load, (self.makespan, -1.0)], high=0)

    def _wait_for_inputs(self) -> None:
        """(3)."""
        for u, consumers in enumerate(self._f.consumers):
            self._check()
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
            starts = [(int(self.start[u].max()), 1.0), (int(self.start[v].max()), -1.0)]
            self.linear.row([*starts, *whole], high=0)
        for a in self.on[u][0]:
            for b in self.on[v][0]:
                if (beside is not None and (a == b or b not in self.on[beside][0])) or (self._is_single and a == b):
                    continue
                if not self._is_single and cost[a, b] > fixed[a, b]:
                    self._after_all(u, v, a, b, (float(fixed[a, b]), float(cost[a, b] - fixed[a, b])))
                    continue
                for n in self._inputs:
                    literals = [self.on[u][n][a], self.on[v][n][b]]
                    literals += [self.on[beside][n][b]] if beside is not None else []
                    self._after((u, a), (v, b), float(cost[a, b]), literals)

    def _after(self, first: tuple[int, int], second: tuple[int, int], gap: float, literals: list[int]) -> None:
        """The second batch, of an op on a device, starts ``gap`` after the first ends, if all ``literals`` are 1."""
        gap = min(gap, 2 * self._big)  # what is longer than all fits in nowhere either
        big = gap if self._is_single else self._big + gap  # for a single input the order itself holds anyway
        ends = [(int(self.start[first]), 1.0), *self._taken(*first), (int(self.start[second]), -1.0)]
        self.linear.row([*ends, *((x, big) for x in literals)], high=big * len(literals) - gap)

    def _after_all(self, u: int, v: int, a: int, b: int, cost: tuple[float, float]) -> None:
        """v on b starts when what both share of u's batch on a has come: a fixed cost, and one for each input."""
        fixed, each = cost
        sent = [self.linear.variable(0, 1) for _ in self._inputs]
        for n, y in enumerate(sent):
            self.linear.row([(y, 1.0), (self.on[u][n][a], -1.0), (self.on[v][n][b], -1.0)], low=-1.0)
        big = self._big + fixed + each * len(sent)
        ends = [(int(self.start[u, a]), 1.0), *self._taken(u, a), (int(self.start[v, b]), -1.0)]
        ends += [(y, each) for y in sent]
        for y in sent:
            self.linear.row([*ends, (y, big)], high=big - fixed)

    def _let_no_batches_overlap(self) -> None:
        """(7), for pairs that no path orders; several inputs can make batches of ordered ops overlap as well."""
        together = np.ones((self._p.num_ops, self._p.num_ops), dtype=np.bool_)
        if self._is_single and not self._overhead:
            together = unordered(self._f)
        for i in range(self._p.num_ops - 1):
            self._check()
            others = i + 1 + np.flatnonzero(together[i, i + 1 :])
            shared = (self.start[i] >= 0) & (self.start[others] >= 0)
            which, device = np.nonzero(shared)
            pairs = which if self._is_single else np.arange(len(which))  # one order for all devices, or one for each
            first = len(self.linear.low)
            orders, order = np.unique(pairs, return_inverse=True)
            for _ in orders:
                self.linear.binary()
            self._either(np.full_like(which, i), others[which], device, first + order)

    def _either(self, i: IntArray, j: IntArray, d: IntArray, before: IntArray) -> None:
        """i's batch on d is before j's where ``before`` is 1, else behind it, if both are there; all are [K]."""
        big = self._big + self._overhead
        index, value = [], []
        for first, second, sign in ((i, j, 1.0), (j, i, -1.0)):
            one = np.ones((len(i), 1))
            starts = self.start[first, d][:, None], self.start[second, d][:, None]
            batches, others = self.batch[first, d], self.batch[second, d]
            index.append(np.concatenate([starts[0], batches, starts[1], others, before[:, None]], axis=1))
            taken = self.hold[first, d] + big
            value.append(np.concatenate([one, taken, -one, np.full_like(taken, big), sign * big * one], axis=1))
        # starts + big (there + order) <= big * 3, or * 2 where the order counts the other way
        shape = 2 * len(i), index[0].shape[1]
        both = np.stack(index, axis=1).reshape(shape), np.stack(value, axis=1).reshape(shape)
        _add_rows(self.linear, *both, np.tile([3 * big, 2 * big], len(i)))

    def _keep_within_memory(self) -> None:
        """(6), or what RUNNING asks for, where it can bind: weights once for each device that has a batch."""
        one = np.ones(len(self._sizes))
        for d in range(self._p.num_devices):
            there = np.flatnonzero(self.start[:, d] >= 0).tolist()
            room = self._f.room(d, there, self._batches.num_inputs)
            if room is None:
                continue
            unit = float(max(room.size, 1))
            held = [term for i in there for term in self._of_each(i, d, one * room.weights[i] / unit)]
            each = room.results * self._batches.group / unit
            held += [(self.on[i][n][d], float(each[i])) for i in there if each[i] for n in self._inputs]
            self.linear.row(held, high=room.size / unit)
            for i in there:
                self._check()
                if room.running[i]:
                    running = self._of_each(i, d, one * room.running[i] / unit)
                    self.linear.row([*held, *running], high=room.size / unit)

    def _order_identical_devices(self) -> None:
        """By tasks (section VI)."""
        for a, b in self._f.twins:
            if not np.array_equal(self._time[:, a], self._time[:, b], equal_nan=True):
                continue
            terms = [(on[d], s) for each in self.on for on in each for d, s in ((a, 1.0), (b, -1.0)) if d in on]
            self.linear.row(terms, low=0)

    @property
    def _inputs(self) -> range:
        return range(self._batches.num_groups)

    def read(self, values: FloatArray) -> BatchSchedule:
        """The schedule that a solution describes."""
        n, d = self._p.num_ops, self._p.num_devices
        device = np.empty((n, self._batches.num_groups), dtype=np.int64)
        start_s = np.full((n, d), np.nan)
        for i in range(n):
            for k in self._inputs:
                device[i, k] = max(self.on[i][k], key=lambda a: values[self.on[i][k][a]])
            for a in set(device[i].tolist()):
                start_s[i, a] = values[self.start[i, a]] * self.unit_s
        return BatchSchedule(device, start_s)

    def program(self, on_schedule: Callable[[BatchSchedule], None], start: IntArray | None) -> Program:
        """For HiGHS, beginning with a placement, [N] of all inputs or [N, G], where one is known."""
        hint = None
        if start is not None:
            table = np.broadcast_to(start.reshape(len(start), -1), (len(start), len(self._inputs)))
            chosen = {
                x: float(table[i, n] == d)
                for i, each in enumerate(self.on)
                for n, of in enumerate(each)
                for d, x in of.items()
            }
            hint = list(chosen), list(chosen.values())
        return highs_program(self.linear, self.unit_s, lambda values: on_schedule(self.read(values)), hint)


def _add_rows(linear: LinearModel, index: IntArray, value: FloatArray, high: FloatArray) -> None:
    """Add rows [K, W] with upper limits [K]; an index of -1 means no entry."""
    there = index >= 0
    linear.row_start.extend((linear.row_start[-1] + np.cumsum(there.sum(axis=1))).tolist())
    linear.index.extend(index[there].tolist())
    linear.value.extend(value[there].tolist())
    linear.row_low.extend([-INFINITE] * len(high))
    linear.row_high.extend(high.tolist())


def unordered(f: Formulation) -> BoolArray:
    """[N, N] whether no path leads from one op to the other; an op is ordered with itself."""
    return ~(f.reach | f.reach.T | np.eye(f.problem.num_ops, dtype=np.bool_))


def num_entries(f: Formulation) -> int:
    """Entries of the rows of (3), (6) and (7), about: nearly all of the program for a single input; in O(N^2 D)."""
    can = f.allowed.astype(np.float32)
    apart = unordered(f) if not f.problem.op_overhead_s else ~np.eye(len(can), dtype=np.bool_)
    pairs = sum(float(np.sum((apart[i : i + 256] @ can) * can[i : i + 256])) / 2 for i in range(0, len(can), 256))
    waits = 0.0
    for u, consumers in enumerate(f.consumers):
        sizes = np.sort(list(consumers.values()))
        for v, size in consumers.items():
            larger = len(sizes) - np.searchsorted(sizes, size, side="right")
            waits += (1 + float(larger)) * float(can[u].sum() * can[v].sum() - can[u] @ can[v])
    weights = f.problem.weight_bytes @ f.allowed
    full = f.allowed & (weights + f.running_bytes > f.problem.memory_bytes)
    return int(ENTRIES_OF_ROW * (2 * pairs + waits) + float(full.sum(axis=0) @ f.allowed.sum(axis=0)))
