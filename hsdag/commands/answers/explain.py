"""Of ``hsdag explain``."""

from __future__ import annotations

from typing_extensions import TypedDict

from hsdag.reports.explanation import Bottleneck, BoundSaid, Crossing, Gain, Limit, Rival


class Boundary(TypedDict):
    """What it takes to enter a submodel or a part: tensors and launches."""

    submodel: int | None
    op: str
    device: str
    sources: list[str]
    launches: int
    launch_s: float
    transfer_s: float
    tensors: list[Crossing]
    transfers: int
    bytes: int
    seconds: float


class Value(TypedDict):
    """The value of the placement, as costs say and as measured."""

    simulated: float | None
    measured: float | None
    calibrated: bool
    simulated_over_measured: float | None


class Answer(TypedDict):
    """Why a placement is as it is; figures are simulated where they do not say that they are measured."""

    model: str
    executor: str
    objective: str
    num_unmoved: int
    elapsed_s: float
    simulated: bool
    ops: dict[str, int]
    value: Value
    gains: list[Gain]
    boundaries: list[Boundary]
    limits: list[Limit]
    bottleneck: Bottleneck | None
    next_best: Rival | None
    best_split: Rival | None
    bound: BoundSaid | None
    notes: list[str]
    sentences: list[str]
