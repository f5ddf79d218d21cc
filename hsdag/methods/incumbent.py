"""Incumbent of a search (the best plan so far, its bound and its clock), limits of a search, and its result.

Legend: U placement units, B plans.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.runtime.machine.usable import usable_cpus
from hsdag.runtime.problem.bounds.simple import Bound, largest
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.evaluators.base import Checkpoint, Evaluator, Score, SearchStopped
from hsdag.workers.pool import Pool

LEAST_GAIN = 1e-9
"""Share of the best value by which a plan must be better to count as a gain; less may be rounding."""


class GaveUp(Exception):  # noqa: N818 - an ending we expect, not an error
    """End of a method that found nothing; the reason goes into its result."""


class Status(Enum):
    """Ending of a search."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    TIME_LIMIT = "time-limit"

    @property
    def sentence(self) -> str:
        """Return the ending in words."""
        return {
            Status.OPTIMAL: "The answer meets the lower bound, but for rounding: no placement and no order is faster.",
            Status.FEASIBLE: "The method finished; a better placement may exist.",
            Status.INFEASIBLE: "No placement fits into the memory of the devices.",
            Status.TIME_LIMIT: "The budget ended the search; a better placement may exist.",
        }[self]


@dataclass(frozen=True)
class Limits:
    """Limits of a search other than the number of evaluations, its seed and its first plans.

    Attributes:
        seconds: Time limit, which methods check that compute for long without the evaluator.
        num_workers: Number of threads.
        known: Plans to begin with.
        is_again: Whether ``known`` comes from an earlier search with other costs, so that a portfolio need not compute
            first plans again.
        pool: Worker processes of one thread each, for methods with independent parts.
    """

    seconds: float = float("inf")
    num_workers: int = field(default_factory=usable_cpus)
    seed: int = 0
    known: tuple[Plan, ...] = ()
    is_again: bool = False
    pool: Pool | None = None


@dataclass(frozen=True)
class Contribution:
    """Contribution of one method of a portfolio.

    Attributes:
        began_s: Start, in seconds since the search began.
        ended_s: End, in seconds since the search began.
        before: Best value of the search before the method, in the objective's unit.
        after: Best value of the search after the method.
        failure: Why the method ended without a status; None if it did not.
    """

    method: str
    began_s: float
    ended_s: float
    before: float
    after: float
    bound: Bound | None
    status: Status | None
    failure: str | None

    def later(self, seconds: float) -> Contribution:
        """Return the contribution with times counted from ``seconds`` earlier."""
        return replace(self, began_s=self.began_s + seconds, ended_s=self.ended_s + seconds)


@dataclass(frozen=True, eq=False)
class Result:
    """Result of a search.

    Attributes:
        plan: Best evaluated plan; None if none was evaluated.
        score: Value of the plan, in the objective's unit.
        lower_bound: Proven lower bound of all plans of the units in any order; None if there is none.
        status: Ending of the search; OPTIMAL and INFEASIBLE are proven by the method, for its units.
        seconds: Duration of the search.
        note: Why the method gave up; empty if it did not.
        contributions: Contributions of the methods of a portfolio, in turn.
    """

    plan: Plan | None
    score: float
    lower_bound: Bound | None
    status: Status
    seconds: float
    note: str = ""
    contributions: tuple[Contribution, ...] = ()


class Incumbent(Evaluator):
    """Evaluator for a method that keeps the best plan, its value, and the largest proven bound.

    When costs have been recalibrated, the best plan is evaluated again.
    """

    def __init__(
        self, problem: Problem, evaluator: Evaluator, limits: Limits, checkpoint: Checkpoint | None = None
    ) -> None:
        self.problem = problem
        self.evaluator = evaluator
        self.limits = limits
        self.checkpoint = checkpoint
        self.is_cheap, self.takes_order = evaluator.is_cheap, evaluator.takes_order
        self.best: Plan | None = None
        self.best_score = np.inf
        self.lower_bound: Bound | None = None
        self.contributions: list[Contribution] = []
        self._begin = time.monotonic()
        self._scored_in = evaluator.version

    @property
    def version(self) -> int:  # type: ignore[override]
        """Return the version of the evaluator's costs."""
        return self.evaluator.version

    @property
    def progress(self) -> float:
        """Return the share of the evaluations or of the seconds that is spent, whichever is larger."""
        return max(self.evaluator.progress, self.elapsed_s / self.limits.seconds)

    @property
    def costs(self) -> ScheduleProblem:
        """Return the costs of the units, for methods that need them."""
        return self.problem.known_costs

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since this search began."""
        return time.monotonic() - self._begin

    @property
    def left_s(self) -> float:
        """Return the seconds that are left of the limit, at least 0."""
        return max(self.limits.seconds - self.elapsed_s, 0.0)

    @property
    def evaluations_left(self) -> float:
        """Return the number of evaluations that are left, infinite without a limit."""
        return self.evaluator.evaluations_left

    def check(self) -> None:
        """Raise SearchStopped when the evaluator does, or when the limit of seconds has passed and a plan is found."""
        self.evaluator.check()
        if self.best is not None and self.elapsed_s >= self.limits.seconds:
            raise SearchStopped

    def is_over(self, share: float = 1.0) -> bool:
        """Return whether this share of the limit of seconds has passed. Raises SearchStopped as ``check`` does."""
        self.check()
        return self.elapsed_s >= share * self.limits.seconds

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Return one score per plan, in order. Raises SearchStopped as ``check`` does."""
        self.check()
        return self._noted(plans, self.evaluator.evaluate(plans))

    def report(self, plans: Sequence[Plan] = (), *, count: int = 0, bound: Bound | None = None) -> list[Score]:
        """Report plans, a number of evaluations or a proven bound; see ``Evaluator``."""
        if bound is not None:
            self.lower_bound = largest(self.lower_bound, bound)
        return self._noted(plans, self.evaluator.report(plans, count=count, bound=bound))

    def _noted(self, plans: Sequence[Plan], scores: list[Score]) -> list[Score]:
        """Keep the best of the plans [B] if it is better than the best so far, and return the scores [B]."""
        if scores and self.version != self._scored_in and self.best is not None:
            self._scored_in = self.version
            self.best_score = self.evaluator.evaluate([self.best])[0].value
        for plan, score in zip(plans, scores, strict=True):
            if score.value < self.best_score:
                self.best, self.best_score = plan, score.value
        return scores

    def consider(self, placement: IntArray, priority: IntArray | None = None) -> float:
        """Evaluate a placement [U] with ranks [U], and also without them if evaluations are cheap.

        Return the smaller value, in the objective's unit.
        """
        ordered = [Plan(placement, priority)] if priority is not None and self.takes_order else []
        plans = [*ordered, Plan(placement)] if self.is_cheap or not ordered else ordered
        return min(score.value for score in self.evaluate(plans))

    def concluded(self, search: Callable[[Incumbent], Status]) -> Result:
        """Run a search through this incumbent until it ends or the evaluator stops it, and return its result."""
        try:
            status, note = search(self), ""
        except SearchStopped:
            status, note = Status.TIME_LIMIT, ""
        except GaveUp as reason:
            status, note = Status.FEASIBLE, str(reason)
        contributions = tuple(self.contributions)
        return Result(self.best, self.best_score, self.lower_bound, status, self.elapsed_s, note, contributions)
