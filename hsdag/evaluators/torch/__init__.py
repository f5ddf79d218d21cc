"""Workloads on torch devices: their ops as functions of tensors, placed, run and timed."""

from hsdag.evaluators.torch.workload_graph import (
    WorkloadRun,
    problem_graph,
    random_inputs,
    run_workload,
    workload_graph,
)

__all__ = ["WorkloadRun", "problem_graph", "random_inputs", "run_workload", "workload_graph"]
