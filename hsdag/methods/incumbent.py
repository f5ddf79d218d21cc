"""Incumbent: the best plan of a search so far, its bound and its clock; and how a search ends.

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
from hsdag.scoring.base import Checkpoint, Evaluator, Score, SearchStopped
from hsdag.workers.pool import Pool

LEAST_GAIN = 1e-9
"""Share of the best value that counts as a better plan: less may be rounding."""


class GaveUp(Exception):  # noqa: N818 - an ending we expect, not an error
    """A method ended and found nothing; the reason goes into its result."""


class Status(Enum):
    """How a search ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    TIME_LIMIT = "time-limit"

    @property
    def sentence(self) -> str:
        """The ending in words."""
        return {
            Status.OPTIMAL: "The answer meets the lower bound, but for rounding: no placement and no order is faster.",
            Status.FEASIBLE: "The method finished; a better placement may exist.",
            Status.INFEASIBLE: "No placement fits into the memory of the devices.",
            Status.TIME_LIMIT: "The budget ended the search; a better placement may exist.",
        }[self]


@dataclass(frozen=True)
class Limits:
    """What a search may use beside its evaluations, and the seed of its randomness.

    ``seconds`` are for methods that compute for long without asking the evaluator, ``num_workers`` are threads.
    ``pool`` has workers in other processes, which methods with independent parts use; they have one thread each.
    ``known`` are plans to begin with; ``is_again`` says that they come from a search before this one, under other
    costs, so that a portfolio need not ask for first plans again.
    """

    seconds: float = float("inf")
    num_workers: int = field(default_factory=usable_cpus)
    seed: int = 0
    known: tuple[Plan, ...] = ()
    is_again: bool = False
    pool: Pool | None = None


@dataclass(frozen=True)
class Contribution:
    """What one method of a portfolio did, in seconds of the whole search: the best value before and after it.

    ``failure`` says why it ended without a status.
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
        """The same in a search that began so much before the method's own part of it."""
        return replace(self, began_s=self.began_s + seconds, ended_s=self.ended_s + seconds)


@dataclass(frozen=True, eq=False)
class Result:
    """What a search ends with.

    ``plan`` is the best that the method had evaluated, None before the first success, and ``score`` its value.
    ``lower_bound`` is proven of all plans of the units, whatever their order; None where nothing is. OPTIMAL and
    INFEASIBLE are proofs of the method's own, of its units. ``seconds`` is what it took, ``note`` says why a method
    gave up, ``contributions`` what the methods of a portfolio did, in turn.
    """

    plan: Plan | None
    score: float
    lower_bound: Bound | None
    status: Status
    seconds: float
    note: str = ""
    contributions: tuple[Contribution, ...] = ()


class Incumbent(Evaluator):
    """Evaluates for a method and keeps the best plan, its score, and the largest bound that was proven.

    Where costs were recalibrated since, the best is scored again.
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
        """Of the evaluator."""
        return self.evaluator.version

    @property
    def progress(self) -> float:
        """The share of the evaluations or of the seconds that is spent, whichever is more."""
        return max(self.evaluator.progress, self.elapsed_s / self.limits.seconds)

    @property
    def costs(self) -> ScheduleProblem:
        """The costs of the units, of methods that need them."""
        return self.problem.known_costs

    @property
    def elapsed_s(self) -> float:
        """Seconds of this search."""
        return time.monotonic() - self._begin

    @property
    def left_s(self) -> float:
        """Seconds of the limit that are left, at least 0."""
        return max(self.limits.seconds - self.elapsed_s, 0.0)

    @property
    def evaluations_left(self) -> float:
        """Of the evaluator."""
        return self.evaluator.evaluations_left

    def check(self) -> None:
        """Raise SearchStopped when the evaluator does, or when the limit of seconds is over and a plan was found."""
        self.evaluator.check()
        if self.best is not None and self.elapsed_s >= self.limits.seconds:
            raise SearchStopped

    def is_over(self, share: float = 1.0) -> bool:
        """Whether such a share of the limit of seconds is over. Raises SearchStopped as ``check`` does."""
        self.check()
        return self.elapsed_s >= share * self.limits.seconds

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """One score per plan, in order. Raises SearchStopped as ``check`` does."""
        self.check()
        return self._noted(plans, self.evaluator.evaluate(plans))

    def report(self, plans: Sequence[Plan] = (), *, count: int = 0, bound: Bound | None = None) -> list[Score]:
        """See ``Evaluator``."""
        if bound is not None:
            self.lower_bound = largest(self.lower_bound, bound)
        return self._noted(plans, self.evaluator.report(plans, count=count, bound=bound))

    def _noted(self, plans: Sequence[Plan], scores: list[Score]) -> list[Score]:
        if scores and self.version != self._scored_in and self.best is not None:
            self._scored_in = self.version
            self.best_score = self.evaluator.evaluate([self.best])[0].value
        for plan, score in zip(plans, scores, strict=True):
            if score.value < self.best_score:
                self.best, self.best_score = plan, score.value
        return scores

    def consider(self, placement: IntArray, priority: IntArray | None = None) -> float:
        """The value of a placement [U] with ranks [U]; of cheap evaluations, the smaller of that and without ranks."""
        ordered = [Plan(placement, priority)] if priority is not None and self.takes_order else []
        plans = [*ordered, Plan(placement)] if self.is_cheap or not ordered else ordered
        return min(score.value for score in self.evaluate(plans))

    def concluded(self, search: Callable[[Incumbent], Status]) -> Result:
        """Search through this incumbent until the method ends or the evaluator stops it."""
        try:
            status, note = search(self), ""
        except SearchStopped:
            status, note = Status.TIME_LIMIT, ""
        except GaveUp as reason:
            status, note = Status.FEASIBLE, str(reason)
        found = tuple(self.contributions)
        return Result(self.best, self.best_score, self.lower_bound, status, self.elapsed_s, note, found)
