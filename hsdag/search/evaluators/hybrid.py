"""Evaluate plans in a hybrid way: simulate many, measure the few most promising, and calibrate the costs by those.

Legend: B plans, U placement units.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.evaluators.acquisition import Evidence, Terms, expected_improvement
from hsdag.search.evaluators.base import Evaluator, Score, SearchStopped
from hsdag.search.evaluators.recording import Event, RecordingEvaluator
from hsdag.search.evaluators.schedule import ModelEvaluator, placements_of, priorities_of
from hsdag.search.evaluators.seen_plans import SeenPlans

MOST_CANDIDATES = 512
"""Choose what to measure among at most this many simulated plans, those of the smallest values."""


@dataclass(frozen=True)
class HybridSchedule:
    """The rule for when a search measures, in rounds, and when it stops.

    Args:
        first: Measure for the first time after this many plans, then whenever their number has doubled.
        longest: Measure at the latest after this many plans since the last round.
        share: Measure at the latest after this share of the budget's seconds since the last round.
        measured_each: Measure at most this many plans in a round; 0 means never.
        patience: Stop after this many rounds in a row without a gain; 0 means never.
        gain: A round has a gain if it improves the best value by more than this share.
        most: Stop after this many plans.
    """

    first: float = 500
    longest: int = 2000
    share: float = 0.2
    measured_each: int = 2
    patience: int = 3
    gain: float = 0.005
    most: int = 20_000

    @staticmethod
    def simulated() -> HybridSchedule:
        """Return the rule of a search that measures nothing."""
        return HybridSchedule(measured_each=0)

    @staticmethod
    def between_slices() -> HybridSchedule:
        """Return the rule of a search in slices, whose caller calls ``measure_promising`` after each slice."""
        return HybridSchedule(first=np.inf, share=np.inf, patience=5)


class Rounds:
    """The rounds of measurements of a search: when the next one is due, and how many had no gain.

    Args:
        begin_s: Seconds into the search from which the first round is counted.
    """

    def __init__(self, schedule: HybridSchedule, begin_s: float) -> None:
        self._schedule = schedule
        self._next = schedule.first
        self._last_s = begin_s
        self._num_idle = 0

    @property
    def has_converged(self) -> bool:
        """Return whether the last ``patience`` rounds had no gain."""
        return 0 < self._schedule.patience <= self._num_idle

    def is_due(self, num_plans: int, elapsed_s: float, budget_s: float) -> bool:
        """Return whether a round is due after a number of plans, by the seconds into the search or by that number."""
        return num_plans >= self._next or elapsed_s - self._last_s > self._schedule.share * budget_s

    def set_next(self, num_plans: int, elapsed_s: float) -> None:
        """Set when the next round is due, after one that ended now."""
        self._next = num_plans + min(num_plans, self._schedule.longest)
        self._last_s = elapsed_s

    def count(self, before: float, after: float) -> None:
        """Count a round, with the best measured values before and after it."""
        self._num_idle = 0 if after < (1.0 - self._schedule.gain) * before else self._num_idle + 1


@dataclass(eq=False)
class HybridEvaluator(Evaluator):
    """Evaluator that gives the measured score of a plan that was measured, and the simulated score of any other.

    All measurements so far calibrate the costs. Every round of measurements refines them, simulates all plans again,
    and raises ``version``. Plans that exceed the memory of a device fail.

    Args:
        prior: Costs before calibration, from the profile.
        measured: Evaluator that measures and records, with the search's budget of seconds. Plans that it has recorded
            before count from the start.
        seen: Plans of an earlier part of the search, to which those of this one are added.
        on_round: Called with a line after each round of measurements.
    """

    problem: Problem
    prior: PlacementCosts
    measured: RecordingEvaluator
    schedule: HybridSchedule = field(default_factory=HybridSchedule)
    seen: SeenPlans = field(default_factory=SeenPlans)
    on_round: Callable[[str], None] = lambda _: None
    is_cheap = True

    def __post_init__(self) -> None:
        self.takes_order = self.measured.takes_order
        self.measures = self.schedule.measured_each > 0
        self.rounds = Rounds(self.schedule, self.measured.elapsed_s)
        self._num_spent = 0
        self._recalibrate()

    @property
    def progress(self) -> float:
        """Return the number of plans so far, relative to the most that the rule allows."""
        return self.seen.num_added / self.schedule.most

    @property
    def num_simulated(self) -> int:
        """Return the number of plans simulated so far, here or by methods on their own."""
        return self.seen.num_added + self._num_spent

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Return the score of each plan; measure if a round is due. Raises SearchStopped at the end of the search."""
        self.check()
        scores = self.report(plans)
        if self.rounds.is_due(self.seen.num_added, self.measured.elapsed_s, self.measured.budget.seconds):
            self.measure_promising()
            self.rounds.set_next(self.seen.num_added, self.measured.elapsed_s)
        if self.seen.num_added >= self.schedule.most or self.rounds.has_converged:
            raise SearchStopped
        return scores

    def report(self, plans: Sequence[Plan] = (), *, count: int = 0, bound: Bound | None = None) -> list[Score]:  # noqa: ARG002
        """Return the score of each plan without measuring, whatever the rule and the budget."""
        self._num_spent += count
        plans = plans if self.takes_order else [plan.unordered for plan in plans]
        fresh = [plan for plan in dict.fromkeys(plans) if plan not in self.seen.values]
        self.seen.add(fresh, self.simulated(fresh))
        return [self.seen.score(plan) for plan in plans]

    def check(self) -> None:
        """Raise SearchStopped if the search was stopped or has spent its seconds."""
        self.measured.check()

    def simulated(self, plans: Sequence[Plan]) -> FloatArray:
        """Return [B] the simulated values of plans; infinite for one that is illegal or exceeds a device's memory."""
        return self._model.values(plans)

    @property
    def costs(self) -> PlacementCosts:
        """Return the costs, calibrated by the measurements so far."""
        return self._model.costs

    def measure_promising(self) -> None:
        """Make a round of measurements, and recalibrate the costs.

        Raises SearchStopped if the search has to end, after recalibrating by what was measured until then.
        """
        if not self.schedule.measured_each:
            return
        before = _least_measured(self.measured)
        if chosen := self._chosen():
            try:
                self.measured.evaluate(chosen)
            finally:
                self._recalibrate()
        self.rounds.count(before, _least_measured(self.measured))
        self.on_round(f"{self.num_simulated} placements simulated, {self.measured.num_evaluations} measured")

    def _chosen(self) -> list[Plan]:
        """Return the plans to measure next: those with the largest expected improvements.

        If none is expected to improve, the plan with the smallest simulated value is measured all the same: the
        expectation only knows errors of edges and units, and only measuring shows what boundaries cost.
        """
        if not (candidates := self.seen.promising(MOST_CANDIDATES)):
            return []
        done = [e for e in self.measured.events if e.score.failure is None and e.plan.is_split]
        simulated = self.simulated([event.plan for event in done])
        usable = np.isfinite(simulated)
        measured = np.array([event.score.value for event in done], dtype=np.float64)[usable]
        measured_placements = placements_of([event.plan for event in done], self.problem.num_units)[usable]
        terms = Terms.of(self.problem, self.prior)
        evidence = Evidence(_least_measured(self.measured), measured_placements, measured, simulated[usable], terms)
        values = np.array([self.seen.values[plan] for plan in candidates])
        placements = placements_of(candidates, self.problem.num_units)
        chosen = expected_improvement(placements, values, evidence, self.schedule.measured_each) or [0]
        return [candidates[i] for i in chosen]

    def _recalibrate(self) -> None:
        """Fit the costs to all measurements so far, starting from the profile each time."""
        self.version += 1
        self._model = calibrated(self.problem, self.prior, self.measured.events, takes_order=self.takes_order)
        self.for_workers = self._model
        measured = {event.plan: event.score for event in self.measured.events}
        self.seen.revalue(self.simulated(list(self.seen.values)), measured)


def calibrated(
    problem: Problem, prior: PlacementCosts, events: Sequence[Event], *, takes_order: bool
) -> ModelEvaluator:
    """Return the evaluator by costs that are fitted to measured plans, or by the ``prior`` ones if none succeeded."""
    if not (done := [event for event in events if event.score.failure is None]):
        return ModelEvaluator(problem, prior, takes_order)
    plans = [event.plan for event in done]
    ops = problem.expand(placements_of(plans, problem.num_units))
    measured = np.array([event.score.value for event in done], dtype=np.float64)
    costs, scale = prior.fitted(problem.objective, ops, measured, priorities_of(problem, plans))
    return ModelEvaluator(problem, costs, takes_order, scale)


def _least_measured(recorder: RecordingEvaluator) -> float:
    """Return the smallest measured value; infinite if no plan succeeded."""
    best = recorder.best()
    return best[0].score.value if best else np.inf
