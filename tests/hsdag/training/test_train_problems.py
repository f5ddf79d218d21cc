"""Problems to train on: workers give those, and the rules, that one process does, whatever is lost."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

from hsdag.methods.learned.doppler.pretraining import TrainingProblem
from hsdag.scoring.base import SearchStopped
from hsdag.sources.families import Family, find_family
from hsdag.training import problems as train_problems
from hsdag.training.problems import Expert, training_problem, training_problems, values_of_rules
from hsdag.training.rules import RuleTraining, first_rule
from hsdag.workers.pool import LocalHost, Pool, make_pool
from tests.hsdag.training.trainings import Nowhere, rule_problems
from tests.hsdag.workers.here import Here


@pytest.mark.slow
def test_rules_are_those_of_one_process_though_a_worker_is_killed_in_mid_training() -> None:
    problems, others = rule_problems(5), psutil.Process().children()

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
        values_of_rules([first_rule()], rule_problems(1), check, pool)


@pytest.mark.slow
def test_problems_of_workers_are_those_of_this_process() -> None:
    family, expert = find_family("random-wired,chain"), Expert(evaluations=2000)
    here = training_problems(family, range(3), expert, lambda: None, None)
    with make_pool("local:2") as pool:
        there = training_problems(family, range(3), expert, lambda: None, pool)
    for one, other in zip(here, there, strict=True):
        assert one.experts == other.experts
        assert np.array_equal(one.singles, other.singles)
        assert one.evaluator.evaluate(one.experts) == other.evaluator.evaluate(other.experts)


def test_an_expert_limited_by_evaluations_finds_the_same_plan_on_any_number_of_threads() -> None:
    family, expert = find_family("chain"), Expert(evaluations=500)
    found = [training_problem(family, 1, Expert(evaluations=500, num_threads=threads)).experts for threads in (1, 2)]
    assert found[0] == found[1]
    assert expert.options(1).seed == 1
    assert expert.options(1).budget_s == np.inf
    assert Expert(2.0).options(1).budget_s == 2.0


def test_the_expert_on_a_worker_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def noted(family: Family, number: int, expert: Expert | None) -> TrainingProblem:
        assert expert is not None
        threads.append(expert.num_threads)
        return training_problem(family, number, None)

    monkeypatch.setattr(train_problems, "training_problem", noted)
    with Pool([Here()]) as pool:
        training_problems(find_family("chain"), range(2), Expert(num_threads=4), lambda: None, pool)
    assert threads == [1, 1]
