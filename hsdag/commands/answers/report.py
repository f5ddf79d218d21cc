"""Of ``hsdag report``."""

from __future__ import annotations

from typing_extensions import TypedDict


class Answer(TypedDict):
    """The files that were written, the page in front, and the answer's sentence."""

    files: list[str]
    sentence: str
