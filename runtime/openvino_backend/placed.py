"""Placement files for work-conserving execution: from a model and its placement to something that infers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino as ov

from hsdag.ir.affinity import check_placement
from hsdag.ir.build import graph_of
from hsdag.ir.placement import Placement
from hsdag.runtime.openvino_backend.compiling import CutOptions, cleaned, compile_cut, plan_cut
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
    model, graph = cleaned(model)
    check_placement(placement, graph_of(model))
    used = placement.used_devices
    specs = [record.spec() for name in used for record in placement.devices if record.name == name]
    index = {name: d for d, name in enumerate(used)}
    device = np.asarray([index[placement.affinity[name]] for name in graph.op_names], dtype=np.int64)
    ranks = placement.priority or {}
    known = [ranks.get(name) for name in graph.op_names]
    priority = np.asarray([np.inf if rank is None else rank for rank in known], dtype=np.float64) if ranks else None
    plan = plan_cut(graph, device, len(specs), options, priority)
    return compile_cut(core or ov.Core(), model, plan, specs, options, properties)
