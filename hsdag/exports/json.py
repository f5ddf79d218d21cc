"""Format json: the placement document itself."""

from __future__ import annotations

from typing import final

import openvino as ov

from hsdag.exports.base import DocumentExporter
from hsdag.ir.placement.placement import Placement


@final
class JsonExporter(DocumentExporter):
    """The file that ``Placement.load`` reads."""

    def text(self, placement: Placement, model: ov.Model | None) -> str:  # noqa: ARG002
        """The document."""
        return placement.to_json()


EXPORTER = JsonExporter()
