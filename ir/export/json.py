"""Format json: the placement document itself."""

from __future__ import annotations

from pathlib import Path
from typing import final

from hsdag.ir.export.base import Exporter, ModelSource, unplaced_graph
from hsdag.ir.placement import Placement


@final
class JsonExporter(Exporter):
    """The file that ``Placement.load`` reads."""

    def write(self, placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        """Write one file; a given model is checked against the placement."""
        model = source.model
        if model is not None:
            unplaced_graph(placement, model)
        placement.save(out_path)
        return [out_path]


EXPORTER = JsonExporter()
