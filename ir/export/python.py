"""Format python: a script that runs the placed model with openvino and numpy alone.

For the work-conserving executor the script needs hsdag, which is that executor.
"""

from __future__ import annotations

from pathlib import Path
from pprint import pformat
from typing import final

import openvino as ov

from hsdag.ir.device import PLUGIN_LIBRARIES, DeviceSpec
from hsdag.ir.errors import OptionError
from hsdag.ir.export.base import Exporter, ModelSource, deployed_map, unplaced_clone, write_ir
from hsdag.ir.placement import Placement, write_atomically


@final
class PythonExporter(Exporter):
    """FILE.py; with the model at hand also FILE.xml and FILE.bin, the placed model that the script reads."""

    beside = (".xml", ".bin")

    def write(self, placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        """Write the script and, where the model is at hand, the IR beside it."""
        model = source.model
        if out_path.suffix != ".py":
            raise OptionError(f"--format python writes a script: end the output's name in .py, not {out_path}")
        placement.check_openvino()
        if placement.executor == "work-conserving":
            return _write_side_by_side(placement, model, out_path)
        placed = None if model is None else placement.apply(model.clone())
        default = f"{placement.model.name}.xml" if placed is None else out_path.with_suffix(".xml").name
        specs = [device.spec() for device in placement.devices if device.name in placement.used_devices]
        affinity = deployed_map(placement, placed)
        data = "\n".join(
            (
                "# Name, plugin library of a device to be added, properties.",
                "DEVICES = [",
                *(f"    {_device(spec)!r}," for spec in specs),
                "]",
                "AFFINITY = {",
                *(f"    {op!r}: {device!r}," for op, device in affinity.items()),
                "}",
            )
        )
        beside = [] if placed is None else write_ir(placed, out_path.with_suffix(".xml"))
        write_atomically(out_path, _script("hetero", default, data))
        return [out_path, *beside]


def _write_side_by_side(placement: Placement, model: ov.Model | None, out_path: Path) -> list[Path]:
    """The script for the work-conserving executor; beside it the model as it is, for that executor cuts it itself."""
    checked = None if model is None else unplaced_clone(placement, model)
    default = f"{placement.model.name}.xml" if checked is None else out_path.with_suffix(".xml").name
    document = pformat(placement.model_dump(exclude_none=True), width=100, sort_dicts=False)
    beside = [] if checked is None else write_ir(checked, out_path.with_suffix(".xml"))
    write_atomically(out_path, _script("side_by_side", default, f"PLACEMENT = {document}"))
    return [out_path, *beside]


def _script(name: str, default_model: str, data: str) -> bytes:
    """The script in ``NAME.py.in`` beside this module, with the functions that all scripts share and the data."""
    text, shared = (Path(__file__).with_name(f"{part}.py.in").read_text(encoding="utf-8") for part in (name, "shared"))
    text = text.replace("# SHARED\n", shared)
    return text.replace("# DATA\n", f"DEFAULT_MODEL = {default_model!r}\n{data}\n").encode()


def _device(spec: DeviceSpec) -> tuple[str, str | None, dict[str, str]]:
    library = PLUGIN_LIBRARIES[spec.plugin.partition(".")[0]] if spec.is_added else None
    return spec.openvino_name, library, dict(spec.properties)


EXPORTER = PythonExporter()
