"""Searches of placers under a recorder, for tests of several families."""

from __future__ import annotations

from dataclasses import replace

from hsdag.evaluators.recording import Budget, Event, RecordingEvaluator
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.ir.graph import IntArray
from hsdag.placers.incumbent import Limits, Status
from hsdag.placers.registry import make_placer
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.latency import LATENCY
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Semantics

A_FEW = 60


def recorded(
    problem: ScheduleProblem,
    method: str,
    semantics: Semantics | None = None,
    objective: Objective = LATENCY,
    *,
    most: float = A_FEW,
    seed: int = 0,
) -> tuple[list[Event], IntArray | None]:
    """All evaluations of a search, and what it returned if it came to its end; placements are those of ops."""
    semantics = semantics or Semantics()
    units = problem_of(problem, objective, semantics)
    inner = ScheduleEvaluator(problem, semantics, objective, units.units.partition.labels)
    evaluator = RecordingEvaluator(inner, Budget(evaluations=most))
    result = make_placer(method).search(units, evaluator, Limits(seed=seed))
    returned = None
    if result.plan is not None and result.status is not Status.TIME_LIMIT:
        returned = units.expand(result.plan.placement)
    return [replace(e, plan=Plan(units.expand(e.plan.placement), e.plan.order)) for e in evaluator.events], returned
