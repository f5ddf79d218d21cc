"""ExactPlacer: what CP-SAT and the MILP have in common as placers. Legend: U placement units, D devices."""

from __future__ import annotations

import time
from abc import abstractmethod

import numpy as np

from hsdag.evaluators.base import Evaluator
from hsdag.ir.errors import SearchError
from hsdag.ir.graph import IntArray
from hsdag.placers.base import Checkpoint, Placer, PlacerSettings
from hsdag.placers.exact.formulation import Formulation, MemoryRule, Symmetry, memory_can_bind
from hsdag.placers.exact.judging import Judge
from hsdag.placers.exact.solving import SolverLimits
from hsdag.placers.exact.ticks import MOST_TICKS
from hsdag.placers.lists.tables import costs_of
from hsdag.runtime.problems.objectives.throughput import THROUGHPUT
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Execution, Links

NUM_WORKERS = 2
SHARE_OF_BUDGET = 0.95
"""What a solver may take of the budget: its end has to come before that of the search, so that its order is kept."""
NO_LIMIT_S = 1e9
TOLERANCE = 1e-6
"""Share up to which a solver that came to its end has proven the optimum: what HiGHS leaves open."""
ROUNDING = 0.01
"""Share of the tolerance that the limits of HiGHS's own gap, 1e-9, and the rounding of sums may add to it."""


class ExactPlacer(Placer):
    """Begins with the best heuristic, hands over every incumbent, and knows a lower bound at any moment.

    The bound is of all schedules over independent links; other links and the simulator's rule that no device idles
    while an op is ready only make schedules longer. For latency the answer comes with an order.
    """

    method: str

    def __init__(self, settings: PlacerSettings, symmetry: Symmetry = Symmetry.TASKS) -> None:
        self._settings, self._symmetry = settings, symmetry
        self._judge: Judge | None = None
        self._bound_s: float | None = None
        self._is_bound_valid = False
        self._are_units_ops = False
        self._tolerance = 0.0
        self.hit_limit = False
        self.is_proven_infeasible = False
        """Whether the solver has proven that no placement and no order fits into memory; units are ops then."""

    @property
    def incumbent(self) -> IntArray | None:
        """[U] the best placement found so far, with the best order known of it; None before there is one."""
        return None if self._judge is None else self._judge.best

    @property
    def best_after_s(self) -> float:
        """Seconds into the search after which the incumbent was known."""
        return 0.0 if self._judge is None else self._judge.best_after_s

    @property
    def lower_bound_s(self) -> float | None:
        """Seconds that no placement and no order is faster than, as far as proven; None where units are not ops.

        A unit of several ops has a cost that is an estimate, and a bound of estimates bounds nothing. The period is
        the exception: it is a sum.
        """
        return self._bound_s

    @property
    def proven_gap(self) -> float:
        """The gap between answer and bound up to which the answer is proven to be the optimum, but for rounding.

        0 before the solver came to its end by itself. Then it is what HiGHS leaves open, or a tick for each op and
        transfer of a path where that is more.
        """
        return self._tolerance

    def ranks(self, placement: IntArray) -> IntArray | None:
        """[U] the order of a placement that was found, smallest first; None where order has no say."""
        return self._judge.ranks(placement) if self._judge is not None else None

    def search(self, problem: Problem, evaluator: Evaluator, checkpoint: Checkpoint | None = None) -> IntArray:  # noqa: ARG002
        """The best placement [U] of the warm start and the solver.

        Raises OptionError when costs are unknown, SearchStopped when the evaluator does, SearchError when nothing
        legal was found, or proven not to exist.
        """
        begin = time.monotonic()
        costs = costs_of(problem, self.method)
        self._judge = judge = Judge(problem, costs, evaluator, self._settings)
        self._is_bound_valid, self._are_units_ops = is_exact(problem), are_units_ops(problem)
        judge.warm_start()
        semantics = self._settings.semantics
        is_assignment = problem.objective is THROUGHPUT or semantics.execution is Execution.SEQUENTIAL
        for rule in self._rules(costs, is_assignment):
            left_s = min(self._settings.budget_s, NO_LIMIT_S) * SHARE_OF_BUDGET - (time.monotonic() - begin)
            if left_s <= 0:
                self.hit_limit = True
                break
            limits = SolverLimits(left_s, NUM_WORKERS, self._settings.seed)
            formulation = Formulation(costs, rule, self._symmetry)
            if not formulation.allowed.any(axis=1).all():
                if judge.best is None:
                    self._prove(formulation, np.inf, judge)
                break
            before_s = judge.best_s
            if is_assignment:
                self._assign(formulation, limits, judge)
            else:
                self._schedule(formulation, limits, judge)
            self.hit_limit = time.monotonic() - begin >= SHARE_OF_BUDGET * self._settings.budget_s
            if not self.hit_limit and rule is not MemoryRule.RESERVED:
                self._tolerance = max(TOLERANCE, 2 * costs.num_ops / MOST_TICKS) * (1 + ROUNDING)
            if judge.best_s < before_s or self.is_proven_infeasible:
                break
        return self._answer(judge)

    def _answer(self, judge: Judge) -> IntArray:
        if judge.best is not None:
            return judge.best
        if self.is_proven_infeasible:
            raise SearchError(f"method {self.method!r} has proven that no placement fits into memory")
        raise SearchError(
            f"method {self.method!r} found no placement that fits into memory; try another method or a larger budget"
        )

    def _rules(self, costs: ScheduleProblem, is_assignment: bool) -> list[MemoryRule]:
        """The rules to solve under: the first gives the bound, a later one an answer that is sure to fit."""
        if not memory_can_bind(costs):
            return [MemoryRule.RUNNING]
        plain = self._settings.semantics.links is Links.INDEPENDENT  # else copies wait, and live for longer or shorter
        first = MemoryRule.PEAK if plain and self.knows_peaks and not is_assignment else MemoryRule.RUNNING
        return [first, MemoryRule.RESERVED]

    knows_peaks = False

    @abstractmethod
    def _assign(self, formulation: Formulation, limits: SolverLimits, judge: Judge) -> None:
        """Solve an objective without order."""

    @abstractmethod
    def _schedule(self, formulation: Formulation, limits: SolverLimits, judge: Judge) -> None:
        """Solve for work-conserving latency."""

    def _prove(self, formulation: Formulation, bound_s: float, judge: Judge) -> None:
        """Take note of a bound that the solver has proven; none is said to be above what was found.

        Where nothing was found, a bound beyond the horizon bounds nothing, and an infinite one is a proof that there
        is nothing to find: the rules of memory but RESERVED ask no more than the simulator does.
        """
        if not self._is_bound_valid or formulation.memory is MemoryRule.RESERVED:
            return
        if judge.best is None and bound_s > horizon_of(formulation.problem, judge):
            self.is_proven_infeasible |= self._are_units_ops and bool(np.isposinf(bound_s))
            return
        self._bound_s = max(self._bound_s or 0.0, min(bound_s, judge.best_s))


def are_units_ops(problem: Problem) -> bool:
    """Whether every unit is one op."""
    return len(np.unique(problem.units.partition.labels)) == len(problem.units.partition.labels)


def is_exact(problem: Problem) -> bool:
    """Whether the costs of units are costs of ops, or the objective a sum of them."""
    return are_units_ops(problem) or problem.objective is THROUGHPUT


def horizon_of(costs: ScheduleProblem, judge: Judge) -> float:
    """Seconds in which some schedule ends: the best known, or one op and one transfer after another."""
    if np.isfinite(judge.best_s):
        return float(judge.best_s)
    off = ~np.eye(costs.num_devices, dtype=np.bool_)
    slowest = (costs.link_latency_s + costs.edge_bytes.max(initial=0.0) / costs.link_bandwidth_bytes_per_s)[off]
    ops_s = float(np.nanmax(costs.time_s, axis=1).sum()) + costs.op_overhead_s * costs.num_ops
    sent_s = float(slowest[np.isfinite(slowest)].max(initial=0.0)) + costs.transfer_overhead_s
    return ops_s + sent_s * len(costs.edge_src) + float(costs.launch_s.max()) * costs.num_ops
