"""The worker's part in work-conserving execution: compiling a placement, and recording when its parts ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import DeviceError, ExecutionError, PlacementError
from hsdag.ir.graph import ComputationGraph
from hsdag.runtime.measuring.messages import Open
from hsdag.runtime.openvino_backend import (
    CutOptions,
    WorkConservingModel,
    WorkConservingRequest,
    compile_cut,
    plan_cut,
)
from hsdag.runtime.problems.objectives import find_objective


def compile_side_by_side(
    core: Any, model: ov.Model, graph: ComputationGraph, specs: Sequence[DeviceSpec], request: Open
) -> WorkConservingModel:
    """Compile the placement of a request: OpenVINO's ``devices`` per op, those of ``target`` in their order.

    Raises ExecutionError where this placement does not compile, and ModelError for models that no placement suits.
    """
    order = request.target.split(",")
    used = [next(spec for spec in specs if spec.openvino_name == name) for name in order]
    device = np.array([order.index(name) for name in request.devices or ()], dtype=np.int64)
    ranks = request.priority
    priority = None if ranks is None else np.array([np.inf if r is None else r for r in ranks], dtype=np.float64)
    options = CutOptions(limit_s=request.inference_limit_s, objective=find_objective(request.objective))
    try:
        plan = plan_cut(graph, device, len(used), options, priority)
        return compile_cut(core, model, plan, used, options, request.properties)
    except (DeviceError, PlacementError) as error:
        raise ExecutionError(str(error)) from error


def timeline_document(request: WorkConservingRequest, runs: int) -> dict[str, Any]:
    """When every subgraph ran in the median one of ``runs`` inferences, after two to warm up."""
    found = []
    for _ in range(runs + 2):
        request.infer()
        found.append((request.latency, request.timeline))
    timeline = sorted(found[2:], key=lambda run: run[0])[(runs - 1) // 2][1]
    return {
        "names": list(timeline.op_names),
        "types": list(timeline.op_types),
        "devices": list(timeline.device_names),
        "op": timeline.ops.op.tolist(),
        "device": timeline.ops.device.tolist(),
        "start_s": timeline.ops.start_s.tolist(),
        "end_s": timeline.ops.end_s.tolist(),
        "edges": timeline.edges.tolist(),
    }
