"""Base class of methods whose solver proves bounds; their schedules are simulated before they count.

Legend: U placement units, D devices.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray, inverse_of
from hsdag.methods.base import NoOptions, Placer
from hsdag.methods.exact.assignment import AssignmentModel
from hsdag.methods.exact.formulation import Formulation, MemoryRule, generous_horizon_s, memory_can_bind
from hsdag.methods.exact.solving import MOST_TICKS, CpSatModel, T, Ticks, solve_model
from hsdag.methods.incumbent import GaveUp, Incumbent, Limits, Status
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Order
from hsdag.runtime.simulator.simulation import simulate
from hsdag.search.evaluators.memory import one_inference

HEURISTICS = ("heft", "mincut", "greedy")
"""Fast heuristics, the best result of which is where an exact method begins."""
MOST_UNITS_FOR_HEURISTICS = 20000
"""Skip the heuristics for problems with more units."""
SHARE_OF_HEURISTIC = 0.25
"""Share of the remaining budget that one heuristic may take when it begins."""
SHARE_OF_BUDGET = 0.95
"""Share of the budget that a solver may take; it must end before the search does, so that it can prove its bound."""
TOLERANCE = 1e-6
"""Relative error of SCIP, by which its bounds are lowered."""
ROUNDING = 0.01
"""Share of the tolerance by which SCIP's own gap limit, 1e-9, and rounding of sums may exceed it."""


class OutOfTime(Exception):  # noqa: N818 - an ending we expect, not an error
    """A model could not be built in time."""


class ExactSearch:
    """A search by programs: the incumbent, to which solutions and bounds are reported, and the program being solved.

    ``argument`` says what proves bounds. ``is_cut_off`` says that the last program was not solved to its end, so that
    nothing is proven about the optimum. ``is_proven_infeasible`` says that no placement fits into memory in any order.
    """

    def __init__(self, incumbent: Incumbent, argument: str) -> None:
        self.incumbent = incumbent
        self._argument = argument
        self.is_cut_off = self.is_proven_infeasible = False
        partition = incumbent.problem.units.partition
        self.are_units_ops = len(np.unique(partition.labels)) == len(partition.labels)

    def begin(self, formulation: Formulation, seconds: float) -> None:
        """Begin a program that is to be solved within ``seconds``.

        Sets ``horizon_s``, in which some schedule ends: the best known one, or all ops and transfers one after another.
        """
        best_s = self.incumbent.best_score
        self.formulation = formulation
        self.deadline = time.monotonic() + seconds
        self.horizon_s = float(best_s) if np.isfinite(best_s) else generous_horizon_s(formulation.problem)

    @property
    def limits_left(self) -> Limits:
        """Return the limits of a solver that begins now. Raises what ``left_s`` does."""
        return replace(self.incumbent.limits, seconds=self.left_s())

    def left_s(self) -> float:
        """Return the seconds left for the program. Raises OutOfTime at its end, and what the evaluator's check does."""
        self.incumbent.check()
        if (left_s := self.deadline - time.monotonic()) <= 0:
            raise OutOfTime
        return left_s

    def wake(self) -> None:
        """Let the evaluator stop the search: call it, and evaluate the best plan again if there is one."""
        self.incumbent.check()
        if self.incumbent.best is not None:
            self.incumbent.evaluate([self.incumbent.best])

    def consider(self, device: IntArray, start_s: FloatArray) -> None:
        """Have a schedule of devices [U] and starts [U] in seconds evaluated; ties are in topological order."""
        position = inverse_of(self.incumbent.costs.topological_order)
        self.incumbent.consider(device, inverse_of(np.lexsort((position, start_s))))

    def starts_s(self, plan: Plan) -> FloatArray:
        """Return the simulated starts [U] in seconds, in the plan's order if it has one."""
        order = None if plan.priority is None else Order.PRIORITY
        semantics = replace(one_inference(self.incumbent.problem.semantics), order=order)
        return simulate(self.incumbent.costs, plan.placement, semantics, plan.priority).start_s

    def prove(self, bound_s: float, tolerance: float = 0.0) -> None:
        """Report a bound that the solver has proven up to ``tolerance``, at most the best value.

        The bound holds if the costs of units are costs of ops, or the objective is a sum of them. While nothing was
        found, a bound beyond the horizon is ignored, except that an infinite one proves that there is nothing to find:
        memory rules other than RESERVED require no more than the simulator does.
        """
        incumbent = self.incumbent
        is_exact = self.are_units_ops or incumbent.problem.objective.name == "throughput"
        if not is_exact or self.formulation.memory is MemoryRule.RESERVED:
            return
        if incumbent.best is None and bound_s > self.horizon_s:
            self.is_proven_infeasible |= self.are_units_ops and bool(np.isposinf(bound_s))
            return
        incumbent.report(bound=Bound(min(bound_s, incumbent.best_score) * (1 - tolerance), self._argument))

    def solve(self, model: CpSatModel[T], ticks: Ticks, on_solution: Callable[[T], object]) -> None:
        """Solve a model, pass its solutions to ``on_solution``, and report its bounds."""

        def on_wait(bound: float) -> None:
            self.prove(bound * ticks.length_s)
            self.wake()

        self.prove(solve_model(model, self.limits_left, on_solution, on_wait).bound * ticks.length_s)


def warm_start(incumbent: Incumbent) -> None:
    """Consider known plans, or else every single device and the results of heuristics.

    Each heuristic gets its share of the remaining time.
    """
    problem, costs = incumbent.problem, incumbent.costs
    if incumbent.limits.known:
        incumbent.evaluate(incumbent.limits.known)
        return
    in_order = inverse_of(costs.topological_order)
    alone = (np.full(problem.num_units, d) for d in range(problem.num_devices))
    for device in [*alone, np.nanargmin(costs.time_s, axis=1)]:
        if problem.is_legal(device):
            incumbent.consider(device, in_order)
    if problem.semantics.order is Order.PRIORITY:  # plans without priorities run in topological order
        problem = replace(problem, semantics=replace(problem.semantics, order=None))
    for method in HEURISTICS if problem.num_units <= MOST_UNITS_FOR_HEURISTICS else ():
        limits = replace(incumbent.limits, seconds=SHARE_OF_HEURISTIC * incumbent.left_s)
        if (plan := make_placer(method).search(problem, incumbent, limits).plan) is not None:
            incumbent.consider(plan.placement, plan.priority)


class ExactPlacer(Placer[NoOptions]):
    """A method that begins with the best heuristic, reports every incumbent, and proves a lower bound as it runs.

    The bound holds for all schedules over independent links; other links, and the simulator's rule that no device idles
    while an op is ready, only make schedules longer. It exists where units are ops: the cost of a unit of several ops
    is an estimate, which proves nothing, except for the period, which is a sum. For latency the answer has an order.
    That no placement is feasible is proven only if units are ops.
    """

    objectives = ("latency", "throughput")
    gives_order = True
    argument: ClassVar[str]
    """What proves the bound, in a few words."""
    knows_peaks: ClassVar[bool] = False

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:
        make_placer("mincut").prepare(problem, takes_order=takes_order)

    def _search(self, incumbent: Incumbent) -> Status:
        problem, costs = incumbent.problem, incumbent.costs
        tolerance = 0.0
        warm_start(incumbent)
        search = ExactSearch(incumbent, self.argument)
        is_assignment = not (
            problem.objective.depends_on_order and problem.semantics.execution is Execution.WORK_CONSERVING
        )
        for rule in self._rules(problem, is_assignment=is_assignment):
            if (left_s := incumbent.limits.seconds * SHARE_OF_BUDGET - incumbent.elapsed_s) <= 0:
                search.is_cut_off = True
                break
            before_s = incumbent.best_score
            search.begin(Formulation(costs, rule), left_s)
            if not search.formulation.allowed.any(axis=1).all():
                if incumbent.best is None:
                    search.prove(np.inf)
                break
            try:
                (self._assignment if is_assignment else self._latency)(search)
            except OutOfTime:  # the warm start remains the answer
                search.is_cut_off = True
            search.is_cut_off |= incumbent.elapsed_s >= SHARE_OF_BUDGET * incumbent.limits.seconds
            if not search.is_cut_off and rule is not MemoryRule.RESERVED:
                tolerance = max(TOLERANCE, 2 * costs.num_ops / MOST_TICKS) * (1 + ROUNDING)
            if incumbent.best_score < before_s or search.is_proven_infeasible:
                break
        return self._ending(search, tolerance)

    def _ending(self, search: ExactSearch, tolerance: float) -> Status:
        """Return the status; it is OPTIMAL if bound and value differ by at most ``tolerance``, a share of the value."""
        if search.is_proven_infeasible:
            return Status.INFEASIBLE
        bound, best_s = search.incumbent.lower_bound, search.incumbent.best_score
        least_s = -np.inf if bound is None else bound.value
        if search.incumbent.best is not None and tolerance and best_s - least_s <= tolerance * best_s:
            return Status.OPTIMAL
        if search.is_cut_off:
            return Status.TIME_LIMIT
        if search.incumbent.best is None:
            raise GaveUp(
                f"method {self.name!r} found no placement that fits into memory; try another method or a larger budget"
            )
        return Status.FEASIBLE

    def _rules(self, problem: Problem, *, is_assignment: bool) -> list[MemoryRule]:
        """Return the memory rules to solve under: the first gives the bound, a later one an answer that surely fits."""
        if not memory_can_bind(problem.known_costs):
            return [MemoryRule.RUNNING]
        knows_lives = problem.semantics.links is LinkSharing.INDEPENDENT  # on other links copies wait
        first = MemoryRule.PEAK if knows_lives and self.knows_peaks and not is_assignment else MemoryRule.RUNNING
        return [first, MemoryRule.RESERVED]

    def _assignment(self, search: ExactSearch) -> None:
        """Solve an objective that does not depend on order, as an assignment program; see docs/exact.md.

        Raises OutOfTime as ``_latency`` does.
        """
        ticks = Ticks.choose(search.formulation.durations_s, search.horizon_s)
        most = int(ticks.down(search.horizon_s)) + 1
        model = AssignmentModel(search.formulation, search.incumbent.problem, ticks, most, search.left_s)
        if search.incumbent.best is not None:
            model.hint_devices(search.incumbent.best.placement)
        search.solve(model, ticks, search.incumbent.consider)

    @abstractmethod
    def _latency(self, search: ExactSearch) -> None:
        """Solve the program of work-conserving latency. Raises OutOfTime if it cannot be built in time."""
