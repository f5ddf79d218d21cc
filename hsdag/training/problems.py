"""Problems to train on: those of a family, with the plans of an expert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.base import Evaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve
from hsdag.sources import Family, find_family
from hsdag.workers.pool import Exchange, Job, Pool


@dataclass(frozen=True, eq=False)
class TrainingProblem:
    """A problem to learn on, how its plans are scored, and the plans of an expert."""

    costs: ScheduleProblem
    evaluator: Evaluator
    experts: tuple[Plan, ...]


@dataclass(frozen=True, eq=False)
class ProblemJob(Job[TrainingProblem]):
    """A problem by the names of its family and its number, which is the seed of the expert, too."""

    family: str
    number: int
    expert: SolveOptions | None

    def run(self, exchange: Exchange) -> TrainingProblem:  # noqa: ARG002
        """As Job says."""
        return training_problem(find_family(self.family), self.number, self.expert)


def training_problems(
    family: Family, numbers: Sequence[int], expert: SolveOptions | None, check: Callable[[], None], pool: Pool | None
) -> list[TrainingProblem]:
    """Problems of a family by number. Raises what ``check`` does, which is called every so often."""
    if pool is not None:
        alone = None if expert is None else replace(expert, num_threads=1)
        return pool.answers([ProblemJob(family.name, number, alone) for number in numbers], check)
    problems = []
    for number in numbers:
        problems.append(training_problem(family, number, expert))
        check()
    return problems


def training_problem(family: Family, number: int, expert: SolveOptions | None) -> TrainingProblem:
    """A problem of a family, by number, with the best plan of an expert's search, if there is an expert."""
    problem = family.problem(number)
    units = problem_of(problem)
    experts: tuple[Plan, ...] = ()
    if expert is not None:
        options = replace(expert, seed=number)
        if (plan := solve(problem, options.placer(), options).plan) is not None:
            first = np.unique(units.units.partition.labels, return_index=True)[1]
            experts = (Plan(plan.placement[first], None if plan.priority is None else plan.priority[first]),)
    return TrainingProblem(units.known_costs, ScheduleEvaluator.of(units), experts)
