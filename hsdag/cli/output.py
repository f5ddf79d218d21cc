"""What the commands print with: tables and JSON on stdout, logs on stderr."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from hsdag.placers.incumbent import Contribution
    from hsdag.runtime.simulator import Semantics

stdout = Console()
stderr = Console(stderr=True)


def say(text: str) -> None:
    """A line on stderr."""
    stderr.print(text, markup=False, highlight=False)


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(document, indent=1, allow_nan=False))


def print_table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; figures are aligned to the right, the first column and texts to the left."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for idx, column in enumerate(columns):
        is_text = idx == 0 or not any(row[idx][:1].isdigit() for row in rows)
        table.add_column(column, justify="left" if is_text else "right", no_wrap=idx == 0)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console = stdout if stdout.is_terminal else Console(width=160)
    console.print(table)


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with four digits."""
    return f"{1e3 * seconds:.4g}"


def megabytes(size_bytes: int | None) -> str:
    """Bytes as millions of them, with two digits at least; a dash where they are not known."""
    if size_bytes is None:
        return "-"
    return f"{size_bytes / 1e6:.0f}" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.2g}"


def print_members(contributions: Sequence[Contribution]) -> None:
    """What the methods of a portfolio contributed, in the order of their first turns."""
    turns: dict[str, list[Contribution]] = {}
    for each in contributions:
        turns.setdefault(each.method, []).append(each)
    rows = []
    for method, own in turns.items():
        gains = [turn for turn in own if turn.after < turn.before]
        found = [milliseconds(gains[-1].after), f"{gains[-1].ended_s:.1f}"] if gains else ["-", "-"]
        bounds = [turn.bound.value_s for turn in own if turn.bound is not None]
        note = next((turn.failure for turn in own if turn.failure), "")
        seconds = f"{sum(turn.ended_s - turn.began_s for turn in own):.1f}"
        rows.append([method, seconds, *found, milliseconds(max(bounds)) if bounds else "-", note])
    if rows:
        print_table(None, ["method", "seconds", "best ms", "by second", "bound ms", "failure"], rows)


def show_semantics(name: str, semantics: Semantics) -> None:
    """The title of a simulated answer to the problem ``name``."""
    how = semantics.document()
    typer.echo(f"SIMULATED {name}: {how['execution']}, order {how['order']}, links {how['links']}")
