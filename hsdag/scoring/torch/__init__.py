"""Problem files on torch devices: their ops as functions of tensors, and the worker that measures placements."""

from hsdag.scoring.torch.workload_graph import problem_graph, random_inputs

__all__ = ["problem_graph", "random_inputs"]
