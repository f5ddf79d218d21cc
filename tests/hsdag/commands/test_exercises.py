"""Exercises judged by workers: the rules that a training ends with are those of one process, whatever is lost."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import psutil
import pytest

from hsdag.commands.exercises import Exercise, Exercises
from hsdag.commands.families import find_family
from hsdag.commands.train_rules import RuleTraining, first_rule
from hsdag.evaluators.base import SearchStopped
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.fleet.job import Exchange, Job
from hsdag.fleet.local import LocalHost
from hsdag.fleet.pool import Host, Pool
from hsdag.runtime.simulator import Semantics


class Nowhere:
    """Keeps no state."""

    def save(self, tensors: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Forget it."""

    def load(self) -> None:
        """Nothing."""


class Here(Host):
    """Computes jobs in the thread of the pool."""

    name = "here"

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:  # noqa: ARG002
        return job.run(tuple(pickle.loads(shared.content) for shared in job.needs), exchange)

    def revive(self) -> bool:
        return True


def exercises(count: int) -> list[Exercise]:
    problems = [find_family("chain").problem(number) for number in range(count)]
    return [Exercise(problem, ScheduleEvaluator(problem, Semantics())) for problem in problems]


def test_rules_are_those_of_one_process_though_a_worker_is_killed_in_mid_training() -> None:
    problems, others = exercises(5), psutil.Process().children()

    def kill_at_third(update: int, _: float) -> None:
        if update == 2:
            next(child for child in psutil.Process().children() if child not in others).kill()

    alone = RuleTraining(problems, 2, 0)
    alone.run(8, Nowhere())
    with Pool([LocalHost(), LocalHost()]) as pool:
        shared = RuleTraining(problems, 2, 0, kill_at_third, pool=pool)
        shared.run(8, Nowhere())
    assert pool.num_lost == 1
    assert alone.curve[-1] < alone.curve[0]
    assert shared.curve == alone.curve
    assert np.array_equal(shared.rules, alone.rules)


def test_an_interrupt_is_noticed_though_answers_come_at_once() -> None:
    def check() -> None:
        raise SearchStopped

    with Pool([Here()]) as pool, pytest.raises(SearchStopped):
        Exercises(exercises(1), pool).values([first_rule()], np.arange(1), check)
