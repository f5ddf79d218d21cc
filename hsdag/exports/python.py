"""Format python: a script that runs the placed model with openvino and numpy alone.

For the work-conserving executor the script needs hsdag, which is that executor.
"""

from __future__ import annotations

from pathlib import Path
from pprint import pformat
from typing import final

import openvino as ov

from hsdag.exports.base import ProgramExporter, added_library, deployed_map, unplaced_clone, used_specs
from hsdag.ir.placement.placement import Placement


@final
class PythonExporter(ProgramExporter):
    """FILE.py; with the model at hand also FILE.xml and FILE.bin, the placed model that the script reads."""

    suffixes = (".py",)

    def deployed(self, placement: Placement, model: ov.Model) -> ov.Model:
        """For the work-conserving executor the model as it is: that executor cuts it itself."""
        if placement.executor == "work-conserving":
            return unplaced_clone(placement, model)
        return super().deployed(placement, model)

    def program(self, placement: Placement, model: ov.Model | None, default: str) -> str:
        """The script for the placement's executor."""
        if placement.executor == "work-conserving":
            document = pformat(placement.model_dump(exclude_none=True), width=100, sort_dicts=False)
            return _script("side_by_side", default, f"PLACEMENT = {document}")
        devices = ((s.openvino_name, added_library(s), dict(s.properties)) for s in used_specs(placement))
        data = (
            "# Name, plugin library of a device to be added, properties.",
            "DEVICES = [",
            *(f"    {device!r}," for device in devices),
            "]",
            "AFFINITY = {",
            *(f"    {op!r}: {device!r}," for op, device in deployed_map(placement, model).items()),
            "}",
        )
        return _script("hetero", default, "\n".join(data))


def _script(name: str, default_model: str, data: str) -> str:
    """The script in ``NAME.py.in`` beside this module, with the functions that all scripts share and the data."""
    text, shared = (Path(__file__).with_name(f"{part}.py.in").read_text(encoding="utf-8") for part in (name, "shared"))
    return text.replace("# SHARED\n", shared).replace("# DATA\n", f"DEFAULT_MODEL = {default_model!r}\n{data}\n")


EXPORTER = PythonExporter()
