"""Evaluators: what a placement costs, simulated or measured. Legend: U placement units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

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


class Evaluator(ABC):
    """Costs placements, each an array [U] of device indices per placement unit."""

    @abstractmethod
    def evaluate(self, placements: Sequence[IntArray]) -> list[Evaluation]:
        """One evaluation per placement, in order. Raises SearchStopped when the search has to end."""
