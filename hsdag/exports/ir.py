"""Format ir: an OpenVINO IR that carries its placement."""

from __future__ import annotations

from pathlib import Path
from typing import final

from hsdag.exports.base import Exporter, ModelSource, unplaced_clone
from hsdag.ir.files import write_ir
from hsdag.ir.placement.placement import RT_INFO_PATH, Placement


@final
class IrExporter(Exporter):
    """FILE.xml and FILE.bin: the model as it is, with the placement document in its rt_info.

    ``Placement.from_model(model).compile(core, model)`` compiles it as placed.
    """

    needs_model = True
    for_openvino = True
    suffixes = (".xml",)
    beside = (".bin",)

    def write(self, placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        """Write two files."""
        assert source.model is not None
        placed = unplaced_clone(placement, source.model)
        placed.set_rt_info(placement.to_json(), RT_INFO_PATH)
        return write_ir(placed, out_path)


EXPORTER = IrExporter()
