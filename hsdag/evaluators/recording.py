"""Recording: caches evaluations, writes each one down, keeps the best, and ends a search in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hsdag.evaluators.base import Evaluation, Evaluator, SearchStopped
from hsdag.ir.graph import IntArray


@dataclass(frozen=True, eq=False)
class Event:
    """One evaluated placement [U]: what it cost, and how many seconds into the search it was known."""

    placement: IntArray
    evaluation: Evaluation
    elapsed_s: float


class Journal(Protocol):
    """Where events are kept."""

    def append(self, event: Event) -> None:
        """Keep an event, durably."""


@dataclass(frozen=True)
class Budget:
    """What a search may spend: seconds in all, counted over resumed parts, and evaluations."""

    seconds: float = float("inf")
    evaluations: float = float("inf")


class RecordingEvaluator(Evaluator):
    """Wraps an evaluator: no placement is evaluated twice, and nothing found is lost.

    ``past`` are events of an earlier part of the same search; they answer from the cache and their time
    counts against the budget.
    """

    def __init__(
        self,
        inner: Evaluator,
        budget: Budget,
        journal: Journal,
        past: Sequence[Event] = (),
        *,
        should_stop: Callable[[], bool] = lambda: False,
        on_event: Callable[[Event], None] = lambda _: None,
    ) -> None:
        self.budget = budget
        self.events: list[Event] = list(past)
        self._inner = inner
        self._journal = journal
        self._cache = {event.placement.tobytes(): event.evaluation for event in past}
        self._spent_s = max((event.elapsed_s for event in past), default=0.0)
        self._begin = time.monotonic()
        self._should_stop = should_stop
        self._on_event = on_event

    @property
    def elapsed_s(self) -> float:
        """Seconds of search so far, earlier parts included."""
        return self._spent_s + time.monotonic() - self._begin

    @property
    def num_evaluations(self) -> int:
        """Distinct placements evaluated, earlier parts included."""
        return len(self.events)

    def best(self, count: int = 1) -> list[Event]:
        """The fastest events, fastest first; fewer where fewer succeeded."""
        done = [event for event in self.events if event.evaluation.latency_s is not None]
        return sorted(done, key=lambda event: event.evaluation.latency_s or np.inf)[:count]

    def evaluate(self, placements: Sequence[IntArray]) -> list[Evaluation]:
        """Evaluate those placements that are new. Raises SearchStopped at the end of the budget."""
        return [self._one(np.ascontiguousarray(placement, dtype=np.int64)) for placement in placements]

    def _one(self, placement: IntArray) -> Evaluation:
        key = placement.tobytes()
        known = self._cache.get(key)
        if self._should_stop() or self.elapsed_s >= self.budget.seconds:
            raise SearchStopped
        if known is not None:
            return known
        if self.num_evaluations >= self.budget.evaluations:
            raise SearchStopped
        evaluation = self._inner.evaluate([placement])[0]
        event = Event(placement, evaluation, self.elapsed_s)
        self._journal.append(event)
        self._cache[key] = evaluation
        self.events.append(event)
        self._on_event(event)
        return evaluation
