"""What the commands print with, tables and JSON on stdout, logs on stderr; and the files they write, checked before."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hsdag.ir.errors import OutputError

if TYPE_CHECKING:
    from rich.console import Console

    from hsdag.runtime.problem.semantics import Semantics
    from hsdag.runtime.timeline import Timeline


ANSWER = " *"
"""What the first cell of a row ends in that is the answer; such a row stands out on a terminal, too."""

UNBROKEN = 1_000_000
"""Columns of a line of a table, which is never cut off."""


def say(text: str) -> None:
    """A line on stderr."""
    console(is_error=True).print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on stdout."""
    typer.echo(as_text(document))


def as_text(document: Mapping[str, Any]) -> str:
    """A document as it is printed."""
    return json.dumps(document, indent=1, allow_nan=False)


def console(*, is_error: bool = False) -> Console:
    """Standard output, or stderr, as it is now.

    Colours are for terminals; NO_COLOR turns them off, FORCE_COLOR on, as rich reads them. Progress alone has a width.
    """
    from rich.console import Console

    return Console(stderr=is_error, emoji=False, width=None if is_error and sys.stderr.isatty() else UNBROKEN)


def print_table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; figures are aligned to the right, the first column and texts to the left."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for idx, column in enumerate(columns):
        is_text = idx == 0 or not any(row[idx][:1].isdigit() for row in rows)
        table.add_column(column, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row), style="bold green" if row[0].endswith(ANSWER) else None)
    out = console()
    if title is not None:
        out.print(Text(title, style="italic"), soft_wrap=True)
    out.print(table)


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with four digits."""
    return f"{1e3 * seconds:.4g}"


def megabytes(size_bytes: int | None) -> str:
    """Bytes as millions of them, with two digits at least; a dash where they are not known."""
    if size_bytes is None:
        return "-"
    return f"{size_bytes / 1e6:.0f}" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.2g}"


def show_semantics(name: str, semantics: Semantics) -> None:
    """The title of a simulated answer to the problem ``name``."""
    how = semantics.named()
    typer.echo(f"SIMULATED {name}: {how['execution']}, order {how['order']}, links {how['links']}")


def check_files(outputs: Iterable[Path | None], inputs: Iterable[Path]) -> None:
    """Raise a HsdagError for a file that could not be written in the end, or that is read or written twice."""
    from hsdag.ir.files import check_writable  # only here: it loads pydantic

    named = [path for path in outputs if path is not None]
    for path in named:
        check_writable(path)
    check_not_read(named, inputs)
    resolved = [path.resolve() for path in named]
    for path in named:
        if resolved.count(path.resolve()) > 1:
            raise OutputError(f"{path} would be written twice; name two files")


def check_not_read(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Raise OutputError when writing one of ``outputs`` would replace what is read."""
    read = {path.resolve() for path in inputs}
    for path in outputs:
        if path.resolve() in read:
            raise OutputError(f"{path} is read by this command; name another file to write")


def model_files(model: Path, inputs: Path | None = None) -> list[Path]:
    """The files that a command reads a model from: its own, its weights, and its inputs."""
    weights = [model.with_suffix(".bin")] if model.suffix == ".xml" else []
    return [model, *weights, *([inputs] if inputs is not None else [])]


def workload_path(source: Path) -> Path | None:
    """What files of a workload are named after: a problem file, or the workload's name; None for a model."""
    from hsdag.models.registry import names_workload

    if names_workload(str(source)):
        return Path(str(source).partition("[")[0])
    return source if source.suffix == ".json" else None


def write_timeline(timeline: Timeline | None, trace: Path | None) -> None:
    """Write the requested file."""
    if timeline is not None and trace is not None:
        from hsdag.runtime.timeline import write_trace

        write_trace(timeline, trace)
