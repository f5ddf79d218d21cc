"""Recording: caches evaluations, writes each one down, keeps the best, and ends a search in time."""

from __future__ import annotations

import heapq
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
        self._best: Event | None = None
        for event in self.events:
            self._note(event)
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

    def check(self) -> None:
        """Raise SearchStopped when the search has to end."""
        if self._should_stop() or self.elapsed_s >= self.budget.seconds:
            raise SearchStopped

    def best(self, count: int = 1) -> list[Event]:
        """The fastest events, fastest first; fewer where fewer succeeded."""
        if count == 1:  # asked after every event
            return [] if self._best is None else [self._best]
        done = [event for event in self.events if event.evaluation.latency_s is not None]
        return heapq.nsmallest(count, done, key=lambda event: event.evaluation.seconds)

    def evaluate(self, placements: Sequence[IntArray]) -> list[Evaluation]:
        """Evaluate those placements that are new. Raises SearchStopped at the end of the budget."""
        keyed = [(p.tobytes(), p) for p in (np.ascontiguousarray(p, dtype=np.int64) for p in placements)]
        self.check()
        fresh = {key: placement for key, placement in keyed if key not in self._cache}
        waiting = list(fresh.items())
        while waiting:
            self.check()
            room = min(self.budget.evaluations - self.num_evaluations, self._inner.batch)
            if room < 1:
                raise SearchStopped
            self._keep(waiting[: int(room)])
            waiting = waiting[int(room) :]
        return [self._cache[key] for key, _ in keyed]

    def _keep(self, items: Sequence[tuple[bytes, IntArray]]) -> None:
        """Evaluate and write down."""
        placements = [placement for _, placement in items]
        for (key, placement), evaluation in zip(items, self._inner.evaluate(placements), strict=True):
            event = Event(placement, evaluation, self.elapsed_s)
            self._journal.append(event)
            self._cache[key] = evaluation
            self.events.append(event)
            self._note(event)
            self._on_event(event)

    def _note(self, event: Event) -> None:
        known_s = np.inf if self._best is None else self._best.evaluation.seconds
        if event.evaluation.seconds < known_s:
            self._best = event
