"""Of ``hsdag simulate``."""

from __future__ import annotations

from typing import NotRequired

from hsdag.commands.answers.base import Semantics


class Answer(Semantics):
    """A simulated placement; the value, and the statistics ``noise`` of several, are in ``unit``."""

    value: float
    unit: str
    busy_s: dict[str, float]
    peak_memory_bytes: dict[str, float]
    over_memory: list[str]
    transfers: int
    transfer_bytes: float
    objective: str
    noise_sigma: float
    seed: int
    simulated: bool
    noise: NotRequired[dict[str, float]]
