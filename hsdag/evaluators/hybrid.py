"""Hybrid evaluation: simulate many placements, measure the few that promise most, and learn from those.

Legend: U placement units, B placements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hsdag.evaluators.base import Evaluation, Evaluator, SearchStopped
from hsdag.evaluators.recording import Event, RecordingEvaluator
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.runtime.costs.placement_costs import PlacementCosts
from hsdag.runtime.problems.problem import Problem

ILLEGAL = "an op is on a device that does not support it"


@dataclass(frozen=True)
class HybridPlan:
    """When to measure, and when to stop.

    After ``first`` simulated placements, and again each time their number has doubled but at the latest after
    ``longest`` more or ``share`` of the budget, the ``measured_each`` most promising are measured. The search ends
    after ``patience`` such rounds in a row in which none of them was faster than what was known before by ``gain``,
    or after ``most`` simulated placements. With ``measured_each`` 0 it never measures and ends at ``most``.
    """

    first: int = 500
    longest: int = 2000
    share: float = 0.2
    measured_each: int = 2
    patience: int = 3
    gain: float = 0.005
    most: int = 20_000

    @staticmethod
    def simulated() -> HybridPlan:
        """Nothing is measured during the search."""
        return HybridPlan(measured_each=0)


class HybridEvaluator(Evaluator):
    """Answers with simulated costs, or measured ones where a placement was measured.

    ``measured`` keeps what was measured, and its budget of seconds is the search's. What it holds already, from
    the first guesses or an earlier part of the search, calibrates the costs from the start; every round of
    measurements refines them, so the same placement may cost something else later.
    """

    def __init__(
        self,
        problem: Problem,
        costs: PlacementCosts,
        measured: RecordingEvaluator,
        plan: HybridPlan | None = None,
        *,
        on_round: Callable[[int, int], None] = lambda _simulated, _measured: None,
    ) -> None:
        self.num_simulated = 0
        self.costs = costs
        self._prior = costs
        self._problem = problem
        self._measured = measured
        self._plan = plan or HybridPlan()
        self._on_round = on_round
        self._seen: dict[bytes, IntArray] = {}
        self._known: dict[bytes, float] = {}
        self._failed: dict[bytes, Evaluation] = {}
        self._scale = 1.0
        self._next_round = self._plan.first
        self._round_s = measured.elapsed_s
        self._idle_rounds = 0
        self.recalibrate()

    def evaluate(self, placements: Sequence[IntArray]) -> list[Evaluation]:
        """One evaluation per placement. Raises SearchStopped when the plan or the budget says so."""
        self.check()
        fresh = [np.ascontiguousarray(p, dtype=np.int64) for p in placements]
        for placement in fresh:
            key = placement.tobytes()
            if key not in self._seen:
                self._seen[key] = placement
                self.num_simulated += 1
        answers = [self._answer(p.tobytes(), s) for p, s in zip(fresh, self.simulated_s(fresh), strict=True)]
        waited_s = self._measured.elapsed_s - self._round_s
        if self.num_simulated >= self._next_round or waited_s > self._plan.share * self._measured.budget.seconds:
            self.measure_promising(self._plan.measured_each)
            self._next_round = self.num_simulated + min(self.num_simulated, self._plan.longest)
            self._round_s = self._measured.elapsed_s
            self._on_round(self.num_simulated, self._measured.num_evaluations)
        if self.num_simulated >= self._plan.most or 0 < self._plan.patience <= self._idle_rounds:
            raise SearchStopped
        return answers

    def check(self) -> None:
        """Raise SearchStopped when the budget is spent."""
        self._measured.check()

    @property
    def events(self) -> Sequence[Event]:
        """What was measured so far."""
        return self._measured.events

    def simulated_s(self, placements: Sequence[IntArray]) -> FloatArray:
        """[B] simulated seconds of placements [U]; infinite where one is illegal."""
        if not len(placements):
            return np.zeros(0)
        ops = self._problem.expand(np.stack(placements))
        return self._scale * self._problem.objective.of_model(self.costs, ops)

    def promising(self, count: int) -> list[IntArray]:
        """The placements [U] over several devices with the least simulated cost that were not measured, best first."""
        open_ones = [p for key, p in self._seen.items() if key not in self._known and key not in self._failed]
        open_ones = [p for p in open_ones if len(np.unique(p)) > 1]
        if not open_ones or count <= 0:
            return []
        cost_s = self.simulated_s(open_ones)
        order = [i for i in np.argsort(cost_s, kind="stable")[:count].tolist() if np.isfinite(cost_s[i])]
        return [open_ones[i] for i in order]

    def measure_promising(self, count: int) -> None:
        """Measure the ``count`` most promising placements and recalibrate. Raises SearchStopped with the budget."""
        before_s = self._best_s()
        chosen = self.promising(count)
        try:
            self._measured.evaluate(chosen)
        finally:
            self.recalibrate()
        gained = self._best_s() < (1.0 - self._plan.gain) * before_s
        if chosen:
            self._idle_rounds = 0 if gained else self._idle_rounds + 1

    def recalibrate(self) -> None:
        """Fit the costs to all that was measured so far, starting from the profile each time."""
        events = self._measured.events
        self._known = {e.placement.tobytes(): e.evaluation.latency_s for e in events if e.evaluation.latency_s}
        self._failed = {e.placement.tobytes(): e.evaluation for e in events if not e.evaluation.latency_s}
        if not self._known:
            return
        done = [e for e in events if e.evaluation.latency_s]
        ops = self._problem.expand(np.stack([e.placement for e in done]))
        measured_s = np.array([e.evaluation.latency_s for e in done], dtype=np.float64)
        self.costs, self._scale = self._problem.objective.calibrated(self._prior, ops, measured_s)

    def _best_s(self) -> float:
        best = self._measured.best()
        return best[0].evaluation.seconds if best else np.inf

    def _answer(self, key: bytes, simulated_s: float) -> Evaluation:
        if key in self._failed:
            return self._failed[key]
        seconds = self._known.get(key, float(simulated_s))
        return Evaluation(seconds) if np.isfinite(seconds) else Evaluation(None, ILLEGAL)
