"""Recipe: how the figures of a paper's table are had here; and a table as far as it was reproduced."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hsdag.fleet.pool import Pool
from hsdag.ir.errors import OptionError
from hsdag.reports import markdown_table
from hsdag.reports.paper_tables import Figure, PaperTable
from hsdag.search.driver import Watcher


@dataclass(frozen=True)
class Effort:
    """What each search of a table may spend, and with how many seeds. Raises OptionError for a value out of range."""

    budget_s: float = 10.0
    max_evaluations: int | None = None
    num_seeds: int = 3
    pool: Pool | None = None
    """Workers for searches of one problem."""

    def __post_init__(self) -> None:
        if self.num_seeds < 1:
            raise OptionError(f"--seeds must be at least 1, not {self.num_seeds}")


@dataclass(frozen=True)
class Ours:
    """Our figure in the table's unit, with its deviation over seeds; None where there is none, ``note`` says why."""

    value: float | None = None
    deviation: float | None = None
    note: str = ""
    elapsed_s: float = 0.0

    @staticmethod
    def over(values: Sequence[float], note: str = "", elapsed_s: float = 0.0, of: str = "seeds") -> Ours:
        """The mean of the finite values, with their deviation; a note says of how many ``of`` the value is infinite."""
        finite = [value for value in values if np.isfinite(value)]
        lacking = f"no plan within memory for {len(values) - len(finite)} of {len(values)} {of}"
        note = "; ".join(filter(None, [note, lacking if len(finite) < len(values) else ""]))
        if not finite:
            return Ours(note=note, elapsed_s=elapsed_s)
        deviation = float(np.std(finite, ddof=1)) if len(finite) > 1 else None
        return Ours(float(np.mean(finite)), deviation, note, elapsed_s)


TIMED = "measured seconds of simulated searches"


class Recipe(ABC):
    """How a table is reproduced; ``about`` says what differs from the paper, in one or two sentences.

    ``kind`` says what our figures are: simulated, measured, computed, or TIMED. ``controls`` are columns
    that the paper does not have.
    """

    kind: str = "simulated"
    about: str
    controls: tuple[str, ...] = ()

    @abstractmethod
    def row(self, name: str, columns: Sequence[str], effort: Effort, watcher: Watcher) -> Iterator[tuple[str, Ours]]:
        """Figures of a row, by column; ends early where the watcher wants to stop."""


@dataclass(frozen=True)
class Cell:
    """The paper's figure and ours."""

    row: str
    column: str
    paper: Figure
    ours: Ours


@dataclass(frozen=True)
class Reproduction:
    """A table as far as it was reproduced."""

    table: PaperTable
    recipe: Recipe
    effort: Effort
    command: str
    cells: tuple[Cell, ...]
    elapsed_s: float
    is_complete: bool

    def document(self) -> dict[str, object]:
        """The JSON answer of ``hsdag reproduce``."""
        table, effort = self.table, self.effort
        cells = [
            {
                "row": cell.row,
                "column": cell.column,
                "paper": list(cell.paper) if isinstance(cell.paper, tuple) else cell.paper,
                "ours": cell.ours.value,
                "deviation": cell.ours.deviation,
                "note": cell.ours.note,
                "elapsed_s": cell.ours.elapsed_s,
            }
            for cell in self.cells
        ]
        return {
            "table": table.name,
            "paper": table.paper,
            "number": table.number,
            "title": table.title,
            "unit": table.unit,
            "ours": self.recipe.kind,
            "about": self.recipe.about,
            "command": self.command,
            "budget_s": effort.budget_s,
            "max_evaluations": effort.max_evaluations,
            "seeds": effort.num_seeds,
            "elapsed_s": self.elapsed_s,
            "complete": self.is_complete,
            "cells": cells,
        }

    def title(self) -> str:
        """One line: the table, and what our figures are."""
        table = self.table
        unit = f", in {table.unit}" if table.unit else ""
        return f"{table.paper}, {table.number}: {table.title}{unit}; ours are {self.recipe.kind.upper()}"

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Columns and cells of the table to print: a line for each of the paper's columns."""
        names = list(dict.fromkeys(cell.row for cell in self.cells))
        found = {(cell.row, cell.column): cell for cell in self.cells}
        lines = []
        for column in dict.fromkeys(cell.column for cell in self.cells):
            own = [found.get((name, column)) for name in names]
            figures = [text for cell in own for text in (_shown(None if cell is None else cell.paper), _ours(cell))]
            seconds = sum(cell.ours.elapsed_s for cell in own if cell is not None)
            lines.append([column, *figures, f"{seconds:.1f}"])
        heads = [head for name in names for head in (f"{name}: paper", "ours")]
        return ["", *heads, "seconds"], lines

    def remarks(self) -> list[str]:
        """What stands below the table: the recipe, notes of cells, the command and its time."""
        rows_of: dict[str, list[str]] = {}
        for cell in self.cells:
            if cell.ours.note:
                rows_of.setdefault(f"{cell.column}: {cell.ours.note}", []).append(cell.row)
        all_rows = {cell.row for cell in self.cells}
        notes = [
            note if len(set(rows)) == len(all_rows) else f"{note} ({', '.join(rows)})" for note, rows in rows_of.items()
        ]
        unfinished = [] if self.is_complete else ["The table is not complete: it was interrupted."]
        return [self.recipe.about, *notes, *unfinished, f"`{self.command}` took {self.elapsed_s:.0f} s."]

    def markdown(self) -> str:
        """Title, table and remarks."""
        columns, lines = self.rows()
        table = f"{markdown_table(columns, lines)}\n" if lines else ""
        remarks = "".join(f"- {line}\n" for line in self.remarks())
        return f"### {self.title()}\n\n{table}{remarks}"


def _shown(figure: Figure) -> str:
    if figure is None:
        return "-"
    if isinstance(figure, str):
        return figure
    if isinstance(figure, tuple):
        return f"{figure[0]:.4g}±{figure[1]:.2g}"
    return f"{figure:.4g}"


def _ours(cell: Cell | None) -> str:
    if cell is None or cell.ours.value is None:
        return "-"
    return _shown((cell.ours.value, cell.ours.deviation) if cell.ours.deviation else cell.ours.value)


def reproduce(
    table: PaperTable,
    recipe: Recipe,
    effort: Effort,
    command: str,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    watcher: Watcher | None = None,
    keep: Callable[[Reproduction], None] = lambda _: None,
) -> Reproduction:
    """Reproduce a table, or the named rows and columns of it; ``keep`` gets what there is after every figure.

    Raises OptionError for a row or a column that the table does not have.
    """
    watcher, begin_s = watcher or Watcher(), time.monotonic()
    every = tuple(dict.fromkeys((*table.columns, *recipe.controls)))
    _check_names("row", rows, tuple(table.rows))
    _check_names("column", columns, every)
    cells: list[Cell] = []

    def so_far(*, is_complete: bool) -> Reproduction:
        elapsed_s = time.monotonic() - begin_s
        return Reproduction(table, recipe, effort, command, tuple(cells), elapsed_s, is_complete)

    num_figures = len(rows or table.rows) * len(columns or every)
    watcher.on_phase(f"figure 1 of {num_figures}")
    for row in rows or table.rows:
        for column, ours in recipe.row(row, columns or every, effort, watcher):
            cells.append(Cell(row, column, table.figure(row, column), ours))
            keep(so_far(is_complete=False))
            watcher.on_phase(f"figure {min(len(cells) + 1, num_figures)} of {num_figures}")
        if watcher.should_stop():
            return so_far(is_complete=False)
    return so_far(is_complete=True)


def _check_names(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise OptionError(f"the table has no {what} {name!r}; choose among {', '.join(known)}")
