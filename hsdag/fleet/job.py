"""Job: a piece of a search that any worker may compute; and what workers tell each other meanwhile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from hsdag.ir.processes import Request
from hsdag.runtime.problems.bounds import Bound, largest
from hsdag.runtime.problems.plan import Plan

A = TypeVar("A")


@dataclass(frozen=True)
class Findings:
    """The best plan of a search so far with its value, and the largest bound; ``is_over`` where nobody needs more."""

    plan: Plan | None = None
    value: float = float("inf")
    bound: Bound | None = None
    is_over: bool = False

    def joined(self, other: Findings) -> Findings:
        """What both know; of plans of equal value one's own."""
        better = other if other.value < self.value else self
        bound = None if self.bound is None and other.bound is None else largest(self.bound, other.bound)
        return Findings(better.plan, better.value, bound, self.is_over or other.is_over)


Exchange: TypeAlias = Callable[[Findings], Findings]
"""Tells what a job has found, and gives what all jobs have."""


class Job(Request[A], ABC):
    """Something to compute that depends on its own fields alone; a dataclass that can be pickled.

    It may be computed more than once, where a worker is lost.
    """

    @abstractmethod
    def run(self, exchange: Exchange) -> A:
        """The answer. Raises HsdagError for a user's mistake."""


class JobLost(Exception):  # noqa: N818 - an ending we expect, not an error
    """The worker ended before its job did; ``is_gone`` where the host will have no other worker."""

    def __init__(self, reason: str, *, is_gone: bool = False) -> None:
        super().__init__(reason)
        self.is_gone = is_gone
