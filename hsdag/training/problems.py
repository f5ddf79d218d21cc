"""Problems to train on: those of a family with the plans of an expert, and the values of rules on them.

Workers compute both where there are any. Legend: R rules, W weights, P problems.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.methods.learned.doppler.pretraining import TrainingProblem
from hsdag.methods.lists.rules import RuleScheduler
from hsdag.methods.memory_repair import repaired
from hsdag.runtime.machine.usable import usable_cpus
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import tables_of
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator import Semantics
from hsdag.scoring.base import Evaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.solving.solve import solve
from hsdag.sources.families import Family, find_family
from hsdag.workers.pool import Exchange, Job, Pool


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
class ProblemJob(Job[TrainingProblem]):
    """A problem by the names of its family and its number, which is the seed of the expert, too."""

    family: str
    number: int
    expert: Expert | None

    def run(self, exchange: Exchange) -> TrainingProblem:  # noqa: ARG002
        """As Job says."""
        return training_problem(find_family(self.family), self.number, self.expert)


def training_problems(
    family: Family, numbers: Sequence[int], expert: Expert | None, check: Callable[[], None], pool: Pool | None
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


def training_problem(family: Family, number: int, expert: Expert | None) -> TrainingProblem:
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
    return TrainingProblem(units.costs, evaluator, tuple(singles), experts)


WORST = 4.0
"""A plan that failed, or is slower, counts as so many times the work of all ops on their fastest devices."""
JOBS, MOST_PROBLEMS = 4, 8
"""Jobs for each worker, so that all end at about the same time, and problems that a job has at most, so that little is
lost with a worker."""


class RuleProblem:
    """A problem to train rules on: their values by the simulator, as logarithms of shares of the work of all ops."""

    def __init__(self, costs: ScheduleProblem, evaluator: Evaluator) -> None:
        self._costs, self._evaluator = costs, evaluator
        self._scheduler = RuleScheduler(tables_of(costs))
        self.unit_s = float(np.where(costs.supported, costs.time_s, np.inf).min(axis=1).sum()) or 1.0

    def values(self, rules: Sequence[FloatArray]) -> FloatArray:
        """[R] logarithms of the values of rules' plans, repaired where they exceed a memory; WORST where they fail."""
        plans = [self._scheduler.plan(rule) for rule in rules]
        values = np.array([score.value for score in self._evaluator.evaluate(plans)])
        failed = np.flatnonzero(~np.isfinite(values))
        if len(failed):
            mended = [Plan(repaired(self._costs, plans[i].placement, Semantics()), plans[i].order) for i in failed]
            values[failed] = [score.value for score in self._evaluator.evaluate(mended)]
        return np.asarray(np.log(np.fmin(values / self.unit_s, WORST)))


@dataclass(frozen=True, eq=False)
class ValuesJob(Job[FloatArray]):
    """Values [R, P] of rules [R, W] on problems [P]."""

    rules: FloatArray
    problems: tuple[RuleProblem, ...]

    def run(self, exchange: Exchange) -> FloatArray:  # noqa: ARG002
        """As Job says."""
        return np.stack([problem.values(list(self.rules)) for problem in self.problems], axis=1)


def values_of_rules(
    rules: Sequence[FloatArray], problems: Sequence[RuleProblem], check: Callable[[], None], pool: Pool | None = None
) -> FloatArray:
    """[R, P] values of rules on problems, by the workers of a pool where there is one.

    Raises what ``check`` does, which is called every so often.
    """
    if pool is None:
        columns = []
        for problem in problems:
            columns.append(problem.values(rules))
            check()
        return np.stack(columns, axis=1)
    check()
    num_jobs = min(max(JOBS * pool.num_workers, len(problems) // MOST_PROBLEMS), len(problems))
    parts = np.array_split(np.arange(len(problems)), num_jobs)
    jobs = [ValuesJob(np.array(rules), tuple(problems[i] for i in part)) for part in parts]
    return np.concatenate(pool.answers(jobs, check), axis=1)
