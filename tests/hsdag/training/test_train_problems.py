"""Problems to train on: workers give those, and the rules, that one process does, whatever is lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsdag.methods.lists.rules import MOMENT_FEATURES, RuleScheduler
from hsdag.runtime.problem.tables import OP_FEATURES, WAY_TO_END, tables_of
from hsdag.scoring.base import SearchStopped
from hsdag.search.options import SolveOptions
from hsdag.sources import Family, find_family
from hsdag.training import problems as train_problems
from hsdag.training.problems import TrainingProblem, training_problem, training_problems
from hsdag.training.rules import RuleProblem, RuleTraining, RuleTrainingOptions, first_rule
from hsdag.training.train import TrainOptions
from hsdag.workers.pool import Pool
from tests.hsdag.training.trainings import rule_problems, trained
from tests.hsdag.workers.here import Here

TWO = RuleTrainingOptions(2)


def test_rules_are_those_of_one_process_though_a_worker_is_lost_in_mid_training() -> None:
    problems = rule_problems(5)
    alone = trained(RuleTraining(problems, TWO, 0), 8)
    assert alone.curve[-1] < alone.curve[0]
    with Pool([Here("a"), Here("b", 9)]) as pool:
        shared = trained(RuleTraining(problems, TWO, 0, pool=pool), 8)
        assert pool.num_workers == 1
    assert shared.curve == alone.curve
    assert np.array_equal(shared.rules, alone.rules)


def test_an_interrupt_is_noticed_though_answers_come_at_once() -> None:
    def check() -> None:
        raise SearchStopped

    with Pool([Here()]) as pool, pytest.raises(SearchStopped):
        RuleTraining(rule_problems(1), TWO, 0, check, pool).begin()


def test_an_expert_limited_by_evaluations_finds_the_same_plan_on_any_number_of_threads() -> None:
    expert = TrainOptions("chain", expert_evaluations=500).expert
    found = [training_problem(find_family("chain"), 1, replace(expert, num_threads=n)).experts for n in (1, 2)]
    assert found[0] == found[1]
    assert expert.budget_s == np.inf
    assert TrainOptions("chain", expert_s=2.0).expert.budget_s == 2.0


def test_the_expert_on_a_worker_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def noted(family: Family, number: int, expert: SolveOptions | None) -> TrainingProblem:
        assert expert is not None
        threads.append(expert.num_threads)
        return training_problem(family, number, None)

    monkeypatch.setattr(train_problems, "training_problem", noted)
    with Pool([Here()]) as pool:
        training_problems(find_family("chain"), range(2), SolveOptions("sa", num_threads=4), lambda: None, pool)
    assert threads == [1, 1]


@pytest.mark.parametrize(("ahead", "of_devices"), [(0.0, {1: -2.0, 2: -1.0}), (3.0, {10: -3.0})])
def test_the_first_rule_is_near_heft(ahead: float, of_devices: dict[int, float]) -> None:
    rule, begin = first_rule(ahead), len([*OP_FEATURES, *MOMENT_FEATURES])
    expected = {WAY_TO_END: 30.0, len(rule) - 1: 1.0} | {begin + k: weight for k, weight in of_devices.items()}
    assert {int(k): rule[k] for k in np.flatnonzero(rule)} == expected


def test_values_are_logarithms_of_shares_of_the_work_of_all_ops() -> None:
    (problem,) = rule_problems(1)
    training = RuleTraining([problem], TWO, 0)
    training.begin()
    of_rules = RuleProblem(problem)
    assert of_rules.unit_s == problem.costs.time_s.min(axis=1).sum()
    before = of_rules.values([first_rule()]).mean()
    values = of_rules.values(list(training.rules))
    assert values[0] < before
    assert not np.array_equal(*training.rules)
    plans = [RuleScheduler(tables_of(problem.costs)).plan(rule) for rule in training.rules]
    best = min(score.value for score in problem.evaluator.evaluate(plans))
    first, least = training.worth(problem)
    assert first == pytest.approx(best)
    assert least <= first
    assert (training.update().update, training.update().update) == (0, 1)


def test_training_improves_rules_and_goes_on_to_the_same_ones_after_an_interrupt_within_an_update() -> None:
    problems = rule_problems(4)
    whole = trained(RuleTraining(problems, TWO, 0), 12)
    assert whole.curve[-1] < whole.curve[0]
    assert (np.diff(whole.curve) <= 0).all()
    values = [RuleProblem(each).values(list(whole.rules)) for each in problems]
    assert whole.curve[-1] == np.mean(np.min(values, axis=1))
    checks = iter([False] * 30 + [True])

    def check() -> None:
        if next(checks):
            raise SearchStopped

    half = RuleTraining(problems, TWO, 0, check)
    with pytest.raises(SearchStopped):
        trained(half, 12)
    other = RuleTraining(problems, TWO, 0)
    other.restore(*half.state())
    assert other.num_updates == half.num_updates > 0
    for _ in range(half.num_updates, 12):
        other.update()
    assert np.array_equal(other.rules, whole.rules)
