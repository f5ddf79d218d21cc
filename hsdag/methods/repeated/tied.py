"""Reduce a problem to groups of units that share a device, and evaluate their plans as plans of all units.

Legend: N ops, U placement units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsdag.ir.graph.computation_graph import IntArray, inverse_of
from hsdag.methods.incumbent import Incumbent
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.base import Evaluator, Score


@dataclass(frozen=True, eq=False)
class Expanded(Evaluator):
    """Evaluator of plans of groups by the plans of their units; bounds of the smaller problem are not passed on."""

    inner: Incumbent
    group: IntArray  # [U] group of each unit
    is_cheap = True

    @property
    def takes_order(self) -> bool:  # type: ignore[override]
        """Return whether the evaluator of the units takes orders."""
        return self.inner.takes_order

    @property
    def evaluations_left(self) -> float:
        """Return the number of evaluations that are left, infinite without a limit."""
        return self.inner.evaluations_left

    def check(self) -> None:
        """Raise SearchStopped when the evaluator of the units does."""
        self.inner.check()

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Return one score per plan, in order."""
        return self.inner.evaluate([self._plan(plan) for plan in plans])

    def report(self, plans: Sequence[Plan] = (), *, count: int = 0, bound: Bound | None = None) -> list[Score]:  # noqa: ARG002
        """Report plans and a number of evaluations; see ``Evaluator``."""
        return self.inner.report([self._plan(plan) for plan in plans], count=count)

    def _plan(self, plan: Plan) -> Plan:
        order = None if plan.priority is None else plan.priority[self.group]
        if order is not None:
            order = inverse_of(np.lexsort((inverse_of(self.inner.costs.topological_order), order)))
        return Plan(plan.placement[self.group], order)


def tied_problem(costs: ScheduleProblem, group: IntArray, problem: Problem) -> Problem:
    """Return the problem with these costs in which each group of ops is one unit, valued as in ``problem``.

    Args:
        group: Group of each op [N]; an op with a negative number is a unit by itself.
    """
    labels = replace(costs.labels, colocate=tuple(f"group {g}" if g >= 0 else "" for g in group.tolist()))
    return problem_of(replace(costs, labels=labels), problem.objective, problem.semantics)
