"""Parts that several answers have."""

from __future__ import annotations

from typing_extensions import TypedDict

from hsdag.search.result import Member

__all__ = ["Ending", "Latency", "Member", "OpRun", "Semantics"]


class Latency(TypedDict):
    """Seconds per inference; ``measured`` is false for simulated figures."""

    median_s: float
    mean_s: float
    p95_s: float
    runs: int
    measured: bool


class Ending(TypedDict):
    """How a search over a problem ended; ``value``, null where nothing was found, and its bound are in ``unit``."""

    value: float | None
    unit: str
    lower_bound: float
    bound_by: str
    gap: float | None
    status: str
    elapsed_s: float
    evaluations: int
    interrupted: bool
    simulated: bool


class Semantics(TypedDict):
    """What was simulated."""

    execution: str
    order: str
    links: str


class OpRun(TypedDict):
    """When an op ran where."""

    op: str
    device: str
    start_s: float
    end_s: float
