"""Work-conserving execution on OpenVINO devices: cutting a placed model, compiling its parts, running them."""

from hsdag.runtime.cutting.cut import Cut, Tensor
from hsdag.runtime.cutting.merging import CutCosts, part_schedule
from hsdag.runtime.openvino_backend.compiling import CutOptions, compile_on, compile_placed, plan_cut
from hsdag.runtime.openvino_backend.requests import WorkConservingModel

__all__ = [
    "Cut",
    "CutCosts",
    "CutOptions",
    "Tensor",
    "WorkConservingModel",
    "compile_on",
    "compile_placed",
    "part_schedule",
    "plan_cut",
]
