"""Format csv: a table of ops and their devices."""

from __future__ import annotations

import csv
from io import StringIO
from typing import final

import openvino as ov

from hsdag.exports.base import DocumentExporter, openvino_names
from hsdag.ir.graph.build import graph_of
from hsdag.ir.placement.placement import Placement

COLUMNS = ("op", "type", "device", "openvino_device")


@final
class CsvExporter(DocumentExporter):
    """One row per op under the header ``COLUMNS``; with the model at hand, types are filled in."""

    def text(self, placement: Placement, model: ov.Model | None) -> str:
        """The table, rows in the order of the model, or of the affinity map where there is no model."""
        rows = [(placement.name_of(op), "", device) for op, device in placement.affinity.items()]
        if model is not None:
            graph = graph_of(model)
            rows = list(zip(graph.op_names, graph.op_types, placement.devices_of(graph), strict=True))
        names = openvino_names(placement)
        text = StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows((*row, names[row[-1]]) for row in rows)
        return text.getvalue()


EXPORTER = CsvExporter()
