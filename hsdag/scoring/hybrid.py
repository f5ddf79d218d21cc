"""Hybrid evaluation: simulate many plans, measure the most promising few, learn from those.

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
from hsdag.scoring.acquisition import Evidence, Terms, expected_improvement
from hsdag.scoring.base import Evaluator, Score, SearchStopped
from hsdag.scoring.recording import RecordingEvaluator
from hsdag.scoring.schedule import ModelEvaluator, placements_of, priorities_of, score_of

KEPT = 16
"""Number of promising simulated plans: what is no worse than these is kept for a resumed search."""

MOST_CANDIDATES = 512
"""Simulated plans, those of the least values, among which is chosen what to measure."""


@dataclass(frozen=True)
class HybridSchedule:
    """When to measure, and when to stop.

    After ``first`` plans that were asked about, and again each time their number has doubled but at the latest after
    ``longest`` more or ``share`` of the budget, at most ``measured_each`` are measured. The search ends
    after ``patience`` such rounds in a row in which none of them was better than what was known before by ``gain``,
    or after ``most`` plans. With ``measured_each`` 0 it never measures and ends at ``most``.
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
        """Nothing is measured during the search."""
        return HybridSchedule(measured_each=0)

    @staticmethod
    def between_slices() -> HybridSchedule:
        """For searches in slices, after each of which ``measure_promising`` is called."""
        return HybridSchedule(first=np.inf, share=np.inf, patience=5)


@dataclass(eq=False)
class HybridEvaluator(Evaluator):
    """Answers with simulated values, or measured ones where a plan was measured.

    ``measured`` keeps what was measured, and its budget of seconds is the search's. What it holds already, from
    the first guesses or an earlier part of the search, calibrates the costs from the start; every round of
    measurements refines them, has all plans seen so far simulated again, and raises ``version``. ``keep`` hears of
    promising simulated plans before their scores are reported; ``kept`` are those of an earlier part of the search.
    Plans that exceed the memory of a device fail.
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
        self._seen = dict.fromkeys(kept, np.inf)  # the value under the present costs
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
        """The share of the plans that may be asked about."""
        return self._num_asked / self.schedule.most

    @property
    def num_simulated(self) -> int:
        """Plans simulated so far, here or by a method itself."""
        return self._num_asked + self._num_spent

    @property
    def has_converged(self) -> bool:
        """Whether the last rounds of measurements found nothing better."""
        return 0 < self.schedule.patience <= self._idle_rounds

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """One score per plan. Raises SearchStopped when the schedule or the budget says so."""
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
        """One score per plan, whatever the schedule and the budget; nothing is measured."""
        self._num_spent += count
        plans = plans if self.takes_order else [plan.unordered for plan in plans]
        fresh = [plan for plan in dict.fromkeys(plans) if plan not in self._seen]
        self._seen |= dict(zip(fresh, self.simulated(fresh).tolist(), strict=True))
        self._num_asked += len(fresh)
        self._keep_promising(fresh)
        return [self._known.get(plan) or score_of(self._seen[plan]) for plan in plans]

    def check(self) -> None:
        """Raise SearchStopped when the budget is spent."""
        self.measured.check()

    def simulated(self, plans: Sequence[Plan]) -> FloatArray:
        """[B] simulated values; infinite where a plan is illegal or too large for a device's memory."""
        return self._model.values(plans)

    @property
    def costs(self) -> PlacementCosts:
        """As the measurements so far have it."""
        return self._model.costs

    def promising(self, count: int) -> list[Plan]:
        """The plans over several devices with the least simulated value that were not measured, best first."""
        return self._least(count, [plan for plan in self._seen if plan not in self._known])

    def best(self, count: int) -> list[Plan]:
        """The plans of the least values, measured or else simulated, least first."""
        values = self._seen | {plan: score.value for plan, score in self._known.items()}
        legal = [plan for plan, value in values.items() if np.isfinite(value)]
        return heapq.nsmallest(count, legal, key=values.__getitem__)

    def measure_promising(self) -> None:
        """Measure what the rule chooses of the most promising plans, and recalibrate. Raises SearchStopped."""
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
        """What to measure next: what is expected to improve on the best, else the least simulated value.

        For the expectation knows no errors of costs but those of its terms, and only measuring shows what boundaries
        cost.
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
        """The simulated plans over several devices of the least values, least first, with the best order of each."""
        best: dict[Plan, Plan] = {}
        for plan in plans:
            if self._seen[plan] < self._seen[best.setdefault(plan.unordered, plan)]:
                best[plan.unordered] = plan
        legal = [plan for plan in best.values() if plan.is_split and np.isfinite(self._seen[plan])]
        return heapq.nsmallest(count, legal, key=self._seen.__getitem__)

    def _keep_promising(self, plans: Sequence[Plan]) -> None:
        """Hand over those that are among the best so far, before anything else can happen to them."""
        self._leaders = self._least(KEPT, [*self._leaders, *plans])
        if new := [plan for plan in self._leaders if plan not in self._kept]:
            self.keep(new)
            self._kept |= set(new)

    def _recalibrate(self) -> None:
        """Fit the costs to all that was measured so far, starting from the profile each time."""
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
