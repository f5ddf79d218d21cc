"""ExactPlacer: the base of CP-SAT and the MILP as placers; their schedules are simulated before they count.

Legend: U placement units, D devices.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray, inverse_of
from hsdag.methods.base import O, Placer
from hsdag.methods.exact.batches import BatchSchedule
from hsdag.methods.exact.formulation import Formulation, MemoryRule, generous_horizon_s, memory_can_bind
from hsdag.methods.exact.highs import TOLERANCE
from hsdag.methods.exact.solving import MOST_TICKS, Program
from hsdag.methods.incumbent import GaveUp, Incumbent, Limits, Status
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.bounds import Bound
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Links, Order, simulate
from hsdag.scoring.memory import one_inference

HEURISTICS = ("heft", "cpop", "etf", "m-etf", "mincut", "greedy")
"""Those of a moment, whose best is where an exact method begins."""
MOST_UNITS_FOR_HEURISTICS = 20000
SHARE_OF_HEURISTIC = 0.25
"""What one heuristic may take of the budget that is left when it begins: the rest is for what comes after it."""


class OutOfTime(Exception):  # noqa: N818 - an ending we expect, not an error
    """A model could not be made in time."""


class Judge:
    """Has the schedules of a solver evaluated."""

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent, self.problem, self.costs = incumbent, incumbent.problem, incumbent.costs

    @property
    def best(self) -> Plan | None:
        """The best plan found so far; None before there is one."""
        return self.incumbent.best

    @property
    def best_s(self) -> float:
        """Its value."""
        return self.incumbent.best_score

    def consider_schedule(self, found: BatchSchedule) -> None:
        """Evaluate a schedule of one input."""
        device, start_s = found.of_single
        self.incumbent.consider(device, start_ranks(self.costs, start_s))

    def start_s(self, plan: Plan) -> FloatArray:
        """[U] simulated starts, in the plan's order where it has one."""
        order = None if plan.order is None else Order.PRIORITY
        semantics = replace(one_inference(self.problem.semantics), order=order)
        return simulate(self.costs, plan.placement, semantics, plan.order).start_s

    def wake(self) -> None:
        """Let the evaluator end the search: it is asked, and so is the best plan, where there is one, again."""
        self.incumbent.check()
        if self.best is not None:
            self.incumbent.evaluate([self.best])

    def left_s(self, deadline: float) -> float:
        """Seconds until ``deadline``, a moment of time.monotonic(), for those who make a model.

        Raises OutOfTime where there are none, SearchStopped when the evaluator does.
        """
        self.incumbent.check()
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise OutOfTime
        return left_s

    def warm_start(self) -> None:
        """Consider what is known; else every single device and what the heuristics find, each within its share of what
        time is left."""
        num_units, num_devices = self.problem.num_units, self.problem.num_devices
        if self.incumbent.limits.known:
            self.incumbent.evaluate(self.incumbent.limits.known)
            return
        in_order = inverse_of(self.costs.topological_order)
        fastest = np.nanargmin(self.costs.time_s, axis=1)
        for device in [*(np.full(num_units, d) for d in range(num_devices)), fastest]:
            if self.problem.is_legal(device):
                self.incumbent.consider(device, in_order)
        problem = self.problem
        if problem.semantics.order is Order.PRIORITY:  # a plan without an order of its own runs in topological order
            problem = replace(problem, semantics=replace(problem.semantics, order=None))
        for method in HEURISTICS if num_units <= MOST_UNITS_FOR_HEURISTICS else ():
            limits = replace(self.incumbent.limits, seconds=SHARE_OF_HEURISTIC * self.incumbent.left_s)
            found = make_placer(method).search(problem, self.incumbent, limits).plan
            if found is not None:
                self.incumbent.consider(found.placement, found.order)


def start_ranks(costs: ScheduleProblem, start: np.ndarray) -> IntArray:
    """[U] ranks by start [U]; ties in topological order."""
    position = inverse_of(costs.topological_order)
    return inverse_of(np.lexsort((position, start)))


SHARE_OF_BUDGET = 0.95
"""What a solver may take of the budget: its end has to come before that of the search, so that it can prove."""
ROUNDING = 0.01
"""Share of the tolerance that the limits of HiGHS's own gap, 1e-9, and the rounding of sums may add to it."""


class ExactPlacer(Placer[O]):
    """Begins with the best heuristic, hands over every incumbent, and proves a lower bound as it goes.

    The bound is of all schedules over independent links; other links and the simulator's rule that no device idles
    while an op is ready only make schedules longer. It is known where units are ops: a unit of several ops has a cost
    that is an estimate, and a bound of estimates bounds nothing. The period is the exception: it is a sum. For latency
    the answer comes with an order. Nothing legal is a proof only of units that are ops.
    """

    objectives = ("latency", "throughput")
    gives_order = True
    argument: ClassVar[str]
    """What proves the bound, in a few words."""
    knows_peaks: ClassVar[bool] = False
    is_cut_off = False
    """Whether the last program was not solved to its end; then nothing is proven of the optimum."""
    is_proven_infeasible = False
    """Whether the solver has proven that no placement and no order fits into memory; units are ops then."""

    def _search(self, incumbent: Incumbent) -> Status:
        problem, costs, limits = incumbent.problem, incumbent.costs, incumbent.limits
        judge = Judge(incumbent)
        self.is_cut_off, self.is_proven_infeasible, tolerance = False, False, 0.0
        judge.warm_start()
        is_assignment = not problem.objective.uses_order(problem.semantics.execution)
        for rule in self._rules(costs, problem.semantics.links, is_assignment):
            left_s = limits.seconds * SHARE_OF_BUDGET - incumbent.elapsed_s
            if left_s <= 0:
                self.is_cut_off = True
                break
            formulation = Formulation(costs, rule)
            if not formulation.allowed.any(axis=1).all():
                if judge.best is None:
                    self._prove(formulation, np.inf, judge)
                break
            before_s = judge.best_s
            self._solve(formulation, replace(limits, seconds=left_s), judge, is_assignment)
            self.is_cut_off |= incumbent.elapsed_s >= SHARE_OF_BUDGET * limits.seconds
            if not self.is_cut_off and rule is not MemoryRule.RESERVED:
                tolerance = max(TOLERANCE, 2 * costs.num_ops / MOST_TICKS) * (1 + ROUNDING)
            if judge.best_s < before_s or self.is_proven_infeasible:
                break
        return self._ending(incumbent, tolerance)

    def _ending(self, incumbent: Incumbent, tolerance: float) -> Status:
        """OPTIMAL up to a ``tolerance`` that a finished solver leaves open, a share of the value."""
        if self.is_proven_infeasible:
            return Status.INFEASIBLE
        bound, best_s = incumbent.lower_bound, incumbent.best_score
        least_s = -np.inf if bound is None else bound.value_s
        if incumbent.best is not None and tolerance and best_s - least_s <= tolerance * best_s:
            return Status.OPTIMAL
        if self.is_cut_off:
            return Status.TIME_LIMIT
        if incumbent.best is None:
            raise GaveUp(
                f"method {self.name!r} found no placement that fits into memory; try another method or a larger budget"
            )
        return Status.FEASIBLE

    def _rules(self, costs: ScheduleProblem, links: Links, is_assignment: bool) -> list[MemoryRule]:
        """The rules to solve under: the first gives the bound, a later one an answer that is sure to fit."""
        if not memory_can_bind(costs):
            return [MemoryRule.RUNNING]
        plain = links is Links.INDEPENDENT  # else copies wait, and live for longer or shorter
        first = MemoryRule.PEAK if plain and self.knows_peaks and not is_assignment else MemoryRule.RUNNING
        return [first, MemoryRule.RESERVED]

    def _solve(self, formulation: Formulation, limits: Limits, judge: Judge, is_assignment: bool) -> None:
        """Let a solver run; its bounds are noted as they come, and the evaluator may end it."""
        deadline, horizon_s = time.monotonic() + limits.seconds, horizon_of(formulation.problem, judge)
        try:
            if is_assignment:
                program = self._assignment(formulation, horizon_s, judge, deadline)
            else:
                program = self._latency(formulation, horizon_s, judge, deadline)
            limits = replace(limits, seconds=judge.left_s(deadline))
        except OutOfTime:  # the answer is the warm start
            self.is_cut_off = True
            return
        program.follow(limits, lambda bound_s: self._prove(formulation, bound_s, judge), judge.wake, judge.best_s)

    @abstractmethod
    def _assignment(self, formulation: Formulation, horizon_s: float, judge: Judge, deadline: float) -> Program:
        """The program of an objective without order. Raises OutOfTime as ``_latency`` does."""

    @abstractmethod
    def _latency(self, formulation: Formulation, horizon_s: float, judge: Judge, deadline: float) -> Program:
        """The program of work-conserving latency. Raises OutOfTime after ``deadline``, a moment of time.monotonic()."""

    def _prove(self, formulation: Formulation, bound_s: float, judge: Judge) -> None:
        """Take note of a bound that the solver has proven; none is said to be above what was found.

        It holds where the costs of units are costs of ops, or the objective is a sum of them. Where nothing was found,
        a bound beyond the horizon bounds nothing, and an infinite one is a proof that there is nothing to find: the
        rules of memory but RESERVED ask no more than the simulator does.
        """
        is_exact = are_units_ops(judge.problem) or judge.problem.objective.name == "throughput"
        if not is_exact or formulation.memory is MemoryRule.RESERVED:
            return
        if judge.best is None and bound_s > horizon_of(formulation.problem, judge):
            self.is_proven_infeasible |= are_units_ops(judge.problem) and bool(np.isposinf(bound_s))
            return
        judge.incumbent.prove(Bound(min(bound_s, judge.best_s), self.argument))


def are_units_ops(problem: Problem) -> bool:
    """Whether every unit is one op."""
    return len(np.unique(problem.units.partition.labels)) == len(problem.units.partition.labels)


def horizon_of(costs: ScheduleProblem, judge: Judge) -> float:
    """Seconds in which some schedule ends: the best known, or one op and one transfer after another."""
    return float(judge.best_s) if np.isfinite(judge.best_s) else generous_horizon_s(costs)
