"""Tied units: ops that share a device are one unit of a smaller problem, whose plans are scored as those of all units.

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
from hsdag.scoring.base import Evaluator, Score


@dataclass(frozen=True, eq=False)
class Expanded(Evaluator):
    """Scores of plans of groups, as plans of units; bounds of the former say nothing of the latter."""

    inner: Incumbent
    group: IntArray  # [U]
    is_cheap = True

    @property
    def takes_order(self) -> bool:  # type: ignore[override]
        """As the units' evaluator does."""
        return self.inner.takes_order

    @property
    def evaluations_left(self) -> float:
        """Of the units' evaluator."""
        return self.inner.evaluations_left

    def check(self) -> None:
        """See ``Evaluator``."""
        self.inner.check()

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """One score per plan."""
        return self.inner.evaluate([self._plan(plan) for plan in plans])

    def report(self, plans: Sequence[Plan] = (), *, count: int = 0, bound: Bound | None = None) -> list[Score]:  # noqa: ARG002
        """See ``Evaluator``."""
        return self.inner.report([self._plan(plan) for plan in plans], count=count)

    def _plan(self, plan: Plan) -> Plan:
        order = None if plan.priority is None else plan.priority[self.group]
        if order is not None:
            order = inverse_of(np.lexsort((inverse_of(self.inner.costs.topological_order), order)))
        return Plan(plan.placement[self.group], order)


def tied(costs: ScheduleProblem, group: IntArray, problem: Problem) -> Problem:
    """The problem of these costs, judged as ``problem`` is, with the ops of one ``group`` [N] as one unit.

    Below 0 an op is a unit by itself.
    """
    labels = replace(costs.labels, colocate=tuple(f"group {g}" if g >= 0 else "" for g in group.tolist()))
    return problem_of(replace(costs, labels=labels), problem.objective, problem.semantics)
