"""Workloads on torch devices: their ops as functions of tensors, placed, run and timed."""

from hsdag.evaluators.torch.running import Mode, RunPlan, WorkloadRun, run_workload
from hsdag.evaluators.torch.workload_graph import assemble, problem_graph, random_inputs, workload_graph

__all__ = [
    "Mode",
    "RunPlan",
    "WorkloadRun",
    "assemble",
    "problem_graph",
    "random_inputs",
    "run_workload",
    "workload_graph",
]
