"""Of ``hsdag solve``."""

from __future__ import annotations

from typing import NotRequired

from hsdag.commands.answers.base import Ending, Member, OpRun, Semantics


class Solved(Ending, Semantics):
    """A placement of a problem."""

    method: str
    placement: dict[str, str] | None
    schedule: list[OpRun]
    single_devices: dict[str, float]
    breaking_pins: list[str]
    objective: str
    seed: int
    members: list[Member]
    note: str | None
    priority: NotRequired[dict[str, int]]


class BatchRun(OpRun):
    """When an op ran for which inputs."""

    inputs: list[int]


class Batched(Ending):
    """A schedule of batches; ``assumed`` says what batches are taken to cost."""

    method: str
    batch: int
    batch_sizes: list[int]
    group: int
    assumed: str
    inputs_per_s: float | None
    most_inputs_per_s: float | None
    schedule: list[BatchRun]
    best_after_s: float | None
    execution: str
    links: str
    seed: int


Answer = Solved | Batched
