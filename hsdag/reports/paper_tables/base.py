"""PaperTable: figures of a published table, by row and column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Figure = float | tuple[float, float] | str | None
"""A figure; one with its standard deviation; a word that stands in its place; or nothing."""


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper. ``unit`` is that of all its figures, empty where columns or rows say it themselves.

    Raises ValueError where a row has another length than the columns.
    """

    name: str
    paper: str
    number: str
    title: str
    unit: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Figure, ...]]

    def __post_init__(self) -> None:
        for name, figures in self.rows.items():
            if len(figures) != len(self.columns):
                raise ValueError(
                    f"{self.name}: row {name!r} has {len(figures)} figures for {len(self.columns)} columns"
                )

    def figure(self, row: str, column: str) -> Figure:
        """The published figure, None where the table has none."""
        if row not in self.rows or column not in self.columns:
            return None
        return self.rows[row][self.columns.index(column)]
