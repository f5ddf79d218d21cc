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
from hsdag.ir.device import PLUGIN_LIBRARIES, DeviceSpec
from hsdag.ir.errors import OptionError, OutputError
from hsdag.ir.parts import PlacedParts
from hsdag.ir.placement import Placement, write_atomically
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

    ``suffixes`` are the endings that the output may have, any where there are none; ``beside`` are suffixes of the
    files that are written beside the output, in place of its own. Placements ``for_openvino`` alone name no CUDA GPUs.
    """

    needs_model: bool = False
    for_openvino: bool = False
    suffixes: Sequence[str] = ()
    beside: Sequence[str] = ()

    @abstractmethod
    def write(self, placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        """Write the files of a placement and return them, the one to open first in front.

        ``source.model`` is the model the placement is for, and is left as it is. Raises OptionError for what the
        format cannot say, PlacementError when the model is another one, and OutputError when a file cannot be written.
        """


class DocumentExporter(Exporter):
    """A format of one text file."""

    @abstractmethod
    def text(self, placement: Placement, model: ov.Model | None) -> str:
        """The content of the file; ``model`` is the model without any placement, where it is at hand."""

    def write(self, placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        """Write one file."""
        model = None if source.model is None else unplaced_clone(placement, source.model)
        write_atomically(out_path, self.text(placement, model).encode())
        return [out_path]


class ProgramExporter(Exporter):
    """A format of a program and, where the model is at hand, the IR beside it that the program reads by default."""

    for_openvino = True
    beside = (".xml", ".bin")

    def deployed(self, placement: Placement, model: ov.Model) -> ov.Model:
        """The model that the program compiles. Raises PlacementError where the placement is for another one."""
        return placement.apply(model.clone())

    @abstractmethod
    def program(self, placement: Placement, model: ov.Model | None, default: str) -> str:
        """The text of the program; ``model`` is what ``deployed`` gave, and ``default`` the file's name."""

    def write(self, placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        """Write the program and, where the model is at hand, the IR beside it."""
        model = None if source.model is None else self.deployed(placement, source.model)
        default = f"{placement.model.name}.xml" if model is None else out_path.with_suffix(".xml").name
        text = self.program(placement, model, default)
        beside = [] if model is None else write_ir(model, out_path.with_suffix(".xml"))
        write_atomically(out_path, text.encode())
        return [out_path, *beside]


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
    if exporter.suffixes and out_path.suffix not in exporter.suffixes:
        ending = exporter.suffixes[0]
        raise OptionError(f"--format {format} writes FILE{ending}: end the output's name in {ending}, not {out_path}")
    if exporter.for_openvino:
        placement.check_openvino()
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
    with _filled(out_path) as folder:
        yield folder
        _sync(folder)
        folder.chmod(0o755)  # temporary folders are for their owner alone
        folder.replace(out_path)


@contextmanager
def new_files(out_path: Path) -> Iterator[Path]:
    """A folder to fill, whose files go where ``out_path`` is to be, that one last.

    Raises OutputError when the files cannot be written; what was there before stays then.
    """
    with _filled(out_path) as folder:
        yield folder
        _sync(folder)
        for path in sorted(folder.iterdir(), key=lambda path: path.name == out_path.name):
            path.replace(out_path.with_name(path.name))


@contextmanager
def _filled(out_path: Path) -> Iterator[Path]:
    """A temporary folder beside ``out_path``; failures to write are OutputErrors that name ``out_path``."""
    try:
        folder = Path(tempfile.mkdtemp(dir=out_path.parent, prefix=f".{out_path.name}."))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except (OSError, RuntimeError) as error:  # OpenVINO reports an unwritable file as RuntimeError
        raise OutputError(
            f"{out_path} cannot be written: {_reason(error)}; check the folder's rights and space"
        ) from error


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def write_ir(model: ov.Model, xml_path: Path, *, compress_to_fp16: bool = False) -> list[Path]:
    """Write ``xml_path`` and the .bin beside it, both or none. Raises OutputError."""
    with new_files(xml_path) as folder:
        ov.save_model(model, folder / xml_path.name, compress_to_fp16=compress_to_fp16)
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


def openvino_names(placement: Placement) -> dict[str, str]:
    """By a device's name in the placement: the name OpenVINO knows it by."""
    return {device.name: device.spec().openvino_name for device in placement.devices}


def used_specs(placement: Placement) -> list[DeviceSpec]:
    """The devices that hold at least one op."""
    return [device.spec() for device in placement.devices if device.name in placement.used_devices]


def added_library(spec: DeviceSpec) -> str | None:
    """The plugin library of a device that has to be added to OpenVINO's own."""
    return PLUGIN_LIBRARIES[spec.plugin.partition(".")[0]] if spec.is_added else None


def deployed_map(placement: Placement, placed: ov.Model | None) -> dict[str, str]:
    """OpenVINO's device name per op: of the placed model where it is at hand, else of the affinity map."""
    if placed is not None:
        return {name: node.get_rt_info()["affinity"].astype(str) for name, node in ordered_ops(placed)}
    names = openvino_names(placement)
    return {placement.name_of(op): names[device] for op, device in placement.affinity.items()}
