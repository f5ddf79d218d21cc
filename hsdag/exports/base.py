"""What an export format is, how it is found by its name, and the placed model as every format sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import openvino as ov

from hsdag.ir.device import PLUGIN_LIBRARIES, DeviceSpec
from hsdag.ir.errors import OptionError, OutputError
from hsdag.ir.files import write_atomically, write_ir
from hsdag.ir.graph.build import graph_of, ordered_ops
from hsdag.ir.graph.reader import InputShapes, input_shapes, load_model
from hsdag.ir.placement.parts import PlacedParts
from hsdag.ir.placement.placement import Placement, Record


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
    """One format. The module ``hsdag.exports.NAME`` holds one as ``EXPORTER``.

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
    package = import_module("hsdag.exports")
    names = (module.name for module in iter_modules(package.__path__))
    return tuple(sorted(name for name in names if name != "base" and not name.startswith("_")))


def find_exporter(format: str) -> Exporter:  # noqa: A002
    """The exporter of a format. Raises OptionError, which lists the formats, for an unknown one."""
    if format not in export_formats():
        raise OptionError(f"--format {format!r} is unknown; choose one of {', '.join(export_formats())}")
    exporter: Exporter = import_module(f"hsdag.exports.{format}").EXPORTER
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
    a ``hsdag.HsdagError`` for what the caller can put right.
    """

    def cut(network: Any, placed: Placement) -> Any:
        from hsdag.runtime.executor.merging import CutOptions
        from hsdag.runtime.executor.placed_parts import placed_parts  # its compiler is slow to load
        from hsdag.runtime.objectives import find_objective

        return placed_parts(network, placed, CutOptions(by_load=find_objective(placed.objective).is_steady))

    loaded = placement if isinstance(placement, Placement) else Placement.load(placement)
    spare, dynamic = loaded.model.input_shapes, loaded.data_shapes is not None
    network = None if model is None else load_model(model, input_shapes(shape), spare=spare, dynamic=dynamic)
    path = Path(model) if isinstance(model, str | Path) else None
    notes: list[str] = []
    files = export_placement(loaded, format, output, network, path=path, cut=cut, tell=notes.append)
    return ExportResult(format=format, files=tuple(files), notes=tuple(notes))
