"""Evaluators: scores of plans under an objective, simulated or measured. Legend: U placement units."""

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
    """Raised inside a search when its budget is spent or the user interrupts it; all results are kept."""


@dataclass(frozen=True)
class Score:
    """The value of one plan in the objective's unit, or infinity and why there is none."""

    value: float = math.inf
    failure: str | None = None

    def __post_init__(self) -> None:
        if math.isfinite(self.value) == (self.failure is not None):
            raise ValueError("a score has either a finite value or a failure")

    @staticmethod
    def failed(reason: str) -> Score:
        """The score of a plan that has no value."""
        return Score(failure=reason)


class Evaluator(ABC):
    """Scores plans of placement units.

    ``is_cheap`` says that plans are simulated, so that thousands can be had and are best evaluated many at a time;
    else each takes long and is worth keeping by itself. ``takes_order`` says that the order of a plan matters.
    ``measures`` says that some of the plans that are asked about are measured, ``version`` changes when costs are
    recalibrated: holders of scores request them again. ``for_workers`` gives the same simulated scores in another
    process, without a budget; None where plans are measured.
    """

    is_cheap: bool = False
    measures: bool = False
    takes_order: bool = False
    version: int = 0
    for_workers: Evaluator | None = None

    @property
    def progress(self) -> float:
        """The share of the budget that is spent, 0 where there is none."""
        return 0.0

    @property
    def evaluations_left(self) -> float:
        """Evaluations that the budget leaves, infinite where it does not count them."""
        return math.inf

    def report(self, plans: Sequence[Plan] = (), *, count: int = 0, bound: Bound | None = None) -> list[Score]:  # noqa: ARG002
        """Take note, whatever the budget, of what a method has found by itself: the scores of its best ``plans``.

        They are counted with the ``count`` of all that it has simulated, here or before; no plan of the units is below
        ``bound``.
        """
        return self.evaluate(plans)

    def check(self) -> None:  # noqa: B027 - most evaluators have no end of their own
        """Raise SearchStopped when the search has to end; methods that compute for long ask now and then."""

    @abstractmethod
    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """One score per plan, in order. Raises SearchStopped when the search has to end."""


class Checkpoint(Protocol):
    """Keeps the one state of a method, tensors by name and a JSON-able mapping, so that a search can be resumed."""

    def save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Replace the stored state."""

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """The stored state, or None when nothing was stored yet."""


@dataclass(frozen=True)
class SearchMeasurement:
    """How a placement is measured during a search: ``warm_ups`` runs, then the median of up to ``runs``.

    A placement whose first runs are ``give_up`` times slower than the best so far is not measured further.
    The HSDAG paper (Table 2) takes 10 runs and the mean of the last 5: ``paper()``.
    """

    warm_ups: int = 2
    runs: int = 7
    give_up: float = 1.5
    use_mean: bool = False

    def seconds(self, run: Callable[[int], Sequence[float]], best_s: float) -> float:
        """What a placement takes, where ``run(n)`` times n inferences of it and the best so far takes ``best_s``."""
        first_s = min(run(self.warm_ups), default=0.0)
        if first_s > self.give_up * best_s:
            return float(first_s)
        times_s = run(self.runs)
        return float(np.mean(times_s) if self.use_mean else np.median(times_s))

    @staticmethod
    def paper() -> SearchMeasurement:
        """Table 2 of the HSDAG paper."""
        return SearchMeasurement(warm_ups=5, runs=5, give_up=float("inf"), use_mean=True)
