"""MilpPlacer: DiviML's mixed-integer program (1)-(7) for one input, solved by HiGHS; the reference for CP-SAT.

Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray
from hsdag.methods.base import NoOptions
from hsdag.methods.exact.assignment import AssignmentModel, LinearModel, chosen_devices
from hsdag.methods.exact.base import TOLERANCE, ExactPlacer, ExactSearch, OutOfTime
from hsdag.methods.exact.formulation import Formulation

MOST_OPS, MOST_ENTRIES, ENTRIES_PER_S = 20_000, 10_000_000, 500_000
"""Of a program that is begun: in all, and for each second that there is, for it has to be made and sent to HiGHS."""


class MilpPlacer(ExactPlacer[NoOptions]):
    """Work-conserving latency by big-M constraints and order variables; the other objectives without an order.

    HiGHS answers at its end. Where the program is too large to be made within the budget, the warm start is the answer.
    """

    name = "milp"
    argument = "the integer program"

    def _latency(self, search: ExactSearch) -> None:
        most = min(MOST_ENTRIES, ENTRIES_PER_S * search.left_s())
        if search.formulation.problem.num_ops > MOST_OPS or num_entries(search.formulation) > most:
            raise OutOfTime
        model = MilpModel(search.formulation, search.horizon_s * (1 + TOLERANCE), check=search.left_s)
        values = _solve(search, model.linear, model.unit_s)
        if values is not None:
            search.consider(*model.read(values))

    def _assignment(self, search: ExactSearch) -> None:
        unit_s = max(search.horizon_s, 1e-12) / 1000
        of_seconds = lambda seconds: np.asarray(seconds) / unit_s  # noqa: E731
        model = AssignmentModel(search.formulation, search.incumbent.problem, of_seconds)
        values = _solve(search, model.linear, unit_s)
        if values is not None:
            search.incumbent.consider(chosen_devices(model.on, values))


def _solve(search: ExactSearch, linear: LinearModel, unit_s: float) -> FloatArray | None:
    """The values of all variables in the best solution; its bound, in units of ``unit_s``, is noted."""
    answer = linear.solved(search.limits_left, search.wake)
    search.prove(answer.bound * unit_s, TOLERANCE)
    return answer.values


class MilpModel:
    """The program of a problem; minimises C, the end of all ops.

    ``horizon_s`` is a time in which some schedule ends: the big M. Departures from the paper: edges of one result may
    differ in size, and the largest that leads to a device counts; memory may ask for less than (6), but PEAK memory is
    not linear. While the rows of ops are made, ``check`` is called for every op, and its exceptions
    reach the caller.
    """

    def __init__(self, f: Formulation, horizon_s: float, check: Callable[[], object] = lambda: None) -> None:
        p = f.problem
        self._f, self._p, self._check = f, p, check
        self.unit_s = horizon_s / 1000 if horizon_s > 0 else 1.0
        self._big = horizon_s / self.unit_s * (1 + 1e-9)
        self._time, self._overhead = p.time_s / self.unit_s, p.op_overhead_s / self.unit_s
        self.linear = LinearModel()
        self.on = self.linear.choices(f)
        self.start = [self.linear.variable(min(float(s), self._big), self._big) for s in f.heads_s / self.unit_s]
        self._end_after_every_op()
        self._wait_for_inputs()
        self._let_no_ops_overlap()
        self.linear.keep_within_memory(f, self.on, is_whole=False)
        self.linear.order_twins(f, self.on)

    def _taken(self, i: int) -> list[tuple[int, float]]:
        return [(x, float(self._time[i, d])) for d, x in self.on[i].items()]

    def _end_after_every_op(self) -> None:
        """(2); and redundant, the load of each device."""
        self.makespan = self.linear.variable(0, self._big, cost=1.0)
        for i, start in enumerate(self.start):
            self.linear.row([(start, 1.0), *self._taken(i), (self.makespan, -1.0)], high=0)
        for d in range(self._p.num_devices):
            load = [(on[d], float(self._time[i, d])) for i, on in enumerate(self.on) if d in on]
            self.linear.row([*load, (self.makespan, -1.0)], high=0)

    def _wait_for_inputs(self) -> None:
        """(3)."""
        for u, consumers in enumerate(self._f.consumers):
            self._check()
            for v, size in consumers.items():
                self.linear.row([(self.start[u], 1.0), *self._taken(u), (self.start[v], -1.0)], high=0)
                self._wait(u, v, size, None)
                for w, larger in consumers.items():
                    if larger > size:
                        self._wait(u, v, larger, w)

    def _wait(self, u: int, v: int, size: float, beside: int | None) -> None:
        """v starts when u has ended and ``size`` bytes have come, where w, if any, is on the device of v too."""
        cost = np.minimum(self._f.transfer_s(size) / self.unit_s, 2 * self._big)  # a longer one fits nowhere either
        ends = [(self.start[u], 1.0), *self._taken(u), (self.start[v], -1.0)]
        for a, from_a in self.on[u].items():
            for b, at_b in self.on[v].items():
                if a == b or (beside is not None and b not in self.on[beside]):
                    continue
                literals = [from_a, at_b] if beside is None else [from_a, at_b, self.on[beside][b]]
                gap = float(cost[a, b])  # big enough, since the order itself holds anyway
                self.linear.row([*ends, *((x, gap) for x in literals)], high=gap * (len(literals) - 1))

    def _let_no_ops_overlap(self) -> None:
        """(7), for pairs that no path orders; with overheads for all."""
        apart = unordered(self._f) if not self._overhead else np.ones((self._p.num_ops,) * 2, dtype=np.bool_)
        on = np.full(self._time.shape, -1, dtype=np.int64)
        for i, choices in enumerate(self.on):
            on[i, list(choices)] = list(choices.values())
        start = np.asarray(self.start, dtype=np.int64)
        for i in range(self._p.num_ops - 1):
            self._check()
            others = i + 1 + np.flatnonzero(apart[i, i + 1 :])
            which, device = np.nonzero((on[i] >= 0) & (on[others] >= 0))
            first = len(self.linear.low)
            pairs, order = np.unique(which, return_inverse=True)
            for _ in pairs:
                self.linear.binary()
            same, j, before = np.full_like(which, i), others[which], first + order
            self._precede(start, on, same, j, device, before, 1.0)
            self._precede(start, on, j, same, device, before, -1.0)

    def _precede(
        self, start: IntArray, on: IntArray, i: IntArray, j: IntArray, d: IntArray, order: IntArray, sign: float
    ) -> None:
        """Op i ends before j starts, if both are on d and ``order`` is 1, or 0 where ``sign`` is -1; all are [K]."""
        one, big = np.ones(len(i)), self._big + self._overhead
        hold = self._time[i, d] + self._overhead
        index = np.stack([start[i], on[i, d], start[j], on[j, d], order], axis=1)
        value = np.stack([one, hold + big, -one, big * one, sign * big * one], axis=1)
        self.linear.rows(index, value, big * (3.0 if sign > 0 else 2.0))

    def read(self, values: FloatArray) -> tuple[IntArray, FloatArray]:
        """Devices [N] and starts [N] of a solution."""
        return chosen_devices(self.on, values), values[self.start] * self.unit_s


def unordered(f: Formulation) -> BoolArray:
    """[N, N] whether no path leads from one op to the other; an op is ordered with itself."""
    return ~(f.reach | f.reach.T | np.eye(f.problem.num_ops, dtype=np.bool_))


def num_entries(f: Formulation) -> int:
    """Entries of the rows of (3) and (7) at most: nearly all of the program; in O(N^2)."""
    n, d = f.problem.num_ops, f.problem.num_devices
    num_pairs = n * (n - 1) // 2 if f.problem.op_overhead_s else int(unordered(f).sum()) // 2
    num_waits = sum(len(consumers) * (1 + len(set(consumers.values()))) // 2 for consumers in f.consumers)
    return 10 * num_pairs * d + 5 * num_waits * d * d
