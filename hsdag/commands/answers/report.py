"""Of ``hsdag report``."""

from __future__ import annotations

from typing_extensions import TypedDict


class Answer(TypedDict):
    """The files that were written, the page in front, the answer's sentence, and how to open other files."""

    files: list[str]
    sentence: str
    notes: list[str]
