"""Exporting: a placement as a deployable artefact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hsdag.ir.export import export_placement
from hsdag.ir.placement import Placement, Record
from hsdag.ir.reader import InputShapes, input_shapes, load_model


class ExportResult(Record):
    """The files of an export, the one to open first in front, and ``notes`` on what they do not say."""

    format: str
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def export(
    placement: str | Path | Placement,
    format: str,  # noqa: A002 - as the command line calls it
    output: str | Path,
    model: Any = None,
    *,
    shape: InputShapes = None,
) -> ExportResult:
    """Write a placement as a deployable artefact; what ``hsdag export`` does.

    Some formats need the placed ``model``, a path or an ``ov.Model``; ``ort`` needs the path of an ONNX model. Raises
    a ``hsdag.ir.HsdagError`` for what the caller can put right.
    """

    def cut(network: Any, placed: Placement) -> Any:
        from hsdag.runtime.executor.placed_parts import placed_parts  # its compiler is slow to load

        return placed_parts(network, placed)

    loaded = placement if isinstance(placement, Placement) else Placement.load(placement)
    spare, dynamic = loaded.model.input_shapes, loaded.data_shapes is not None
    network = None if model is None else load_model(model, input_shapes(shape), spare=spare, dynamic=dynamic)
    path = Path(model) if isinstance(model, str | Path) else None
    notes: list[str] = []
    files = export_placement(loaded, format, output, network, path=path, cut=cut, tell=notes.append)
    return ExportResult(format=format, files=tuple(files), notes=tuple(notes))
