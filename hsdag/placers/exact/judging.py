"""Judging schedules of exact methods: every one is simulated before it counts, with the ranks it comes with.

Legend: U placement units, D devices.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from hsdag.evaluators.memory import one_inference
from hsdag.ir.graph import FloatArray, IntArray, inverse_of
from hsdag.placers.exact.batches import BatchSchedule
from hsdag.placers.incumbent import Incumbent
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Order, simulate

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

    def simulated_s(self, device: IntArray, ranks: IntArray) -> float:
        """Seconds that a placement [U] takes in the order of ``ranks`` [U], whether it fits into memory or not."""
        semantics = replace(self.problem.semantics, order=Order.PRIORITY)
        return float(self.problem.objective.simulated(self.costs, device[None], semantics, ranks)[0])

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
