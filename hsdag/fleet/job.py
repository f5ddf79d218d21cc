"""Job: a piece of a search that any worker may compute; and what workers tell each other meanwhile."""

from __future__ import annotations

import hashlib
import pickle
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

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


class Exchange(Protocol):
    """``exchange(own)`` tells what a job has found, and gives what all jobs have."""

    def __call__(self, own: Findings) -> Findings: ...


@dataclass(frozen=True, eq=False)
class Shared:
    """A value that several jobs need, which a worker is sent once, apart from them. Equal contents have equal keys."""

    key: str
    content: bytes = field(repr=False)

    @staticmethod
    def of(value: object) -> Shared:
        """The value as bytes."""
        content = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        return Shared(hashlib.sha256(content).hexdigest(), content)

    def __reduce__(self) -> tuple[Any, ...]:
        return Shared, (self.key, b"")


class Job(ABC, Generic[A]):
    """Something to compute, which depends on its own fields and on ``needs`` alone; a frozen dataclass.

    It may be computed more than once, where a worker is lost or slow, and the first answer counts. ``needs`` are values
    that are kept by workers between jobs.
    """

    needs: tuple[Shared, ...] = ()

    @abstractmethod
    def run(self, values: tuple[Any, ...], exchange: Exchange) -> A:
        """The answer, from the values of ``needs``. Raises HsdagError for a user's mistake."""


class JobLost(Exception):  # noqa: N818 - an ending we expect, not an error
    """The worker ended before its job did."""
