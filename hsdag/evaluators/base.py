"""Evaluators: what a placement costs, simulated or measured. Legend: U placement units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hsdag.ir.graph import IntArray


class SearchStopped(Exception):  # noqa: N818 - an ending we expect, not an error
    """Raised inside a search when its budget is spent or the user interrupts it; all results are kept."""


@dataclass(frozen=True)
class Evaluation:
    """The cost of one placement: seconds per inference, or why there is none."""

    latency_s: float | None
    failure: str | None = None

    def __post_init__(self) -> None:
        if (self.latency_s is None) == (self.failure is None):
            raise ValueError("an evaluation has either a latency or a failure")

    @property
    def seconds(self) -> float:
        """The latency, infinite where there is none."""
        return float("inf") if self.latency_s is None else self.latency_s


class Evaluator(ABC):
    """Costs placements, each an array [U] of device indices per placement unit.

    ``batch`` is how many are best evaluated at once: one where each takes long and is worth keeping by itself.
    """

    batch: ClassVar[int] = 1

    def check(self) -> None:  # noqa: B027 - most evaluators have no end of their own
        """Raise SearchStopped when the search has to end; methods that compute for long ask now and then."""

    @abstractmethod
    def evaluate(self, placements: Sequence[IntArray]) -> list[Evaluation]:
        """One evaluation per placement, in order. Raises SearchStopped when the search has to end."""
