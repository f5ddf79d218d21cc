"""Objectives: the figure that a search minimises; a file of this folder adds one by its name."""

from hsdag.runtime.objectives.objective import (
    ENERGY,
    LATENCY,
    MEMORY,
    THROUGHPUT,
    Objective,
    Quantity,
    find_objective,
    objective_names,
)

__all__ = [
    "ENERGY",
    "LATENCY",
    "MEMORY",
    "THROUGHPUT",
    "Objective",
    "Quantity",
    "find_objective",
    "objective_names",
]
