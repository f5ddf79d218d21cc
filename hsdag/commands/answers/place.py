"""Of ``hsdag place``."""

from __future__ import annotations

from typing_extensions import TypedDict

from hsdag.commands.answers.base import Speedup
from hsdag.search.kept_answer import Searched


class Placed(Searched):
    """The same with ``placement``, its file."""

    placement: str


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
