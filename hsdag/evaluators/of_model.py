"""Simulated values of a model's plans under given costs. Legend: B plans, U placement units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hsdag.evaluators.base import Evaluator, Score
from hsdag.evaluators.memory import MemoryJudge
from hsdag.evaluators.schedule import UNSUPPORTED
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem


@dataclass(frozen=True, eq=False)
class ModelEvaluator(Evaluator):
    """What plans of a problem take by the costs of its model, times ``scale``; those that exceed a memory fail."""

    problem: Problem
    costs: PlacementCosts
    takes_order: bool
    scale: float = 1.0
    is_cheap = True

    @property
    def for_workers(self) -> Evaluator:
        """Itself."""
        return self

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """One simulated score per plan."""
        return [score_of(value) for value in self.values(plans).tolist()]

    def values(self, plans: Sequence[Plan]) -> FloatArray:
        """[B] simulated values; infinite where a plan is illegal or too large for a device's memory."""
        plans = plans if self.takes_order else [plan.unordered for plan in plans]
        if not plans:
            return np.zeros(0)
        values = self.scale * model_values(self.problem, self.costs, plans)
        units = placements_of(plans, self.problem.num_units)
        values[~self.problem.supported[np.arange(self.problem.num_units), units].all(axis=1)] = np.inf
        if self._memory is not None and self._memory.has_limits:
            legal = np.flatnonzero(np.isfinite(values)).tolist()
            values[[i for i in legal if self._memory.overfull(units[i], plans[i].order).any()]] = np.inf
        return np.asarray(values, dtype=np.float64)

    @cached_property
    def _memory(self) -> MemoryJudge | None:
        return None if self.problem.costs is None else MemoryJudge(self.problem.costs, self.problem.semantics)


def score_of(value: float) -> Score:
    """The score of a simulated value."""
    return Score(float(value)) if np.isfinite(value) else Score.failed(f"{UNSUPPORTED}, or lacks memory for it")


def placements_of(plans: Sequence[Plan], num_units: int) -> IntArray:
    """[B, U] of plans."""
    return np.array([plan.placement for plan in plans], dtype=np.int64).reshape(-1, num_units)


def ranks_of(problem: Problem, plans: Sequence[Plan]) -> list[IntArray | None]:
    """[B] of [N], None where a plan has no order."""
    return [None if plan.order is None else problem.expand(plan.order) for plan in plans]


def model_values(problem: Problem, costs: PlacementCosts, plans: Sequence[Plan]) -> FloatArray:
    """[B] simulated values of a model's plans for the problem's objective; infinite where one is illegal."""
    units = placements_of(plans, problem.num_units)
    values_of, on, ranks = problem.objective.of_model, problem.expand(units), ranks_of(problem, plans)
    if problem.objective.counts_memory:
        assert problem.costs is not None, "a profile has the sizes, too"
        judge, legal = MemoryJudge(problem.costs, problem.semantics), [problem.is_legal(each) for each in units]
        peaks = [
            judge.peak_bytes(plan.placement, plan.order).max() if is_legal else np.inf
            for plan, is_legal in zip(plans, legal, strict=True)
        ]
        return values_of(costs, on, ranks, np.array(peaks, dtype=np.float64))
    return values_of(costs, on, ranks)  # most objectives know nothing of memory
