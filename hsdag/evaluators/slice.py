"""Slice: another evaluator for so many seconds."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hsdag.evaluators.base import Evaluator, Score, SearchStopped
from hsdag.runtime.problems.bounds import Bound
from hsdag.runtime.problems.plan import Plan


class Slice(Evaluator):
    """Asks ``inner`` until ``seconds`` are over, and then ends the search that asks."""

    def __init__(self, inner: Evaluator, seconds: float) -> None:
        self._inner, self._seconds, self._begin_s = inner, seconds, time.monotonic()
        self.is_cheap, self.takes_order = inner.is_cheap, inner.takes_order

    @property
    def version(self) -> int:  # type: ignore[override]
        """Of the inner evaluator."""
        return self._inner.version

    @property
    def progress(self) -> float:
        """The share of the slice that is over, or of the inner evaluator's budget if it is more."""
        return max(self._inner.progress, (time.monotonic() - self._begin_s) / self._seconds)

    @property
    def evaluations_left(self) -> float:
        """Of the inner evaluator."""
        return self._inner.evaluations_left

    @property
    def for_workers(self) -> Evaluator | None:
        """Of the inner evaluator."""
        return self._inner.for_workers

    def check(self) -> None:
        """Raise SearchStopped when the slice or the whole search is over."""
        self._inner.check()
        if time.monotonic() - self._begin_s >= self._seconds:
            raise SearchStopped

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """One score per plan. Raises SearchStopped when the slice or the whole search is over."""
        self.check()
        return self._inner.evaluate(plans)

    def report(self, plans: Sequence[Plan]) -> list[Score]:
        """One score per plan, of the inner evaluator."""
        return self._inner.report(plans)

    def prove(self, bound: Bound) -> None:
        """Tell the inner evaluator."""
        self._inner.prove(bound)

    def spend(self, count: int) -> None:
        """Have the inner evaluator count."""
        self._inner.spend(count)
