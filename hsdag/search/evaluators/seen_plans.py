"""Plans that a search has simulated, the scores of those that it has measured, and the best of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.problem.plan import Plan
from hsdag.search.evaluators.base import Score
from hsdag.search.evaluators.schedule import score_of

KEPT = 16
"""Keep this many of the best simulated plans for a resumed search."""


class SeenPlans:
    """Plans with their simulated values under the present costs, and the scores of those that were measured.

    Args:
        kept: Promising simulated plans of an earlier part of the search.
        keep: Called with promising simulated plans as soon as they are added.

    Attributes:
        values: Simulated value of each plan, also of those that were measured.
        measured: Score of each plan that was measured.
        num_added: Number of plans that were added.
    """

    def __init__(self, kept: Sequence[Plan] = (), keep: Callable[[Sequence[Plan]], None] = lambda _: None) -> None:
        self.values: dict[Plan, float] = dict.fromkeys(kept, np.inf)
        self.measured: dict[Plan, Score] = {}
        self.num_added = 0
        self._keep = keep
        self._kept = set(kept)
        self._leaders: list[Plan] = []

    def add(self, plans: Sequence[Plan], values: FloatArray) -> None:
        """Add new plans with their simulated values [B]."""
        self.values |= dict(zip(plans, values.tolist(), strict=True))
        self.num_added += len(plans)
        self._keep_promising(plans)

    def revalue(self, values: FloatArray, measured: Mapping[Plan, Score]) -> None:
        """Give all plans, in the order of ``values``, new simulated values [B], and replace the measured scores."""
        self.values = dict(zip(self.values, values.tolist(), strict=True))
        self.measured = dict(measured)
        self._leaders = []
        self._keep_promising([plan for plan in self.values if plan not in self.measured])

    def score(self, plan: Plan) -> Score:
        """Return the measured score of a plan, or its simulated score if it was not measured."""
        return self.measured.get(plan) or score_of(self.values[plan])

    def promising(self, count: int) -> list[Plan]:
        """Return the plans over several devices with the smallest simulated values, not yet measured, best first."""
        return self._least(count, [plan for plan in self.values if plan not in self.measured])

    def best(self, count: int) -> list[Plan]:
        """Return the plans of the smallest values, measured or otherwise simulated, smallest first."""
        values = self.values | {plan: score.value for plan, score in self.measured.items()}
        legal = [plan for plan, value in values.items() if np.isfinite(value)]
        return heapq.nsmallest(count, legal, key=values.__getitem__)

    def _least(self, count: int, plans: Sequence[Plan]) -> list[Plan]:
        """Return the ``count`` plans over several devices of the smallest simulated values, smallest first.

        Of plans that differ only in their order, the best one counts.
        """
        best: dict[Plan, Plan] = {}
        for plan in plans:
            if self.values[plan] < self.values[best.setdefault(plan.unordered, plan)]:
                best[plan.unordered] = plan
        legal = [plan for plan in best.values() if plan.is_split and np.isfinite(self.values[plan])]
        return heapq.nsmallest(count, legal, key=self.values.__getitem__)

    def _keep_promising(self, plans: Sequence[Plan]) -> None:
        """Call ``keep`` with those of the plans that are among the best so far and were not kept before."""
        self._leaders = self._least(KEPT, [*self._leaders, *plans])
        if new := [plan for plan in self._leaders if plan not in self._kept]:
            self._keep(new)
            self._kept |= set(new)
