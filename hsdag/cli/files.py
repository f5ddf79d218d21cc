"""The files that commands write: checked before any work is done for them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hsdag.ir.errors import OutputError

if TYPE_CHECKING:
    from hsdag.runtime.timeline import Timeline


def check_files(outputs: Iterable[Path | None], inputs: Iterable[Path], pictures: Iterable[Path | None] = ()) -> None:
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
    for picture in pictures:
        if picture is not None:
            from hsdag.drawing import check_picture

            check_picture(picture)


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


def write_timeline(timeline: Timeline | None, trace: Path | None, gantt: Path | None) -> None:
    """Write the requested files."""
    if timeline is not None and trace is not None:
        from hsdag.runtime.timeline import write_trace

        write_trace(timeline, trace)
    if timeline is not None and gantt is not None:
        from hsdag.drawing import write_gantt

        write_gantt(timeline, gantt)
