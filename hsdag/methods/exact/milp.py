"""DiviML's mixed-integer program (1)-(7) for one input, solved by SCIP; the reference for CP-SAT.

Legend: N ops, D devices.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ortools.linear_solver.python.model_builder_helper import ModelBuilderHelper, ModelSolverHelper, SolveStatus
from scipy.sparse import csr_matrix

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.exact.base import TOLERANCE, ExactPlacer, ExactSearch, OutOfTime
from hsdag.methods.exact.formulation import Formulation, identical_devices
from hsdag.methods.exact.solving import POLL_S, SolverAnswer
from hsdag.methods.incumbent import Limits

MOST_OPS, MOST_ENTRIES, ENTRIES_PER_S = 20_000, 10_000_000, 500_000
"""Largest program to begin: ops, entries, and entries per second left, since it must be built and presolved."""
PRECISION = 1e-9
"""Feasibility tolerance of rows; SCIP's default is too coarse for rows with a big M."""


@dataclass
class LinearModel:
    """A program that minimises ``cost`` x over rows low <= A x <= high, filled row by row."""

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    is_whole: list[bool] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    row_low: list[float] = field(default_factory=list)
    row_high: list[float] = field(default_factory=list)
    row_start: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def variable(self, low: float, high: float, *, is_whole: bool = False, cost: float = 0.0) -> int:
        """Add a variable and return its number."""
        self.low.append(low)
        self.high.append(high)
        self.is_whole.append(is_whole)
        self.cost.append(cost)
        return len(self.low) - 1

    def row(self, terms: Sequence[tuple[int, float]], low: float = -np.inf, high: float = np.inf) -> None:
        """Add low <= sum of coefficient times variable <= high; a variable may occur several times."""
        merged: dict[int, float] = {}
        for variable, coefficient in terms:
            merged[variable] = merged.get(variable, 0.0) + coefficient
        self.index.extend(merged)
        self.value.extend(merged.values())
        self.row_start.append(len(self.index))
        self.row_low.append(low)
        self.row_high.append(high)

    def rows(self, index: IntArray, value: FloatArray, high: float) -> None:
        """Add K constraints: the sum of ``value`` [K, W] times the variables ``index`` [K, W] is at most ``high``."""
        self.row_start.extend((self.row_start[-1] + index.shape[1] * np.arange(1, len(index) + 1)).tolist())
        self.index.extend(index.ravel().tolist())
        self.value.extend(value.ravel().tolist())
        self.row_low.extend([-np.inf] * len(index))
        self.row_high.extend([high] * len(index))

    def solved(self, limits: Limits, on_wait: Callable[[], None] = lambda: None) -> SolverAnswer[FloatArray]:
        """Return SCIP's answer; ``on_wait`` is called regularly, and an exception that it raises ends the solver."""
        entries = self.value, self.index, self.row_start
        columns = map(np.array, (self.low, self.high, self.cost, self.row_low, self.row_high))
        tables: list[Any] = [*columns, csr_matrix(entries, shape=(len(self.row_low), len(self.low)))]
        program, solver = ModelBuilderHelper(), ModelSolverHelper("SCIP")
        program.fill_model_from_sparse_data(*tables)
        for variable in np.flatnonzero(self.is_whole).tolist():
            program.set_var_integrality(variable, True)
        solver.set_time_limit_in_seconds(max(min(limits.seconds, 1e9), 1e-3))
        seed = f"randomization/randomseedshift = {limits.seed % 2**31}"
        solver.set_solver_specific_parameters(f"numerics/feastol = {PRECISION}\n{seed}")
        thread = threading.Thread(target=solver.solve, args=(program,), daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(POLL_S)
                on_wait()
        finally:
            while thread.is_alive():  # the solver ignores a stop before its search begins
                solver.interrupt_solve()
                thread.join(POLL_S)
        if solver.status() == SolveStatus.INFEASIBLE:
            return SolverAnswer(np.inf)
        values = np.asarray(solver.variable_values()) if solver.has_solution() else None
        return SolverAnswer(solver.best_objective_bound(), solution=values)


class MilpPlacer(ExactPlacer):
    """Work-conserving latency by big-M constraints and order variables; other objectives as in ``cpsat``.

    SCIP gives its answer at its end. If the program is too large to be built within the budget, the warm start is the
    answer.
    """

    name = "milp"
    argument = "the integer program"

    def _latency(self, search: ExactSearch) -> None:
        most = min(MOST_ENTRIES, ENTRIES_PER_S * search.left_s())
        if search.formulation.problem.num_ops > MOST_OPS or num_entries(search.formulation) > most:
            raise OutOfTime
        model = MilpModel(search.formulation, search.horizon_s * (1 + TOLERANCE), check=search.left_s)
        answer = model.linear.solved(search.limits_left, search.wake)
        search.prove(answer.bound * model.unit_s, TOLERANCE)
        if answer.solution is not None:
            search.consider(*model.read(answer.solution))


class MilpModel:
    """The program of a problem, which minimises C, the end of all ops.

    Departures from the paper: edges of one result may differ in size, and the largest that leads to a device counts;
    memory rules may require less than (6), but PEAK is not linear.

    Args:
        horizon_s: Seconds in which some schedule ends; the big M.
        check: Called for every op while rows are built; its exceptions reach the caller.
    """

    def __init__(self, f: Formulation, horizon_s: float, check: Callable[[], object] = lambda: None) -> None:
        p = f.problem
        self._f, self._p = f, p
        self._check = check
        self.unit_s = horizon_s / 1000 if horizon_s > 0 else 1.0
        self._big = horizon_s / self.unit_s * (1 + 1e-9)
        self._time, self._overhead = p.time_s / self.unit_s, p.op_overhead_s / self.unit_s
        self.linear = LinearModel()
        able = [np.flatnonzero(row).tolist() for row in f.allowed]
        self.on = [{d: self.linear.variable(0, 1, is_whole=True) for d in devices} for devices in able]
        for of_op in self.on:  # (1)
            self.linear.row([(x, 1.0) for x in of_op.values()], 1, 1)
        self.start = [self.linear.variable(min(float(s), self._big), self._big) for s in f.heads_s / self.unit_s]
        self._end_after_every_op()
        self._wait_for_inputs()
        self._let_no_ops_overlap()
        self._keep_within_memory()
        for pair in itertools.chain.from_iterable(map(itertools.pairwise, identical_devices(p))):  # symmetries by tasks
            signs = tuple(zip(pair, (1.0, -1.0), strict=True))
            self.linear.row([(on[d], sign) for on in self.on for d, sign in signs if d in on], low=0)

    def _taken(self, i: int) -> list[tuple[int, float]]:
        """Return the terms of the time of op i."""
        return [(x, float(self._time[i, d])) for d, x in self.on[i].items()]

    def _end_after_every_op(self) -> None:
        """Add (2) and, redundantly, the load of each device."""
        self.makespan = self.linear.variable(0, self._big, cost=1.0)
        for i, start in enumerate(self.start):
            self.linear.row([(start, 1.0), *self._taken(i), (self.makespan, -1.0)], high=0)
        for d in range(self._p.num_devices):
            load = [(on[d], float(self._time[i, d])) for i, on in enumerate(self.on) if d in on]
            self.linear.row([*load, (self.makespan, -1.0)], high=0)

    def _wait_for_inputs(self) -> None:
        """Add (3)."""
        for u, consumers in enumerate(self._f.consumers):
            self._check()
            for v, size in consumers.items():
                self.linear.row([(self.start[u], 1.0), *self._taken(u), (self.start[v], -1.0)], high=0)
                self._wait(u, v, size, None)
                for w, larger in consumers.items():
                    if larger > size:
                        self._wait(u, v, larger, w)

    def _wait(self, u: int, v: int, size: float, beside: int | None) -> None:
        """Let v start after u has ended and ``size`` bytes have arrived, if op ``beside``, when given, is with v."""
        cost = np.minimum(self._f.transfer_s(size) / self.unit_s, 2 * self._big)  # twice the horizon never fits
        ends = [(self.start[u], 1.0), *self._taken(u), (self.start[v], -1.0)]
        for a, from_a in self.on[u].items():
            for b, at_b in self.on[v].items():
                if a == b or (beside is not None and b not in self.on[beside]):
                    continue
                literals = [from_a, at_b] if beside is None else [from_a, at_b, self.on[beside][b]]
                gap = float(cost[a, b])  # big enough as big M, since the precedence row holds anyway
                self.linear.row([*ends, *((x, gap) for x in literals)], high=gap * (len(literals) - 1))

    def _let_no_ops_overlap(self) -> None:
        """Add (7) for pairs of ops that no path orders; with overheads for all pairs."""
        apart = self._f.unordered if not self._overhead else np.ones((self._p.num_ops,) * 2, dtype=np.bool_)
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
                self.linear.variable(0, 1, is_whole=True)
            same, j, before = np.full_like(which, i), others[which], first + order
            self._precede(start, on, same, j, device, before, 1.0)
            self._precede(start, on, j, same, device, before, -1.0)

    def _precede(
        self, start: IntArray, on: IntArray, i: IntArray, j: IntArray, d: IntArray, order: IntArray, sign: float
    ) -> None:
        """Let op i end before j starts if both are on d and ``order`` is 1, or 0 if ``sign`` is -1; all are [K]."""
        one, big = np.ones(len(i)), self._big + self._overhead
        hold = self._time[i, d] + self._overhead
        index = np.stack([start[i], on[i, d], start[j], on[j, d], order], axis=1)
        value = np.stack([one, hold + big, -one, big * one, sign * big * one], axis=1)
        self.linear.rows(index, value, big * (3.0 if sign > 0 else 2.0))

    def _keep_within_memory(self) -> None:
        """Add (6) where it can bind, in shares of the memory; ``beside`` is the most that one running op takes."""
        for d, there, capacity in self._f.capacities(self.on):
            unit = float(max(capacity.size, 1))
            beside = self.linear.variable(0, float(capacity.running[there].max()) / unit)
            for i in there:
                if capacity.running[i]:
                    self.linear.row([(self.on[i][d], float(capacity.running[i]) / unit), (beside, -1.0)], high=0)
            resident = [(self.on[i][d], float(capacity.resident[i]) / unit) for i in there]
            self.linear.row([*resident, (beside, 1.0)], high=capacity.size / unit)

    def read(self, values: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return devices [N] and starts [N] in seconds of a solution."""
        device = [max(of_op.items(), key=lambda choice: float(values[choice[1]]))[0] for of_op in self.on]
        return np.array(device), values[self.start] * self.unit_s


def num_entries(f: Formulation) -> int:
    """Return an upper bound on the entries of (3) and (7), nearly the whole program, in O(N^2)."""
    n, d = f.problem.num_ops, f.problem.num_devices
    num_pairs = n * (n - 1) // 2 if f.problem.op_overhead_s else int(f.unordered.sum()) // 2
    num_waits = sum(len(consumers) * (1 + len(set(consumers.values()))) // 2 for consumers in f.consumers)
    return 10 * num_pairs * d + 5 * num_waits * d * d
