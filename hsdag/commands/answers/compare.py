"""Of ``hsdag compare``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from hsdag.commands.compare import Setup
from hsdag.commands.runs import Run


class Row(TypedDict):
    """A method over all its runs."""

    method: str
    runs: int
    mean_s: float
    deviation_s: float
    ci95_s: float | None
    best_s: float
    elapsed_s: float
    evaluations: float
    lower_bound_s: float
    gap: float


class Answer(TypedDict):
    """The comparison file, with its rows and failures."""

    format: Literal["hsdag-comparison"]
    version: Literal[1]
    simulated: Literal[True]
    setup: Setup
    refused: dict[str, str]
    runs: list[Run]
    rows: list[Row]
    failures: dict[str, str]
