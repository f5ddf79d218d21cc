"""Of ``hsdag simulate``."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from hsdag.commands.answers.base import Semantics


class Noise(TypedDict):
    """Statistics of noisy runs."""

    runs: int
    mean_s: float
    std_s: float
    min_s: float
    median_s: float
    p95_s: float
    max_s: float


class Answer(Semantics):
    """A simulated placement; the value has the name of its objective's."""

    makespan_s: NotRequired[float]
    busy_s: dict[str, float]
    peak_memory_bytes: dict[str, float]
    over_memory: list[str]
    transfers: int
    transfer_bytes: float
    objective: str
    noise_sigma: float
    seed: int
    simulated: bool
    noise: NotRequired[Noise]
