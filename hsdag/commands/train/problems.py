"""Build the problems of a family to train on, with the plans of an expert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsdag.commands.sources import Family, find_family
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.base import Evaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve
from hsdag.workers.pool import Exchange, Job, Pool

WORST = 4.0
"""Largest value of a plan, relative to the time of all ops on their fastest devices; failed plans get it, too."""


def unit_s(costs: ScheduleProblem) -> float:
    """Return the seconds of all ops on their fastest devices, one after another; 1 if they take none."""
    return float(np.where(costs.supported, costs.time_s, np.inf).min(axis=1).sum()) or 1.0


@dataclass(frozen=True, eq=False)
class TrainingProblem:
    """A problem to train on.

    Attributes:
        evaluator: Evaluator of the problem's plans.
        expert: Plan of an expert; None if there is none.
    """

    costs: ScheduleProblem
    evaluator: Evaluator
    expert: Plan | None


@dataclass(frozen=True, eq=False)
class ProblemJob(Job[TrainingProblem]):
    """A job that builds a problem.

    Attributes:
        family: Name of the family.
        number: Number of the problem in the family, and seed of the expert.
        expert: Options of the expert's search; None for no expert.
    """

    family: str
    number: int
    expert: SolveOptions | None

    def run(self, exchange: Exchange) -> TrainingProblem:  # noqa: ARG002
        """Return the problem."""
        return training_problem(find_family(self.family), self.number, self.expert)


def training_problems(
    family: Family, numbers: Sequence[int], expert: SolveOptions | None, check: Callable[[], None], pool: Pool | None
) -> list[TrainingProblem]:
    """Return the problems of a family with the given numbers, built by the pool's workers if there is a pool.

    Raises what ``check`` raises, which is called repeatedly.
    """
    if pool is not None:
        alone = None if expert is None else replace(expert, num_threads=1)
        return pool.answers([ProblemJob(family.name, number, alone) for number in numbers], check)
    problems = []
    for number in numbers:
        problems.append(training_problem(family, number, expert))
        check()
    return problems


def training_problem(family: Family, number: int, expert: SolveOptions | None) -> TrainingProblem:
    """Return a problem of a family by its number, with the best plan of the expert's search, if there is an expert."""
    problem = family.problem(number)
    units = problem_of(problem)
    plan = None
    if expert is not None:
        options = replace(expert, seed=number)
        if (of_ops := solve(problem, options.placer(), options).plan) is not None:
            first = np.unique(units.units.partition.labels, return_index=True)[1]
            plan = Plan(of_ops.placement[first], None if of_ops.priority is None else of_ops.priority[first])
    return TrainingProblem(units.known_costs, ScheduleEvaluator.of(units), plan)
