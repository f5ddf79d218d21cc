"""Placement files for work-conserving execution: from a model and its placement to something that infers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov

from hsdag.ir.build import graph_of
from hsdag.ir.placement import Placement
from hsdag.runtime.openvino_backend.compiling import CutOptions, compile_cut, plan_cut
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
    devices, ranks = placement.devices_of(graph), placement.priority_of(graph)
    used = placement.used_devices
    specs = [record.spec() for name in used for record in placement.devices if record.name == name]
    index = {name: d for d, name in enumerate(used)}
    device = np.asarray([index[name] for name in devices], dtype=np.int64)
    priority = None if ranks is None else np.asarray([np.inf if r is None else r for r in ranks], dtype=np.float64)
    plan = plan_cut(graph, device, len(specs), options, priority)
    return compile_cut(core or ov.Core(), model, plan, specs, options, properties)
