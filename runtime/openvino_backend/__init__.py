"""Work-conserving execution on OpenVINO devices: cutting a placed model, compiling its parts, running them."""

from hsdag.runtime.cutting.cut import Cut, Subgraph, Tensor
from hsdag.runtime.cutting.merging import CutCosts, part_schedule
from hsdag.runtime.openvino_backend.compiling import (
    CutOptions,
    CutPlan,
    compile_cut,
    compile_on,
    plan_cut,
    plan_parts,
    task_graph,
)
from hsdag.runtime.openvino_backend.ports import Outputs
from hsdag.runtime.openvino_backend.requests import WorkConservingModel, WorkConservingRequest

__all__ = [
    "Cut",
    "CutCosts",
    "CutOptions",
    "CutPlan",
    "Outputs",
    "Subgraph",
    "Tensor",
    "WorkConservingModel",
    "WorkConservingRequest",
    "compile_cut",
    "compile_on",
    "part_schedule",
    "plan_cut",
    "plan_parts",
    "task_graph",
]
