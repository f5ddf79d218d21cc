"""Define what an evaluator is: it scores plans under an objective, by simulating or by measuring them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.plan import Plan

if TYPE_CHECKING:
    import torch


class SearchStopped(Exception):  # noqa: N818 - an ending we expect, not an error
    """Raised inside a search when its budget is spent or the user interrupts it; results so far are kept."""


@dataclass(frozen=True)
class Score:
    """The value of one plan in the objective's unit, or an infinite value and the reason of the failure."""

    value: float = math.inf
    failure: str | None = None

    def __post_init__(self) -> None:
        if math.isfinite(self.value) == (self.failure is not None):
            raise ValueError("a score has either a finite value or a failure")


class Evaluator(ABC):
    """Base of objects that score plans of placement units.

    Attributes:
        is_cheap: Whether plans are simulated: thousands can be evaluated, best many at a time. Otherwise each takes
            long, and is recorded on its own.
        measures: Whether some of the evaluated plans are measured.
        takes_order: Whether the score of a plan depends on its order.
        version: Number that changes when costs are recalibrated; scores from before are then out of date.
        for_workers: Evaluator that gives the same simulated scores in another process, without a budget; None if
            plans are measured.
    """

    is_cheap: bool = False
    measures: bool = False
    takes_order: bool = False
    version: int = 0
    for_workers: Evaluator | None = None

    @property
    def progress(self) -> float:
        """Return the spent share of the budget, from 0 to 1; 0 without a budget."""
        return 0.0

    @property
    def evaluations_left(self) -> float:
        """Return the number of evaluations left in the budget; infinite if it does not limit them."""
        return math.inf

    def report(self, plans: Sequence[Plan] = (), *, count: int = 0, bound: Bound | None = None) -> list[Score]:  # noqa: ARG002
        """Record what a method has found by simulating on its own, and return the scores of ``plans``.

        This is possible whatever the budget.

        Args:
            plans: The best plans found.
            count: Number of plans that the method has simulated, to be counted as evaluations.
            bound: Lower bound on the value of any plan of the units.
        """
        return self.evaluate(plans)

    def check(self) -> None:  # noqa: B027 - most evaluators have no end of their own
        """Raise SearchStopped if the search has to end; methods call this during long computations."""

    @abstractmethod
    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Return the score of each plan, in order. Raises SearchStopped if the search has to end."""


class Checkpoint(Protocol):
    """Protocol of a store for the state of a method, from which a search can be resumed.

    The state is a table of tensors by name, and a mapping that JSON can express.
    """

    def save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Replace the stored state."""

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """Return the stored state; None if nothing was stored yet."""


@dataclass(frozen=True)
class SearchMeasurement:
    """The rule by which a placement is measured during a search.

    The HSDAG paper (Table 2) makes 10 runs and takes the mean of the last 5, as ``paper()`` does.

    Args:
        warm_ups: Number of runs before those that count.
        runs: Number of runs that count.
        give_up: Measure no further if the fastest warm-up takes more than this many times as long as the best
            placement so far.
        use_mean: Whether the mean of the runs counts, instead of their median.
    """

    warm_ups: int = 2
    runs: int = 7
    give_up: float = 1.5
    use_mean: bool = False

    def seconds(self, run: Callable[[int], Sequence[float]], best_s: float) -> float:
        """Return the seconds that an inference of a placement takes.

        Args:
            run: Function that makes a number of inferences and returns the seconds of each.
            best_s: Seconds of the best placement so far.
        """
        first_s = min(run(self.warm_ups), default=0.0)
        if first_s > self.give_up * best_s:
            return float(first_s)
        times_s = run(self.runs)
        return float(np.mean(times_s) if self.use_mean else np.median(times_s))

    @staticmethod
    def paper() -> SearchMeasurement:
        """Return the rule of the HSDAG paper, Table 2."""
        return SearchMeasurement(warm_ups=5, runs=5, give_up=float("inf"), use_mean=True)
