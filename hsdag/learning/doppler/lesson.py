"""Lesson: a problem that a network for many problems is trained on."""

from __future__ import annotations

from dataclasses import dataclass

from hsdag.evaluators.base import Evaluator
from hsdag.ir.graph import IntArray
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


@dataclass(frozen=True, eq=False)
class Lesson:
    """A problem to learn on, how its plans are scored, and the plans of an expert.

    ``singles`` are the placements [U] of single devices.
    """

    costs: ScheduleProblem
    evaluator: Evaluator
    singles: tuple[IntArray, ...]
    experts: tuple[Plan, ...]
