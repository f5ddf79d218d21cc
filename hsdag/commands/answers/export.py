"""Of ``hsdag export``."""

from __future__ import annotations

from typing_extensions import TypedDict


class Answer(TypedDict):
    """The files that were written, the one to open first in front."""

    format: str
    files: list[str]
    notes: list[str]
