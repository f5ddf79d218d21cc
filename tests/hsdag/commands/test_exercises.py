"""Exercises judged by workers: the rules that a training ends with are those of one process, whatever is lost."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

from hsdag.commands.exercises import Exercises
from hsdag.commands.train_rules import RuleTraining, first_rule
from hsdag.evaluators.base import SearchStopped
from hsdag.fleet.pool import LocalHost, Pool
from tests.hsdag.commands.trainings import Nowhere, exercises
from tests.hsdag.fleet.here import Here


@pytest.mark.slow
def test_rules_are_those_of_one_process_though_a_worker_is_killed_in_mid_training() -> None:
    problems, others = exercises(5), psutil.Process().children()

    def kill_at_third(update: int, _: float) -> None:
        if update == 2:
            next(child for child in psutil.Process().children() if child not in others).kill()

    alone = RuleTraining(problems, 2, 0)
    alone.run(8, Nowhere())
    lost: list[str] = []
    with Pool([LocalHost(), LocalHost()], lost.append) as pool:
        shared = RuleTraining(problems, 2, 0, kill_at_third, pool=pool)
        shared.run(8, Nowhere())
    assert len(lost) == 1
    assert alone.curve[-1] < alone.curve[0]
    assert shared.curve == alone.curve
    assert np.array_equal(shared.rules, alone.rules)


def test_an_interrupt_is_noticed_though_answers_come_at_once() -> None:
    def check() -> None:
        raise SearchStopped

    with Pool([Here()]) as pool, pytest.raises(SearchStopped):
        Exercises(exercises(1), pool).values([first_rule()], np.arange(1), check)
