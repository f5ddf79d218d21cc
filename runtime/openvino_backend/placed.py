"""Placement files for work-conserving execution: from a model and its placement to something that infers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openvino as ov

from hsdag.ir.build import graph_of
from hsdag.ir.placement import Placement
from hsdag.runtime.openvino_backend.compiling import CutOptions, compile_on
from hsdag.runtime.openvino_backend.requests import WorkConservingModel
from hsdag.runtime.problems.objectives import find_objective


def compile_placed(
    model: ov.Model,
    placement: Placement,
    *,
    core: Any = None,
    properties: Mapping[str, Any] | None = None,
    options: CutOptions | None = None,
) -> WorkConservingModel:
    """``hsdag.compile_work_conserving``; ``options`` are by default those of the placement's objective."""
    options = options or CutOptions(objective=find_objective(placement.objective))
    model = placement.fixed(model)
    graph = graph_of(model)
    specs = {record.name: record.spec() for record in placement.devices if record.name in placement.used_devices}
    devices, ranks = [specs[name].openvino_name for name in placement.devices_of(graph)], placement.priority_of(graph)
    return compile_on(core or ov.Core(), model, graph, list(specs.values()), devices, ranks, options, properties)
