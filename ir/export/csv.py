"""Format csv: a table of ops and their devices."""

from __future__ import annotations

import csv
from io import StringIO
from pathlib import Path
from typing import final

from hsdag.ir.export.base import Exporter, ModelSource, openvino_names, unplaced_graph
from hsdag.ir.placement import Placement, write_atomically

COLUMNS = ("op", "type", "device", "openvino_device")


@final
class CsvExporter(Exporter):
    """One row per op under the header ``COLUMNS``; with the model at hand, types are filled in."""

    def write(self, placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        """Write one file, rows in the order of the model, or of the affinity map where there is no model."""
        model = source.model
        rows = [(placement.name_of(op), "", device) for op, device in placement.affinity.items()]
        if model is not None:
            graph = unplaced_graph(placement, model)
            rows = list(zip(graph.op_names, graph.op_types, placement.devices_of(graph), strict=True))
        names = openvino_names(placement)
        text = StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows((*row, names[row[-1]]) for row in rows)
        write_atomically(out_path, text.getvalue().encode())
        return [out_path]


EXPORTER = CsvExporter()
