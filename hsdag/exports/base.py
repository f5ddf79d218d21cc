"""What an export format is, and how a placement is exported in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import openvino as ov

from hsdag.exports import export_formats, module_of
from hsdag.ir.errors import OptionError, choices_for
from hsdag.ir.files import check_writable, write_atomically
from hsdag.ir.graph.build import graph_of
from hsdag.ir.placement.divided import divided
from hsdag.ir.placement.placement import Placement, Record


@dataclass(frozen=True)
class ModelSource:
    """The model a placement is for, as far as it is at hand: in memory, and the file it was read from.

    ``tell`` takes sentences for the user.
    """

    model: ov.Model | None = None
    path: Path | None = None
    tell: Callable[[str], None] = lambda _: None


Write = Callable[[Placement, ModelSource, Path], list[Path]]


@dataclass(frozen=True)
class Exporter:
    """One format. A module ``hsdag.exports.NAME`` holds it in ``EXPORTERS``, a table of formats by name.

    ``write`` writes the files of a placement and returns them, the one to open first in front. It leaves
    ``source.model`` as it is, the model that the placement is for. It raises OptionError for what the format cannot
    say, PlacementError when the model is another one, and OutputError when a file cannot be written.

    ``suffixes`` are the endings that the output may have, any where there are none; ``beside`` are suffixes of the
    files that are written beside the output, in place of its own. Placements ``for_openvino`` alone name no CUDA GPUs;
    only what ``takes_copies`` is written for placements that copy the model.
    """

    write: Write
    needs_model: bool = False
    for_openvino: bool = False
    takes_copies: bool = False
    suffixes: Sequence[str] = ()
    beside: Sequence[str] = ()


def document(text: Callable[[Placement, ov.Model | None], str]) -> Write:
    """How a format of one text file is written; ``text`` takes the model without any placement, if it is at hand."""

    def write(placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        model = None if source.model is None else unplaced_clone(placement, source.model)
        write_atomically(out_path, text(placement, model).encode())
        return [out_path]

    return write


def find_exporter(format: str) -> Exporter:  # noqa: A002
    """The exporter of a format. Raises OptionError, which lists the formats, for an unknown one."""
    if format not in export_formats():
        raise OptionError(f"--format {format!r} is unknown{choices_for(format, export_formats())}")
    exporter: Exporter = import_module(module_of(format)).EXPORTERS[format]
    return exporter


def written_files(format: str, out_path: Path) -> list[Path]:  # noqa: A002
    """What an export may write: the output, and the files beside it.

    Raises OptionError for an unknown format, OutputError where nothing can be written.
    """
    check_writable(out_path, is_folder=True)
    return [out_path, *(out_path.with_suffix(suffix) for suffix in find_exporter(format).beside)]


def export_placement(
    placement: Placement,
    format: str,  # noqa: A002
    out_path: str | Path,
    model: ov.Model | None = None,
    *,
    path: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write a placement in one of ``export_formats()`` and return the files written.

    ``model`` is left as it is; ``path`` is the file that it was read from, and ``tell`` takes sentences for the user.
    Raises OptionError for an unknown format and where a model is needed but not given, PlacementError when the model
    is another one, and OutputError when a file cannot be written.
    """
    exporter = find_exporter(format)
    out_path = Path(out_path)
    written_files(format, out_path)
    if exporter.needs_model and model is None:
        raise OptionError(f"--format {format} needs the model the placement is for: name it with --model")
    if exporter.suffixes and out_path.suffix not in exporter.suffixes:
        ending = exporter.suffixes[0]
        raise OptionError(f"--format {format} writes FILE{ending}: end the output's name in {ending}, not {out_path}")
    if placement.shards and format != "json":
        if model is None:
            raise OptionError(f"--format {format} needs the model that the placement divides: name it with --model")
        model, placement = divided(model, placement)
    if placement.copies and not exporter.takes_copies:
        raise OptionError(f"--format {format} cannot say that a model is copied: use json or openvino")
    if exporter.for_openvino:
        placement.check_openvino()
    return exporter.write(placement, ModelSource(model, path, tell), out_path)


class ExportResult(Record):
    """The files of an export, the one to open first in front, and ``notes`` on what they do not say."""

    format: str
    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def unplaced_clone(placement: Placement, model: ov.Model) -> ov.Model:
    """A copy of the model as it is without any placement, after making sure that this one is for it.

    Raises PlacementError when the placement is for another model.
    """
    clone = placement.fixed(model)
    placement.homes_of(graph_of(clone))
    return clone
