"""Of ``hsdag train``."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class Answer(TypedDict):
    """The policy's file, and its card: how it was trained and what it is worth."""

    policy: str
    card: dict[str, Any]
