"""Of ``hsdag models list``."""

from __future__ import annotations

from typing_extensions import TypedDict


class Entry(TypedDict):
    """A model or a workload."""

    name: str
    summary: str


class Answer(TypedDict):
    """What can be built."""

    models: list[Entry]
    workloads: list[Entry]
