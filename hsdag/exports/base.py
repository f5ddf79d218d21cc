"""Define what an export format is, and export a placement in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import openvino as ov

from hsdag.base.errors import OptionError, chosen, option
from hsdag.base.files import check_writable, write_atomically
from hsdag.exports import export_formats, module_of
from hsdag.ir.graph.build import graph_of
from hsdag.ir.placement.applied import check_openvino, with_shapes
from hsdag.ir.placement.divided import divided
from hsdag.ir.placement.homes import op_homes
from hsdag.ir.placement.placement import Placement, Record


@dataclass(frozen=True)
class ModelSource:
    """The model that a placement is for, as far as it is available: in memory, and as the file it was read from.

    ``tell`` is called with sentences for the user.
    """

    model: ov.Model | None = None
    path: Path | None = None
    tell: Callable[[str], None] = lambda _: None


Write = Callable[[Placement, ModelSource, Path], list[Path]]


@dataclass(frozen=True)
class Exporter:
    """One export format. The module ``hsdag.exports.NAME`` lists its exporters by format in a table ``EXPORTERS``.

    Args:
        write: Function that writes a placement and returns the files written, the main one first. It does not change
            ``source.model``. It raises OptionError for what the format cannot express, PlacementError if the placement
            is for another model, and OutputError if a file cannot be written.
        needs_model: Whether ``source.model`` must be present.
        for_openvino: Whether the format supports only OpenVINO's devices, that is, no CUDA GPUs.
        takes_copies: Whether placements with copies of the model can be exported.
        suffixes: File suffixes that the output may have; any if empty.
        beside: Suffixes of further files, written next to the output under its stem.
    """

    write: Write
    needs_model: bool = False
    for_openvino: bool = False
    takes_copies: bool = False
    suffixes: Sequence[str] = ()
    beside: Sequence[str] = ()


def document(text: Callable[[Placement, ov.Model | None], str]) -> Write:
    """Return the write function of a format that is one text file.

    Args:
        text: Function from a placement and the model, without any placement, to the file's text. The model is None if
            it is not available.
    """

    def write(placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        model = None if source.model is None else unplaced_clone(placement, source.model)
        write_atomically(out_path, text(placement, model).encode())
        return [out_path]

    return write


def find_exporter(format: str) -> Exporter:  # noqa: A002
    """Return the exporter of a format. Raises OptionError, with the choices, for an unknown one."""
    exporter: Exporter = import_module(module_of(chosen("format", format, export_formats()))).EXPORTERS[format]
    return exporter


def written_files(format: str, out_path: Path) -> list[Path]:  # noqa: A002
    """Return the paths that an export may write: the output and the files next to it.

    Raises OptionError for an unknown format and OutputError if the output cannot be written.
    """
    check_writable(out_path, is_folder=True)
    return [out_path, *(out_path.with_suffix(suffix) for suffix in find_exporter(format).beside)]


def export_placement(
    placement: Placement,
    format: str,  # noqa: A002
    out_path: Path,
    source: ModelSource = ModelSource(),
) -> list[Path]:
    """Write a placement in one of ``export_formats()`` and return the files written, the main one first.

    The model of ``source`` is left unchanged; some formats need it. Raises OptionError for an unknown format or a
    missing model, PlacementError if the placement is for another model, and OutputError if a file cannot be written.
    """
    exporter = find_exporter(format)
    if exporter.needs_model and source.model is None:
        raise OptionError(
            f"{option('format')} {format} needs the model the placement is for: name it with {option('model')}"
        )
    if exporter.suffixes and out_path.suffix not in exporter.suffixes:
        ending = exporter.suffixes[0]
        raise OptionError(
            f"{option('format')} {format} writes FILE{ending}: end the output's name in {ending}, not {out_path}"
        )
    if placement.shards and format != "json":
        if source.model is None:
            raise OptionError(
                f"{option('format')} {format} needs the model that the placement divides: "
                f"name it with {option('model')}"
            )
        model, placement = divided(source.model, placement)
        source = replace(source, model=model)
    if placement.copies and not exporter.takes_copies:
        raise OptionError(f"{option('format')} {format} cannot say that a model is copied: use json or openvino")
    if exporter.for_openvino:
        check_openvino(placement)
    return exporter.write(placement, source, out_path)


class ExportResult(Record):
    """The files of an export, the main one first, and ``notes`` for the user."""

    format: str
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def unplaced_clone(placement: Placement, model: ov.Model) -> ov.Model:
    """Return a copy of the model without any placement. Raises PlacementError if ``placement`` is for another model."""
    clone = with_shapes(placement, model)
    op_homes(placement, graph_of(clone))
    return clone
