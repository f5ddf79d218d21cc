"""Searches of placers under a recorder, for tests of several families."""

from __future__ import annotations

from dataclasses import replace

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.methods.incumbent import Limits, Status
from hsdag.methods.registry import make_placer
from hsdag.runtime.objectives import LATENCY, Objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.recording import Budget, Event, RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator

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
    """All evaluations of a search, and what it returned if it came to its end; plans are those of ops."""
    semantics = semantics or Semantics()
    units = problem_of(problem, objective, semantics)
    inner = ScheduleEvaluator.of(units)
    evaluator = RecordingEvaluator(inner, Budget(evaluations=most))
    result = make_placer(method).search(units, evaluator, Limits(seed=seed))
    returned = None
    if result.plan is not None and result.status is not Status.TIME_LIMIT:
        returned = units.expand(result.plan.placement)
    plans = [Plan(units.expand(e.plan.placement), inner.ranks(e.plan)) for e in evaluator.events]
    return [replace(event, plan=plan) for event, plan in zip(evaluator.events, plans, strict=True)], returned
