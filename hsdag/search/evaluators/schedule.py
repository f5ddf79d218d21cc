"""Evaluate plans by simulation, as schedules of ops or by the costs of a model under its executor.

Legend: N ops, B plans, U placement units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.objectives import LATENCY, Objective
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan, op_priority
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Order, Semantics
from hsdag.runtime.simulator.simulation import Simulation, simulate
from hsdag.runtime.simulator.values import simulated_values
from hsdag.search.evaluators.base import Evaluator, Score
from hsdag.search.evaluators.memory import MemoryCheck, one_inference

UNSUPPORTED = "an op is on a device that does not support it"
"""Reason of the failure of an illegal plan."""


@dataclass(frozen=True, eq=False)
class ScheduleEvaluator(Evaluator):
    """Evaluator that simulates the schedules of plans; a plan fails if one inference exceeds the memory of a device.

    With the order PRIORITY, a plan without an order runs in topological order.

    Args:
        unit_of_op: [N] the unit of each op if plans are over units; None if they are over ops.
    """

    problem: ScheduleProblem
    semantics: Semantics
    objective: Objective = LATENCY
    unit_of_op: IntArray | None = None  # [N]
    is_cheap = True

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """Return the evaluator of plans over a problem's units. Raises ValueError if the problem has no costs."""
        costs, unit_of_op = problem.simulated
        return cls(costs, problem.semantics, problem.objective, unit_of_op)

    @property
    def takes_order(self) -> bool:  # type: ignore[override]
        """Return whether the objective depends on the order of ops, and plans may choose it."""
        of_plan = self.semantics.order in (None, Order.PRIORITY)
        return of_plan and self.objective.depends_on_order and self.semantics.execution is Execution.WORK_CONSERVING

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Return the score of each plan.

        A plan fails if it exceeds the memory of a device, or uses one that does not support an op.
        """
        if not plans:
            return []
        ops = np.stack([self.devices(plan) for plan in plans])
        priority = [self.priority(plan) for plan in plans]
        values = np.empty(len(plans))
        alike = np.array([ranks is None for ranks in priority], dtype=np.bool_)
        if alike.any():
            values[alike] = simulated_values(self.objective, self.problem, ops[alike], self.semantics, None)
        if not alike.all():
            table = np.stack([ranks for ranks in priority if ranks is not None])
            values[~alike] = simulated_values(self.objective, self.problem, ops[~alike], self.semantics, table)
        return [self._scored(*each) for each in zip(values.tolist(), ops, priority, strict=True)]

    def devices(self, plan: Plan) -> IntArray:
        """Return [N] the device of every op."""
        return plan.placement if self.unit_of_op is None else plan.placement[self.unit_of_op]

    def priority(self, plan: Plan) -> IntArray | None:
        """Return [N] the ranks of ops, the smallest running first; None if the semantics have another order."""
        units, ranks = self.unit_of_op, plan.priority
        if ranks is not None and self.takes_order:
            return ranks if units is None else op_priority(self.problem, units, ranks)
        return np.argsort(self.problem.topological_order) if self.semantics.order is Order.PRIORITY else None

    def run(self, plan: Plan) -> Simulation:
        """Return a simulated inference of a plan."""
        return simulate(self.problem, self.devices(plan), one_inference(self.semantics), self.priority(plan))

    def _scored(self, value: float, device: IntArray, priority: IntArray | None) -> Score:
        if not np.isfinite(value):
            return Score(failure=UNSUPPORTED)
        reason = self._memory.reason(device, priority)
        return Score(value) if reason is None else Score(failure=reason)

    @cached_property
    def _memory(self) -> MemoryCheck:
        return MemoryCheck(self.problem, self.semantics)


@dataclass(frozen=True, eq=False)
class ModelEvaluator(Evaluator):
    """Evaluator of plans by the costs of a model under its executor; a plan that exceeds a memory fails.

    Args:
        scale: Factor of all values, from calibration.
    """

    problem: Problem
    costs: PlacementCosts
    takes_order: bool
    scale: float = 1.0
    is_cheap = True

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Return the simulated score of each plan."""
        return [score_of(value) for value in self.values(plans).tolist()]

    def values(self, plans: Sequence[Plan]) -> FloatArray:
        """Return [B] the simulated values of plans; infinite for one that is illegal or exceeds a device's memory."""
        plans = plans if self.takes_order else [plan.unordered for plan in plans]
        if not plans:
            return np.zeros(0)
        values = self.scale * model_values(self.problem, self.costs, plans)
        units = placements_of(plans, self.problem.num_units)
        values[~self.problem.supported[np.arange(self.problem.num_units), units].all(axis=1)] = np.inf
        if self._memory is not None and self._memory.has_limits:
            legal = np.flatnonzero(np.isfinite(values)).tolist()
            values[[i for i in legal if self._memory.overfull(units[i], plans[i].priority).any()]] = np.inf
        return np.asarray(values, dtype=np.float64)

    @cached_property
    def _memory(self) -> MemoryCheck | None:
        return None if self.problem.costs is None else MemoryCheck(self.problem.costs, self.problem.semantics)


def evaluator_of(problem: Problem) -> Evaluator:
    """Return the evaluator that simulates a problem's plans: by a model's costs if it has them, else as schedules."""
    if problem.ops is None or isinstance(problem.ops, ScheduleProblem):
        return ScheduleEvaluator.of(problem)
    return ModelEvaluator(problem, problem.ops, takes_order=False)


def score_of(value: float) -> Score:
    """Return the score of a simulated value; an infinite value is a failure."""
    return Score(float(value)) if np.isfinite(value) else Score(failure=f"{UNSUPPORTED}, or lacks memory for it")


def placements_of(plans: Sequence[Plan], num_units: int) -> IntArray:
    """Return the placements of plans as one table [B, U]."""
    return np.array([plan.placement for plan in plans], dtype=np.int64).reshape(-1, num_units)


def priorities_of(problem: Problem, plans: Sequence[Plan]) -> list[IntArray | None]:
    """Return [B] the ranks [N] of ops in each plan; None for a plan without an order."""
    return [None if plan.priority is None else problem.expand(plan.priority) for plan in plans]


def model_values(problem: Problem, costs: PlacementCosts, plans: Sequence[Plan]) -> FloatArray:
    """Return [B] the values of plans in the problem's objective, by a model's costs; infinite for an illegal plan."""
    on = problem.expand(placements_of(plans, problem.num_units))
    priority = priorities_of(problem, plans)
    if problem.objective.counts_memory:
        check = MemoryCheck(problem.known_costs, problem.semantics)
        peaks = [
            check.peak_bytes(plan.placement, plan.priority).max() if problem.is_legal(plan.placement) else np.inf
            for plan in plans
        ]
        return costs.values(problem.objective, on, priority, np.array(peaks, dtype=np.float64))
    return costs.values(problem.objective, on, priority)
