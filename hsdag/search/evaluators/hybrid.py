"""Evaluate plans in a hybrid way: simulate many, measure the few most promising, and calibrate the costs by those.

Legend: B plans, U placement units.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.placement_costs import PlacementCosts
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.evaluators.acquisition import Evidence, Terms, expected_improvement
from hsdag.search.evaluators.base import Evaluator, Score, SearchStopped
from hsdag.search.evaluators.recording import RecordingEvaluator
from hsdag.search.evaluators.schedule import ModelEvaluator, placements_of, priorities_of, score_of

KEPT = 16
"""Keep this many of the best simulated plans for a resumed search."""

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


@dataclass(eq=False)
class HybridEvaluator(Evaluator):
    """Evaluator that gives the measured score of a plan that was measured, and the simulated score of any other.

    All measurements so far calibrate the costs. Every round of measurements refines them, simulates all plans again,
    and raises ``version``. Plans that exceed the memory of a device fail.

    Args:
        prior: Costs before calibration, from the profile.
        measured: Evaluator that measures and records, with the search's budget of seconds. Plans that it has recorded
            before count from the start.
        kept: Promising simulated plans of an earlier part of the search.
        keep: Called with promising simulated plans before their scores are returned.
        on_round: Called with a line after each round of measurements.
    """

    problem: Problem
    prior: PlacementCosts
    measured: RecordingEvaluator
    schedule: HybridSchedule = field(default_factory=HybridSchedule)
    kept: InitVar[Sequence[Plan]] = ()
    keep: Callable[[Sequence[Plan]], None] = lambda _: None
    on_round: Callable[[str], None] = lambda _: None
    is_cheap = True

    def __post_init__(self, kept: Sequence[Plan]) -> None:
        self.takes_order = self.measured.takes_order
        self._model = ModelEvaluator(self.problem, self.prior, self.takes_order)
        self.measures = self.schedule.measured_each > 0
        self._kept = set(kept)
        self._seen = dict.fromkeys(kept, np.inf)  # value of each plan under the present costs
        self._known: dict[Plan, Score] = {}
        self._leaders: list[Plan] = []
        self._num_asked, self._num_spent, self._idle_rounds = 0, 0, 0
        self._next_round = self.schedule.first
        self._round_s = self.measured.elapsed_s
        graph, labels = self.problem.units.graph, self.problem.units.partition.labels
        times_s = np.nan_to_num(self.prior.costs.time_s).T
        columns = [np.bincount(labels, column, self.problem.num_units) for column in times_s]
        self._terms = Terms(graph.edge_src, graph.edge_dst, np.stack(columns, axis=1).astype(np.float64))
        self._recalibrate()

    @property
    def progress(self) -> float:
        """Return the number of plans so far, relative to the most that the rule allows."""
        return self._num_asked / self.schedule.most

    @property
    def num_simulated(self) -> int:
        """Return the number of plans simulated so far, here or by methods on their own."""
        return self._num_asked + self._num_spent

    @property
    def has_converged(self) -> bool:
        """Return whether the last ``patience`` rounds of measurements had no gain."""
        return 0 < self.schedule.patience <= self._idle_rounds

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Return the score of each plan; measure if a round is due. Raises SearchStopped at the end of the search."""
        self.check()
        scores = self.report(plans)
        waited_s = self.measured.elapsed_s - self._round_s
        if self._num_asked >= self._next_round or waited_s > self.schedule.share * self.measured.budget.seconds:
            self.measure_promising()
            self._next_round = self._num_asked + min(self._num_asked, self.schedule.longest)
            self._round_s = self.measured.elapsed_s
        if self._num_asked >= self.schedule.most or self.has_converged:
            raise SearchStopped
        return scores

    def report(self, plans: Sequence[Plan] = (), *, count: int = 0, bound: Bound | None = None) -> list[Score]:  # noqa: ARG002
        """Return the score of each plan without measuring, whatever the rule and the budget."""
        self._num_spent += count
        plans = plans if self.takes_order else [plan.unordered for plan in plans]
        fresh = [plan for plan in dict.fromkeys(plans) if plan not in self._seen]
        self._seen |= dict(zip(fresh, self.simulated(fresh).tolist(), strict=True))
        self._num_asked += len(fresh)
        self._keep_promising(fresh)
        return [self._known.get(plan) or score_of(self._seen[plan]) for plan in plans]

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

    def promising(self, count: int) -> list[Plan]:
        """Return the plans over several devices with the smallest simulated values, not yet measured, best first."""
        return self._least(count, [plan for plan in self._seen if plan not in self._known])

    def best(self, count: int) -> list[Plan]:
        """Return the plans of the smallest values, measured or otherwise simulated, smallest first."""
        values = self._seen | {plan: score.value for plan, score in self._known.items()}
        legal = [plan for plan, value in values.items() if np.isfinite(value)]
        return heapq.nsmallest(count, legal, key=values.__getitem__)

    def measure_promising(self) -> None:
        """Make a round of measurements, and recalibrate the costs.

        Raises SearchStopped if the search has to end, after recalibrating by what was measured until then.
        """
        if not self.schedule.measured_each:
            return
        before = self._best()
        if chosen := self._chosen():
            try:
                self.measured.evaluate(chosen)
            finally:
                self._recalibrate()
        self._idle_rounds = 0 if self._best() < (1.0 - self.schedule.gain) * before else self._idle_rounds + 1
        self.on_round(f"{self.num_simulated} placements simulated, {self.measured.num_evaluations} measured")

    def _chosen(self) -> list[Plan]:
        """Return the plans to measure next: those with the largest expected improvements.

        If none is expected to improve, the plan with the smallest simulated value is measured all the same: the
        expectation only knows errors of edges and units, and only measuring shows what boundaries cost.
        """
        if not (candidates := self.promising(MOST_CANDIDATES)):
            return []
        done = [e for e in self.measured.events if e.score.failure is None and e.plan.is_split]
        simulated = self.simulated([event.plan for event in done])
        usable = np.isfinite(simulated)
        measured = np.array([event.score.value for event in done], dtype=np.float64)[usable]
        known = placements_of([event.plan for event in done], self.problem.num_units)[usable]
        evidence = Evidence(self._best(), known, measured, simulated[usable], self._terms)
        values = np.array([self._seen[plan] for plan in candidates])
        placements = placements_of(candidates, self.problem.num_units)
        chosen = expected_improvement(placements, values, evidence, self.schedule.measured_each) or [0]
        return [candidates[i] for i in chosen]

    def _least(self, count: int, plans: Sequence[Plan]) -> list[Plan]:
        """Return the ``count`` plans over several devices of the smallest simulated values, smallest first.

        Of plans that differ only in their order, the best one counts.
        """
        best: dict[Plan, Plan] = {}
        for plan in plans:
            if self._seen[plan] < self._seen[best.setdefault(plan.unordered, plan)]:
                best[plan.unordered] = plan
        legal = [plan for plan in best.values() if plan.is_split and np.isfinite(self._seen[plan])]
        return heapq.nsmallest(count, legal, key=self._seen.__getitem__)

    def _keep_promising(self, plans: Sequence[Plan]) -> None:
        """Call ``keep`` with those of the plans that are among the best so far and were not kept before."""
        self._leaders = self._least(KEPT, [*self._leaders, *plans])
        if new := [plan for plan in self._leaders if plan not in self._kept]:
            self.keep(new)
            self._kept |= set(new)

    def _recalibrate(self) -> None:
        """Fit the costs to all measurements so far, starting from the profile each time."""
        self.version += 1
        self._known = {event.plan: event.score for event in self.measured.events}
        if done := [event for event in self.measured.events if event.score.failure is None]:
            ops = self.problem.expand(placements_of([event.plan for event in done], self.problem.num_units))
            priority = priorities_of(self.problem, [event.plan for event in done])
            measured = np.array([event.score.value for event in done], dtype=np.float64)
            costs, scale = self.prior.fitted(self.problem.objective, ops, measured, priority)
            self._model = replace(self._model, costs=costs, scale=scale)
        self.for_workers = self._model
        seen = list(self._seen)
        self._seen = dict(zip(seen, self.simulated(seen).tolist(), strict=True))
        self._leaders = []
        self._keep_promising([plan for plan in seen if plan not in self._known])

    def _best(self) -> float:
        best = self.measured.best()
        return best[0].score.value if best else np.inf
