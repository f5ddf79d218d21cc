"""Exercises: problems to train rules on, judged here or by workers. Legend: R rules, W weights, P exercises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hsdag.evaluators.base import Evaluator
from hsdag.fleet.pool import Exchange, Job, Pool
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.lists.rules import RuleScheduler
from hsdag.placers.memory_repair import repaired
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.tables import tables_of
from hsdag.runtime.simulator import Semantics

WORST = 4.0
"""A plan that failed, or is slower, counts as so many times the work of all ops on their fastest devices."""
JOBS, MOST_EXERCISES = 4, 8
"""Jobs for each worker, so that all end at about the same time, and exercises that a job has at most, so that little is
lost with a worker."""


class Exercise:
    """A problem to train on: values of rules by the simulator, as logarithms of shares of the work of all ops."""

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
class JudgeJob(Job[FloatArray]):
    """Values [R, P] of rules [R, W] on exercises [P]."""

    rules: FloatArray
    exercises: tuple[Exercise, ...]

    def run(self, exchange: Exchange) -> FloatArray:  # noqa: ARG002
        """As Job says."""
        return np.stack([exercise.values(list(self.rules)) for exercise in self.exercises], axis=1)


class Exercises:
    """A number of exercises; with a ``pool``, its workers compute the same values."""

    def __init__(self, exercises: Sequence[Exercise], pool: Pool | None = None) -> None:
        self._exercises, self._pool = tuple(exercises), pool

    def __len__(self) -> int:
        return len(self._exercises)

    def values(self, rules: Sequence[FloatArray], which: IntArray, check: Callable[[], None]) -> FloatArray:
        """[R, P] values of rules on some exercises. Raises what ``check`` does, which is called every so often."""
        if self._pool is None:
            columns = []
            for i in which:
                columns.append(self._exercises[i].values(rules))
                check()
            return np.stack(columns, axis=1)
        check()
        parts = parts_of(which, self._pool.num_workers)
        jobs = [JudgeJob(np.array(rules), tuple(self._exercises[i] for i in part)) for part in parts]
        return np.concatenate(self._pool.answers(jobs, check), axis=1)


def parts_of(which: IntArray, num_workers: int) -> list[IntArray]:
    """The exercises of each job."""
    num_jobs = max(JOBS * num_workers, len(which) // MOST_EXERCISES)
    return np.array_split(which, min(num_jobs, len(which)))
