"""Record the scores of a search: evaluate no plan twice, keep the best, and stop at the end of the budget."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np

from hsdag.runtime.problem.bounds.simple import Bound, largest
from hsdag.runtime.problem.plan import Plan
from hsdag.search.evaluators.base import Evaluator, Score, SearchStopped


@dataclass(frozen=True, eq=False)
class Event:
    """An evaluated plan, its score, and the seconds into the search at which the score was known."""

    plan: Plan
    score: Score
    elapsed_s: float


@dataclass(frozen=True)
class Budget:
    """The limits of a search, its resumed parts included: seconds, and number of evaluations."""

    seconds: float = float("inf")
    evaluations: float = float("inf")


@dataclass(eq=False)
class RecordingEvaluator(Evaluator):
    """Evaluator that records each score of another, evaluates no plan twice, and keeps to a budget.

    If scores do not depend on the order of plans, the order is dropped, and plans that differ in nothing else are one.

    Args:
        inner: Evaluator of the plans.
        past: Events of an earlier part of the same search: their plans are not evaluated again, and their time counts
            against the budget.
        should_stop: Returns whether the search should stop.
        on_event: Called with every evaluated plan before its score is returned.
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
        self.improvements: list[Event] = []  # each is better than all events before it
        self._num_spent = 0
        self.bound: Bound | None = None
        self._cache: dict[Plan, Score] = {}
        for event in past:
            self._note(event)
        self._begin_s = time.monotonic() - max((event.elapsed_s for event in past), default=0.0)

    @property
    def elapsed_s(self) -> float:
        """Return the seconds of the search so far, earlier parts included."""
        return time.monotonic() - self._begin_s

    @property
    def num_evaluations(self) -> int:
        """Return the number of distinct plans evaluated, in earlier parts or by methods on their own included."""
        return len(self.events) + self._num_spent

    @property
    def evaluations_left(self) -> float:
        """Return the number of evaluations left in the budget."""
        return max(self.budget.evaluations - self.num_evaluations, 0)

    @property
    def progress(self) -> float:
        """Return the spent share of the evaluations; if each takes long, of the seconds if that share is larger."""
        of_evaluations = self.num_evaluations / self.budget.evaluations
        return of_evaluations if self.is_cheap else max(of_evaluations, self.elapsed_s / self.budget.seconds)

    def check(self) -> None:
        """Raise SearchStopped if the search was stopped or has spent its seconds."""
        if self.should_stop() or self.elapsed_s >= self.budget.seconds:
            raise SearchStopped

    def best(self, count: int = 1) -> list[Event]:
        """Return the ``count`` events of the smallest values, smallest first; fewer if fewer plans succeeded."""
        if count == 1:  # a quick answer, as it is needed after every event
            return self.improvements[-1:]
        done = [event for event in self.events if event.score.failure is None]
        return heapq.nsmallest(count, done, key=lambda event: event.score.value)

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Return the score of each plan, evaluating new ones. Raises SearchStopped at the end of the budget."""
        return self._evaluate(plans, self.check, self.budget.evaluations)

    def evaluate_all(self, plans: Sequence[Plan]) -> list[Score]:
        """Return the score of each plan, evaluating new ones whatever the budget."""
        return self._evaluate(plans, lambda: None, np.inf)

    def report(self, plans: Sequence[Plan] = (), *, count: int = 0, bound: Bound | None = None) -> list[Score]:
        """Record what a method has found by simulating on its own, and return the scores of ``plans``.

        Plans are evaluated whatever the budget; ``count`` evaluations are added, those of ``plans`` not once more.
        Of all bounds, the largest is kept.
        """
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
