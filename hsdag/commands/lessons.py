"""Lessons of a training: problems of a family with the plans of an expert, made here or by workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hsdag.commands.families import Family, find_family
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.fleet.pool import Exchange, Job, Pool
from hsdag.learning.doppler.pretraining import Lesson
from hsdag.runtime.platforms.usable import usable_cpus
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Semantics
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve


@dataclass(frozen=True)
class Expert:
    """Annealing for so many seconds, or for so many evaluations, which find the same plan on any machine."""

    seconds: float = 1.0
    evaluations: int | None = None
    num_threads: int = field(default_factory=usable_cpus)

    def __str__(self) -> str:
        return f"{self.seconds:g} s" if self.evaluations is None else f"{self.evaluations} evaluations"

    def options(self, seed: int) -> SolveOptions:
        """Of the search."""
        seconds = self.seconds if self.evaluations is None else math.inf
        evaluations, threads = self.evaluations, self.num_threads
        return SolveOptions("sa", budget_s=seconds, max_evaluations=evaluations, seed=seed, num_threads=threads)


@dataclass(frozen=True, eq=False)
class LessonJob(Job[Lesson]):
    """A lesson by the names of its family and the number of its problem, which is the seed of the expert, too."""

    family: str
    number: int
    expert: Expert | None

    def run(self, exchange: Exchange) -> Lesson:  # noqa: ARG002
        """As Job says."""
        return lesson_of(find_family(self.family), self.number, self.expert)


def lessons_of(
    family: Family, numbers: Sequence[int], expert: Expert | None, check: Callable[[], None], pool: Pool | None
) -> list[Lesson]:
    """Lessons by number. Raises what ``check`` does, which is called every so often."""
    if pool is not None:
        alone = None if expert is None else replace(expert, num_threads=1)
        return pool.answers([LessonJob(family.name, number, alone) for number in numbers], check)
    lessons = []
    for number in numbers:
        lessons.append(lesson_of(family, number, expert))
        check()
    return lessons


def lesson_of(family: Family, number: int, expert: Expert | None) -> Lesson:
    """A problem of a family, by number, with the best plan of an expert, if there is one."""
    problem = family.problem(number)
    units = problem_of(problem)
    evaluator = ScheduleEvaluator(problem, Semantics(), unit_of_op=units.units.partition.labels)
    assert units.costs is not None
    experts: tuple[Plan, ...] = ()
    if expert is not None:
        options = expert.options(number)
        answer = solve(problem, options.placer(), options)
        if answer.device is not None:
            first = np.unique(units.units.partition.labels, return_index=True)[1]
            order = None if answer.priority is None else answer.priority[first]
            experts = (Plan(answer.device[first], order),)
    singles = [units.nearest(np.full(units.num_units, d)).placement for d in range(units.num_devices)]
    return Lesson(units.costs, evaluator, tuple(singles), experts)
