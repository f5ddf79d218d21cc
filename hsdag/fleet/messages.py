"""Messages to workers of a fleet, and between the gateway to a cluster and its client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hsdag.fleet.job import Findings, Job, Shared
from hsdag.ir.processes import Request

MOST_KEPT = 64
"""Values that a worker keeps; then it forgets them all, and those that are still needed come again."""


@dataclass(frozen=True)
class Setup(Request[None]):
    """The first request to a process of this machine."""


@dataclass(frozen=True)
class Keep(Request[None]):
    """A value, as bytes, that later jobs need; ``is_only`` says that none is needed that was kept before."""

    key: str
    content: bytes = field(repr=False)
    is_only: bool = False


Outcome = tuple[Any, Exception | None]
"""What a job answered, or what it raised."""


@dataclass(frozen=True)
class RunJob(Request[Outcome]):
    """Compute a job, whose needs are kept already."""

    job: Job[Any]


@dataclass(frozen=True)
class Connected:
    """The gateway has reached the cluster: where each slot is, for people."""

    slots: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """The gateway has not reached the cluster, and why."""

    reason: str


@dataclass(frozen=True)
class Begin:
    """Compute a job on a slot, whose worker has to keep some values first."""

    slot: int
    job: Job[Any]
    values: tuple[Keep, ...]


@dataclass(frozen=True)
class Abandon:
    """Nobody needs the job of a slot any more."""

    slot: int


@dataclass(frozen=True)
class Found:
    """What is known by now: to the worker of a slot what the whole search has found, from it what it has itself."""

    slot: int
    findings: Findings


@dataclass(frozen=True)
class Ended:
    """The job of a slot has come to an end."""

    slot: int
    outcome: Outcome


@dataclass(frozen=True)
class Lost:
    """The worker of a slot ended before its job; ``is_gone`` where there will be no other one, since its node is gone,
    has another hsdag, or starts none."""

    slot: int
    reason: str
    is_gone: bool


def missing(kept: set[str], needs: Sequence[Shared]) -> list[Keep]:
    """What a worker has to be sent before a job, given the keys that it keeps; these are brought up to date."""
    new = [shared for shared in needs if shared.key not in kept]
    is_full = len(kept) + len(new) > MOST_KEPT
    if is_full:
        kept.clear()
        new = list(needs)
    kept.update(shared.key for shared in new)
    return [Keep(shared.key, shared.content, is_full and i == 0) for i, shared in enumerate(new)]


def answer_of(outcome: Outcome) -> Any:
    """The answer; raises what the job did."""
    answer, error = outcome
    if error is not None:
        raise error
    return answer
