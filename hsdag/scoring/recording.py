"""Recording: caches scores, records each one, keeps the best, and ends a search in time."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np

from hsdag.runtime.problem.bounds.simple import Bound, largest
from hsdag.runtime.problem.plan import Plan
from hsdag.scoring.base import Evaluator, Score, SearchStopped


@dataclass(frozen=True, eq=False)
class Event:
    """One evaluated plan: its score, and how many seconds into the search it was known."""

    plan: Plan
    score: Score
    elapsed_s: float


@dataclass(frozen=True)
class Budget:
    """What a search may spend: seconds in all, counted over resumed parts, and evaluations."""

    seconds: float = float("inf")
    evaluations: float = float("inf")


@dataclass(eq=False)
class RecordingEvaluator(Evaluator):
    """Wraps an evaluator: no plan is evaluated twice, and nothing found is lost.

    ``on_event`` hears of every evaluated plan before its score is told. ``past`` are events of an earlier part of the
    same search; they answer from the cache and their time counts against the budget. Where the order of plans does not
    matter, it is left out.
    """

    inner: Evaluator
    budget: Budget = field(default_factory=Budget)
    past: InitVar[Sequence[Event]] = ()
    should_stop: Callable[[], bool] = lambda: False
    on_event: Callable[[Event], None] = lambda _: None

    def __post_init__(self, past: Sequence[Event]) -> None:
        self.events: list[Event] = []
        self.is_cheap, self.takes_order = self.inner.is_cheap, self.inner.takes_order
        self.for_workers = self.inner if self.inner.is_cheap else None
        self.improvements: list[Event] = []  # each better than all before it
        self._num_spent = 0
        self.bound: Bound | None = None
        self._cache: dict[Plan, Score] = {}
        for event in past:
            self._note(event)
        self._spent_s = max((event.elapsed_s for event in past), default=0.0)
        self._begin = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds of search so far, earlier parts included."""
        return self._spent_s + time.monotonic() - self._begin

    @property
    def num_evaluations(self) -> int:
        """Distinct plans evaluated, earlier parts included, and those that methods have simulated by themselves."""
        return len(self.events) + self._num_spent

    @property
    def evaluations_left(self) -> float:
        """Evaluations that the budget leaves."""
        return max(self.budget.evaluations - self.num_evaluations, 0)

    @property
    def progress(self) -> float:
        """The share of the evaluations that is spent; where each takes long, that of the seconds if it is more."""
        of_evaluations = self.num_evaluations / self.budget.evaluations
        return of_evaluations if self.is_cheap else max(of_evaluations, self.elapsed_s / self.budget.seconds)

    def check(self) -> None:
        """Raise SearchStopped when the search has to end."""
        if self.should_stop() or self.elapsed_s >= self.budget.seconds:
            raise SearchStopped

    def best(self, count: int = 1) -> list[Event]:
        """The events of the least values, least first; fewer where fewer succeeded."""
        if count == 1:  # asked after every event
            return self.improvements[-1:]
        done = [event for event in self.events if event.score.failure is None]
        return heapq.nsmallest(count, done, key=lambda event: event.score.value)

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Evaluate those plans that are new. Raises SearchStopped at the end of the budget."""
        return self._evaluate(plans, self.check, self.budget.evaluations)

    def evaluate_all(self, plans: Sequence[Plan]) -> list[Score]:
        """The same whatever the budget."""
        return self._evaluate(plans, lambda: None, np.inf)

    def report(self, plans: Sequence[Plan] = (), *, count: int = 0, bound: Bound | None = None) -> list[Score]:
        """The same whatever the budget, and without counting again; the largest bound is kept."""
        if bound is not None:
            self.bound = largest(self.bound, bound)
        before = self.num_evaluations
        scores = self.evaluate_all(plans)
        self._num_spent = before + count - len(self.events)
        return scores

    def _evaluate(self, plans: Sequence[Plan], check: Callable[[], None], most: float) -> list[Score]:
        plans = plans if self.takes_order else [plan.unordered for plan in plans]
        check()
        waiting = list(dict.fromkeys(plan for plan in plans if plan not in self._cache))
        while waiting:
            check()
            if (room := min(most - self.num_evaluations, len(waiting) if self.is_cheap else 1)) < 1:
                raise SearchStopped
            some, waiting = waiting[: int(room)], waiting[int(room) :]
            for plan, score in zip(some, self.inner.evaluate(some), strict=True):
                event = Event(plan, score, self.elapsed_s)
                self._note(event)
                self.on_event(event)
        return [self._cache[plan] for plan in plans]

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self._cache[event.plan] = event.score
        if event.score.value < (self.improvements[-1].score.value if self.improvements else np.inf):
            self.improvements.append(event)
