"""Problems to train on, those of a family with the plans of an expert; and what every training does."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.methods.learned.training import Progress, State
from hsdag.runtime.machine.usable import usable_cpus
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
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
    """Annealing for so many seconds, or for so many evaluations, which find the same plan on any machine.

    Raises OptionError for a value out of range.
    """

    seconds: float = 1.0
    evaluations: int | None = None
    num_threads: int = field(default_factory=usable_cpus)

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise OptionError(f"--expert must be more than zero, not {self.seconds:g}")
        if self.evaluations is not None and self.evaluations < 1:
            raise OptionError(f"--expert-evaluations must be at least 1, not {self.evaluations}")

    def __str__(self) -> str:
        return f"{self.seconds:g} s" if self.evaluations is None else f"{self.evaluations} evaluations"

    @property
    def limits(self) -> dict[str, Any]:
        """Its limits as JSON values by name."""
        given = {"expert_s": self.seconds, "expert_evaluations": self.evaluations}
        return {name: value for name, value in given.items() if value is not None}

    def options(self, seed: int) -> SolveOptions:
        """Of the search."""
        seconds = self.seconds if self.evaluations is None else math.inf
        evaluations, threads = self.evaluations, self.num_threads
        return SolveOptions("sa", budget_s=seconds, max_evaluations=evaluations, seed=seed, num_threads=threads)


@dataclass(frozen=True, eq=False)
class TrainingProblem:
    """A problem to learn on, how its plans are scored, and the plans of an expert.

    ``singles`` are the placements [U] of single devices.
    """

    costs: ScheduleProblem
    evaluator: Evaluator
    singles: tuple[IntArray, ...]
    experts: tuple[Plan, ...]


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


class Training(ABC):
    """Improves a policy on problems, update by update. The same seed gives the same policy."""

    num_updates: int = 0
    """Updates that were made."""

    @abstractmethod
    def begin(self) -> None:
        """Do what comes before the first update."""

    @abstractmethod
    def update(self) -> Progress:
        """Make one update. Raises SearchStopped, everything as it was before, when the training should stop."""

    @abstractmethod
    def state(self) -> State:
        """What has to be kept to go on."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        """Take over what ``state`` gave."""

    @abstractmethod
    def policy(self) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """Weights by name, and what the card of the policy says of the method."""

    @abstractmethod
    def worth(self, problem: TrainingProblem) -> tuple[float, float]:
        """What the policy is worth on a problem as it is: the value of its first answer, and the least of 16."""
