"""What draws that exceed a device's memory are worth, and what they become when ops move to devices with room."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.memory_repair import repaired
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.simulator.values import simulated_values
from hsdag.search.evaluators.memory import MemoryCheck


class LimitedMemory:
    """Values and repairs of plans that exceed a limited memory, for a problem whose costs are known.

    Without values of failed draws, a policy of which no draw fits would learn nothing.

    Args:
        penalised: Function from the simulated value of a plan, the bytes by which it exceeds each memory [D], negative
            where it fits, and the memories [D], to the plan's value.
    """

    def __init__(self, problem: Problem, penalised: Callable[[float, FloatArray, FloatArray], float]) -> None:
        self._problem, self._penalised = problem, penalised
        self._check = MemoryCheck(problem.known_costs, problem.semantics)

    def value(self, plan: Plan) -> float:
        """Return the value of a plan that failed because it exceeds a memory; NaN if it failed for another reason."""
        problem, costs = self._problem, self._problem.known_costs
        if not problem.is_legal(plan.placement):
            return float("nan")
        over_bytes = self._check.peak_bytes(plan.placement, plan.priority) - costs.memory_bytes
        semantics = self._check.optional_ranks
        ranks = plan.priority if semantics.order is None else None
        value = float(simulated_values(problem.objective, costs, plan.placement[None], semantics, ranks)[0])
        is_over = over_bytes.max() > 0 and np.isfinite(value)
        return self._penalised(value, over_bytes, costs.memory_bytes) if is_over else float("nan")

    def values(self, plans: Sequence[Plan], values: FloatArray) -> FloatArray:
        """Return values [B] of plans, of which those that failed, NaN, have the value of ``value``."""
        pairs = zip(plans, values, strict=True)
        return np.array([self.value(plan) if np.isnan(value) else value for plan, value in pairs])

    def repaired(self, plans: Sequence[Plan]) -> list[Plan]:
        """Return plans whose ops were moved to devices with room, without their order where that takes too much."""
        costs, semantics = self._problem.known_costs, self._problem.semantics
        fitting = []
        for plan in plans:
            placement = repaired(costs, plan.placement, semantics)
            fits = not self._check.overfull(placement, plan.priority).any()
            fitting.append(Plan(placement, plan.priority if fits else None))
        return fitting
