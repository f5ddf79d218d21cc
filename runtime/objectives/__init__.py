"""Objectives: the figure that a search minimises, one file each, found by its name."""

from hsdag.runtime.objectives.base import Meter, Objective, find_objective, objective_names

__all__ = ["Meter", "Objective", "find_objective", "objective_names"]
