"""Print tables and JSON to stdout and messages to stderr, and check beforehand that files can be written."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hsdag.base.errors import OutputError
from hsdag.runtime.problem.semantics import Semantics

if TYPE_CHECKING:
    from rich.console import Console

    from hsdag.runtime.timeline import Timeline


ANSWER = " *"
"""End of the first cell in the row of the answer; a terminal also highlights that row."""

UNBROKEN = 1_000_000
"""Width of tables in columns, large enough that lines are never cut off."""


def say(text: str) -> None:
    """Print a line on stderr."""
    console(is_error=True).print(text, markup=False, highlight=False, soft_wrap=True)


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    typer.echo(as_text(document))


def as_text(document: Mapping[str, Any]) -> str:
    """Format a JSON document as it is printed."""
    return json.dumps(document, indent=1, allow_nan=False)


def console(*, is_error: bool = False) -> Console:
    """Return a console for the current standard output or stderr.

    Colours are for terminals; rich reads NO_COLOR, which turns them off, and FORCE_COLOR, which turns them on. Only
    progress, on stderr of a terminal, is limited to the terminal's width.
    """
    from rich.console import Console

    return Console(stderr=is_error, emoji=False, width=None if is_error and sys.stderr.isatty() else UNBROKEN)


def print_table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout, with columns of figures aligned to the right and the others to the left."""
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
    """Format seconds as milliseconds with four digits."""
    return f"{1e3 * seconds:.4g}"


def megabytes(size_bytes: int | None) -> str:
    """Format bytes as megabytes with at least two digits, or as a dash for None."""
    if size_bytes is None:
        return "-"
    return f"{size_bytes / 1e6:.0f}" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.2g}"


def show_semantics(name: str, semantics: Semantics) -> None:
    """Print the title of a simulated answer to the problem ``name``."""
    how = semantics.named()
    typer.echo(f"SIMULATED {name}: {how['execution']}, order {how['order']}, links {how['links']}")


def check_files(outputs: Iterable[Path | None], inputs: Iterable[Path]) -> None:
    """Raise an HsdagError for an output that cannot be written, that is also an input, or that is named twice."""
    from hsdag.base.files import check_writable  # imported here because it loads pydantic

    named = [path for path in outputs if path is not None]
    for path in named:
        check_writable(path)
    check_not_read(named, inputs)
    resolved = [path.resolve() for path in named]
    for path in named:
        if resolved.count(path.resolve()) > 1:
            raise OutputError(f"{path} would be written twice; name two files")


def check_not_read(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Raise OutputError if writing one of ``outputs`` would replace an input."""
    read = {path.resolve() for path in inputs}
    for path in outputs:
        if path.resolve() in read:
            raise OutputError(f"{path} is read by this command; name another file to write")


def model_files(model: Path, inputs: Path | None = None) -> list[Path]:
    """Return the files that a command reads for a model: the model, its weights, and its inputs."""
    weights = [model.with_suffix(".bin")] if model.suffix == ".xml" else []
    return [model, *weights, *([inputs] if inputs is not None else [])]


def workload_path(source: Path) -> Path | None:
    """Return the path after which files of a workload or problem are named, or None for a model."""
    from hsdag.models.registry import names_workload

    if names_workload(str(source)):
        return Path(str(source).partition("[")[0])
    return source if source.suffix == ".json" else None


def write_timeline(timeline: Timeline | None, trace: Path | None) -> None:
    """Write the timeline as a trace if both are given."""
    if timeline is not None and trace is not None:
        from hsdag.runtime.timeline import write_trace

        write_trace(timeline, trace)
