"""What an export format is, how it is found by its name, and the placed model as every format sees it."""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import openvino as ov

from hsdag.ir.build import graph_of, ordered_ops
from hsdag.ir.errors import OptionError, OutputError
from hsdag.ir.graph import ComputationGraph
from hsdag.ir.parts import PlacedParts
from hsdag.ir.placement import Placement
from hsdag.ir.reader import last_line


@dataclass(frozen=True)
class ModelSource:
    """The model a placement is for, as far as it is at hand: in memory, and the file it was read from.

    ``cut`` makes the parts of a placed model; ``tell`` takes sentences for the user.
    """

    model: ov.Model | None = None
    path: Path | None = None
    cut: Callable[[ov.Model, Placement], PlacedParts] | None = None
    tell: Callable[[str], None] = lambda _: None

    def parts(self, placement: Placement) -> PlacedParts:
        """The placed model in parts. Raises OptionError where nobody can cut it."""
        if self.cut is None or self.model is None:
            raise OptionError("this format needs the model in parts: export it with hsdag.export or 'hsdag export'")
        return self.cut(self.model, placement)


class Exporter(ABC):
    """One format. The module ``hsdag.ir.export.NAME`` holds one as ``EXPORTER``.

    ``beside`` are suffixes of the files that it writes beside the output, in place of the output's own suffix.
    """

    needs_model: bool = False
    beside: Sequence[str] = ()

    @abstractmethod
    def write(self, placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        """Write the files of a placement and return them, the one to open first in front.

        ``source.model`` is the model the placement is for, and is left as it is. Raises OptionError for an
        ``out_path`` that does not fit the format, PlacementError when the model is another one, and
        OutputError when a file cannot be written.
        """


def export_formats() -> tuple[str, ...]:
    """Names of the formats, in alphabetical order."""
    package = import_module("hsdag.ir.export")
    names = (module.name for module in iter_modules(package.__path__))
    return tuple(sorted(name for name in names if name != "base" and not name.startswith("_")))


def find_exporter(format: str) -> Exporter:  # noqa: A002
    """The exporter of a format. Raises OptionError, which lists the formats, for an unknown one."""
    if format not in export_formats():
        raise OptionError(f"--format {format!r} is unknown; choose one of {', '.join(export_formats())}")
    exporter: Exporter = import_module(f"hsdag.ir.export.{format}").EXPORTER
    return exporter


def written_files(format: str, out_path: Path) -> list[Path]:  # noqa: A002
    """What an export may write: the output, and the files beside it.

    Raises OptionError for an unknown format, OutputError for a path without a name, such as the present folder.
    """
    _check_name(out_path)
    return [out_path, *(out_path.with_suffix(suffix) for suffix in find_exporter(format).beside)]


def export_placement(
    placement: Placement,
    format: str,  # noqa: A002
    out_path: str | Path,
    model: ov.Model | None = None,
    *,
    path: Path | None = None,
    cut: Callable[[ov.Model, Placement], PlacedParts] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write a placement in one of ``export_formats()`` and return the files written.

    ``model`` is left as it is; ``path`` is the file that it was read from, ``cut`` makes its parts, and ``tell`` takes
    sentences for the user. Raises OptionError for an unknown format and where a model is needed but not given,
    PlacementError when the model is another one, and OutputError when a file cannot be written.
    """
    exporter, out_path = find_exporter(format), Path(out_path)
    _check_name(out_path)
    if exporter.needs_model and model is None:
        raise OptionError(f"--format {format} needs the model the placement is for: name it with --model")
    return exporter.write(placement, ModelSource(model, path, cut, tell), out_path)


def _check_name(out_path: Path) -> None:
    if not out_path.name:
        raise OutputError(f"{out_path} is a folder; name the file to write")


@contextmanager
def new_folder(out_path: Path, format: str) -> Iterator[Path]:  # noqa: A002
    """A folder to fill, which becomes ``out_path`` as a whole in the end, or not at all.

    Raises OutputError where there is something already, and where files cannot be written.
    """
    if out_path.is_file() or (out_path.is_dir() and any(out_path.iterdir())):
        raise OutputError(f"{out_path} is there already; --format {format} writes a folder: name a new one")
    try:
        folder = Path(tempfile.mkdtemp(dir=out_path.parent, prefix=f".{out_path.name}."))
        try:
            yield folder
            for path in folder.rglob("*"):
                if path.is_file():
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
            folder.chmod(0o755)  # temporary folders are for their owner alone
            folder.replace(out_path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except (OSError, RuntimeError) as error:  # OpenVINO reports an unwritable file as RuntimeError
        raise OutputError(f"{out_path} cannot be written: {_reason(error)}") from error


def write_ir(model: ov.Model, xml_path: Path, *, compress_to_fp16: bool = False) -> list[Path]:
    """Write ``xml_path`` and the .bin beside it: to a temporary folder first, then fsync and rename.

    Raises OutputError when the files cannot be written; what was there before stays then.
    """
    try:
        folder = Path(tempfile.mkdtemp(dir=xml_path.parent, prefix=f".{xml_path.name}."))
        try:
            parts = [folder / xml_path.with_suffix(".bin").name, folder / xml_path.name]
            ov.save_model(model, parts[1], compress_to_fp16=compress_to_fp16)
            for part in parts:
                with part.open("rb") as file:
                    os.fsync(file.fileno())
            for part in parts:
                part.replace(xml_path.with_name(part.name))
        finally:
            shutil.rmtree(folder)
    except (OSError, RuntimeError) as error:  # OpenVINO reports an unwritable file as RuntimeError
        raise OutputError(
            f"model {xml_path} cannot be written: {_reason(error)}; check the folder's rights and space"
        ) from error
    return [xml_path, xml_path.with_suffix(".bin")]


def _reason(error: OSError | RuntimeError) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else last_line(error)


def unplaced_clone(placement: Placement, model: ov.Model) -> ov.Model:
    """A copy of the model as it is without any placement, after making sure that this one is for it.

    Raises PlacementError when the placement is for another model.
    """
    clone = placement.fixed(model)
    placement.devices_of(graph_of(clone))
    return clone


def unplaced_graph(placement: Placement, model: ov.Model) -> ComputationGraph:
    """The graph of ``unplaced_clone``: its ops are those of the affinity map."""
    return graph_of(unplaced_clone(placement, model))


def openvino_names(placement: Placement) -> dict[str, str]:
    """By a device's name in the placement: the name OpenVINO knows it by."""
    return {device.name: device.spec().openvino_name for device in placement.devices}


def deployed_map(placement: Placement, placed: ov.Model | None) -> dict[str, str]:
    """OpenVINO's device name per op: of the placed model where it is at hand, else of the affinity map."""
    if placed is not None:
        return {name: node.get_rt_info()["affinity"].astype(str) for name, node in ordered_ops(placed)}
    names = openvino_names(placement)
    return {placement.name_of(op): names[device] for op, device in placement.affinity.items()}
