"""Format affinity: OpenVINO's device by the friendly name of every op, as ``core.query_model`` gives it."""

from __future__ import annotations

import json
from typing import final

import openvino as ov

from hsdag.exports.base import DocumentExporter, openvino_names
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.placement.placement import Placement


@final
class AffinityExporter(DocumentExporter):
    """One JSON object; with the model at hand, ops have the names that they bear in it."""

    for_openvino = True

    def text(self, placement: Placement, model: ov.Model | None) -> str:
        """The map. Raises OptionError where ops of one name are on different devices."""
        devices = openvino_names(placement)
        placed = [(placement.name_of(op), devices[device]) for op, device in placement.affinity.items()]
        if model is not None:
            names = (node.get_friendly_name() for node in model.get_ordered_ops())
            placed = [(name, devices[d]) for name, d in zip(names, placement.devices_of(graph_of(model)), strict=True)]
        affinity: dict[str, str] = {}
        for name, device in placed:
            if affinity.setdefault(name, device) != device:
                raise OptionError(
                    f"ops named {name!r} are on {affinity[name]} and on {device}, which a map by names cannot say: "
                    "use --format python or ir"
                )
        return json.dumps(affinity, indent=1) + "\n"


EXPORTER = AffinityExporter()
