"""BatchIncumbent: the best batched schedule of a search so far, with its bound and its clock.

Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from hsdag.batching.timing import BatchTimer
from hsdag.evaluators.base import SearchStopped
from hsdag.ir.graph import FloatArray, IntArray, inverse_of
from hsdag.placers.exact.batches import BatchedProblem, BatchSchedule


class BatchIncumbent:
    """What methods hand schedules to; ``best_after_s`` is when the best was known, counted from the making."""

    def __init__(
        self, problem: BatchedProblem, budget_s: float, should_stop: Callable[[], bool] = lambda: False, seed: int = 0
    ) -> None:
        self.problem, self.timer, self.seed = problem, BatchTimer(problem), seed
        self.best: BatchSchedule | None = None
        self.best_s, self.bound_s, self.best_after_s = np.inf, 0.0, 0.0
        self.num_considered = 0
        self.hit_limit = False
        self.should_stop, self._begin = should_stop, time.monotonic()
        self._budget_s = budget_s
        self.rank = inverse_of(problem.costs.topological_order)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the making."""
        return time.monotonic() - self._begin

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left, at least 0."""
        return max(self._budget_s - self.elapsed_s, 0.0)

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to find: the best, or the absence of a schedule, is proven."""
        return self.bound_s >= self.best_s

    def wake(self) -> None:
        """Raises SearchStopped when the search was asked to end, or its time is over."""
        if self.should_stop():
            raise SearchStopped
        if self.left_s <= 0:
            self.hit_limit = True
            raise SearchStopped

    def consider(self, device: IntArray, start: FloatArray | None = None) -> float:
        """Time a placement [N, G], its batches in the order of ``start`` [N, D] (breadth-first without), in seconds."""
        order = None if start is None else self.timer.by_start(start, device, self.rank)
        self.num_considered += 1
        value_s = self.timer.makespan_s(device, order)
        if value_s < self.best_s:
            self.best_s, self.best = value_s, self.timer.schedule(device, order)
            self.best_after_s = self.elapsed_s
        return value_s

    def prove(self, bound_s: float) -> None:
        """Take note that no schedule is faster; rounding puts no bound above what was found."""
        self.bound_s = max(self.bound_s, min(bound_s, self.best_s))
