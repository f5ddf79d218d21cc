"""Evaluate plans of groups of units that share a device, as plans of all units.

Legend: U placement units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.methods.incumbent import Incumbent
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.plan import Plan, op_priority
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
        order = None if plan.priority is None else op_priority(self.inner.costs, self.group, plan.priority)
        return Plan(plan.placement[self.group], order)
