"""Format json: the placement document itself."""

from __future__ import annotations

from pathlib import Path
from typing import final

import openvino as ov

from hsdag.ir.export.base import Exporter, unplaced_graph
from hsdag.ir.placement import Placement


@final
class JsonExporter(Exporter):
    """The file that ``Placement.load`` reads."""

    def write(self, placement: Placement, model: ov.Model | None, out_path: Path) -> list[Path]:
        """Write one file; a given model is checked against the placement."""
        if model is not None:
            unplaced_graph(placement, model)
        placement.save(out_path)
        return [out_path]


EXPORTER = JsonExporter()
