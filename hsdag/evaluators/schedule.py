"""Scheduled evaluation: plans are simulated; what exceeds a memory limit fails. Legend: N ops, U units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hsdag.evaluators.base import Evaluator, Score
from hsdag.evaluators.memory import MemoryJudge
from hsdag.ir.graph import IntArray
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import op_ranks
from hsdag.runtime.simulator import Order, Semantics

UNSUPPORTED = "an op is on a device that does not support it"


@dataclass(frozen=True, eq=False)
class ScheduleEvaluator(Evaluator):
    """Simulated values of an objective.

    Plans are of ops, or of units where ``unit_of_op`` gives the unit of each op. The memory of a plan is that of one
    inference. With --order priority, a plan without an order runs in topological order.
    """

    problem: ScheduleProblem
    semantics: Semantics
    objective: Objective = LATENCY
    unit_of_op: IntArray | None = None  # [N]
    is_cheap = True

    @property
    def takes_order(self) -> bool:  # type: ignore[override]
        """Whether the objective depends on the order and none is prescribed."""
        of_plan = self.semantics.order in (None, Order.PRIORITY)
        return of_plan and self.objective.uses_order(self.semantics.execution)

    @property
    def for_workers(self) -> Evaluator:
        """Itself."""
        return self

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """One simulated score per plan; those over memory or on a device that lacks an op fail."""
        if not plans:
            return []
        ops = np.stack([self.devices(plan) for plan in plans])
        ranks = [self.ranks(plan) for plan in plans]
        values, simulated = np.empty(len(plans)), self.objective.simulated
        alike = np.array([each is None for each in ranks], dtype=np.bool_)
        if alike.any():
            values[alike] = simulated(self.problem, ops[alike], self.semantics, None)
        for i in np.flatnonzero(~alike).tolist():
            values[i] = simulated(self.problem, ops[i][None], self.semantics, ranks[i])[0]
        return [self._judged(float(v), *each) for v, *each in zip(values, ops, ranks, strict=True)]

    def devices(self, plan: Plan) -> IntArray:
        """[N] the device of every op."""
        return plan.placement if self.unit_of_op is None else plan.placement[self.unit_of_op]

    def ranks(self, plan: Plan) -> IntArray | None:
        """[N] the ranks that ops run by, smallest first; None where they run by another order."""
        if plan.order is not None and self.takes_order:
            return plan.order if self.unit_of_op is None else op_ranks(self.problem, self.unit_of_op, plan.order)
        return np.argsort(self.problem.topological_order) if self.semantics.order is Order.PRIORITY else None

    def _judged(self, value: float, device: IntArray, ranks: IntArray | None) -> Score:
        if not np.isfinite(value):
            return Score.failed(UNSUPPORTED)
        reason = self._memory.reason(device, ranks)
        return Score(value) if reason is None else Score.failed(reason)

    @cached_property
    def _memory(self) -> MemoryJudge:
        return MemoryJudge(self.problem, self.semantics)
