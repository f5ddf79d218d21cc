"""Format affinity: OpenVINO's device by the friendly name of every op, as ``core.query_model`` gives it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import final

from hsdag.ir.build import graph_of
from hsdag.ir.errors import OptionError
from hsdag.ir.export.base import Exporter, ModelSource, openvino_names, unplaced_clone
from hsdag.ir.placement import Placement, write_atomically


@final
class AffinityExporter(Exporter):
    """One JSON object; with the model at hand, ops have the names that they bear in it."""

    def write(self, placement: Placement, source: ModelSource, out_path: Path) -> list[Path]:
        """Write one file. Raises OptionError where ops of one name are on different devices."""
        placement.check_openvino()
        devices = openvino_names(placement)
        placed = [(placement.name_of(op), devices[device]) for op, device in placement.affinity.items()]
        if source.model is not None:
            model = unplaced_clone(placement, source.model)
            names = (node.get_friendly_name() for node in model.get_ordered_ops())
            placed = [(name, devices[d]) for name, d in zip(names, placement.devices_of(graph_of(model)), strict=True)]
        affinity: dict[str, str] = {}
        for name, device in placed:
            if affinity.setdefault(name, device) != device:
                raise OptionError(
                    f"ops named {name!r} are on {affinity[name]} and on {device}, which a map by names cannot say: "
                    "use --format python or ir"
                )
        write_atomically(out_path, (json.dumps(affinity, indent=1) + "\n").encode())
        return [out_path]


EXPORTER = AffinityExporter()
