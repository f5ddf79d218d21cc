"""Of ``hsdag reproduce``."""

from __future__ import annotations

from typing_extensions import TypedDict


class Cell(TypedDict):
    """A figure of the paper beside ours."""

    row: str
    column: str
    paper: float | list[float] | str | None
    ours: float | None
    deviation: float | None
    note: str | None
    elapsed_s: float


class Table(TypedDict):
    """A table of a paper; ``ours`` says what our figures are."""

    table: str
    paper: str
    number: str
    title: str
    unit: str | None
    ours: str
    about: str
    command: str
    budget_s: float
    max_evaluations: int | None
    seeds: int
    elapsed_s: float
    complete: bool
    cells: list[Cell]


class Entry(TypedDict):
    """A table that can be reproduced."""

    table: str
    paper: str
    number: str
    title: str
    ours: str


class Listed(TypedDict):
    """The answer to ``--list``."""

    tables: list[Entry]


Answer = Table | Listed
