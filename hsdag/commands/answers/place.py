"""Of ``hsdag place``."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from hsdag.commands.answers.base import Member, Speedup


class Row(TypedDict):
    """A measured candidate, with seconds, or joules for energy; ``ops`` counts ops by device."""

    name: str
    median_s: NotRequired[float]
    p95_s: NotRequired[float]
    median_j: NotRequired[float]
    p95_j: NotRequired[float]
    runs: int
    ratio_to_best_single: float
    ci95: list[float | None]
    rounds: int
    submodels: int
    ops: dict[str, int]
    answer: bool


class Placed(TypedDict):
    """A placement that was searched and measured; ``placement`` is its file."""

    placement: str
    sentence: str
    objective: str
    speedup: Speedup | None
    rows: list[Row]
    failures: dict[str, str]
    difference: dict[str, float | None] | None
    reference: str
    tolerance: float
    objection: str | None
    evaluations: int
    failed_evaluations: int
    evaluation_failures: dict[str, int]
    evaluations_by_box: dict[str, int]
    simulated_evaluations: int
    search_s: float
    run_folder: str | None
    interrupted: bool
    warnings: list[str]
    turned_down: dict[str, str]
    held_bytes: dict[str, float]
    members: list[Member]


class FolderModel(TypedDict):
    """A model of a folder; ``reason`` is the answer's sentence, or why there is none."""

    model: str
    outcome: str
    placement: str | None
    run_folder: str | None
    median_s: float | None
    speedup: Speedup | None
    reason: str | None


class Folder(TypedDict):
    """The models of a folder; ``counts`` are of outcomes."""

    folder: str
    counts: dict[str, int]
    models: list[FolderModel]


Answer = Placed | Folder
