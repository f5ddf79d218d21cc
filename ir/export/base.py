"""What an export format is, how it is found by its name, and the placed model as every format sees it."""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import openvino as ov

from hsdag.ir.build import graph_of, ordered_ops
from hsdag.ir.errors import OptionError, OutputError
from hsdag.ir.graph import ComputationGraph
from hsdag.ir.placement import Placement
from hsdag.ir.reader import last_line


class Exporter(ABC):
    """One format. The module ``hsdag.ir.export.NAME`` holds one as ``EXPORTER``."""

    needs_model: bool = False

    @abstractmethod
    def write(self, placement: Placement, model: ov.Model | None, out_path: Path) -> list[Path]:
        """Write the files of a placement and return them, the one to open first in front.

        ``model`` is the model the placement is for, and is left as it is. Raises OptionError for an
        ``out_path`` that does not fit the format, PlacementError when the model is another one, and
        OutputError when a file cannot be written.
        """


def export_formats() -> tuple[str, ...]:
    """Names of the formats, in alphabetical order."""
    package = import_module("hsdag.ir.export")
    names = (module.name for module in iter_modules(package.__path__))
    return tuple(sorted(name for name in names if name != "base" and not name.startswith("_")))


def export_placement(
    placement: Placement,
    format: str,  # noqa: A002
    out_path: str | Path,
    model: ov.Model | None = None,
) -> list[Path]:
    """Write a placement in one of ``export_formats()`` and return the files written.

    ``model`` is left as it is. Raises OptionError for an unknown format and where a model is needed but not
    given, PlacementError when the model is another one, and OutputError when a file cannot be written.
    """
    if format not in export_formats():
        raise OptionError(f"--format {format!r} is unknown; choose one of {', '.join(export_formats())}")
    exporter: Exporter = import_module(f"hsdag.ir.export.{format}").EXPORTER
    if exporter.needs_model and model is None:
        raise OptionError(f"--format {format} needs the model the placement is for: name it with --model")
    return exporter.write(placement, model, Path(out_path))


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
        reason = error.strerror if isinstance(error, OSError) and error.strerror else last_line(error)
        raise OutputError(
            f"model {xml_path} cannot be written: {reason}; check the folder's rights and space"
        ) from error
    return [xml_path, xml_path.with_suffix(".bin")]


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
