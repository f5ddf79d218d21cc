"""Training a policy for reuse: problems, rules and curves; resumed, or on workers, it goes the same way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from hsdag.base.errors import OptionError, SearchError
from hsdag.cli.app import run
from hsdag.commands.sources import Family, find_family
from hsdag.commands.train import problems as train_problems
from hsdag.commands.train import train
from hsdag.commands.train.problems import TrainingProblem, training_problem
from hsdag.commands.train.rules import RuleProblem, RuleTraining, RuleTrainingOptions, first_rule
from hsdag.commands.train.train import TrainOptions, means_over_expert, run_train
from hsdag.methods.lists.rules import MOMENT_FEATURES, RuleScheduler
from hsdag.methods.policy_file import read_policy
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.tables import OP_FEATURES, WAY_TO_END, tables_of
from hsdag.search.driver import Watcher
from hsdag.search.evaluators.base import Score, SearchStopped
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.workers.pool import Pool
from tests.hsdag.methods.searches import not_none
from tests.hsdag.workers.here import Here

SMALL = TrainOptions("enas", problems=2, updates=6, expert_evaluations=500, unseen=1, changes={"rules": "2"})


def with_single_device(family: Family, number: int, expert: SolveOptions | None) -> TrainingProblem:
    """A problem whose expert leaves all ops on the first device, whatever the time."""
    problem = training_problem(family, number, None)
    plan = Plan(np.zeros(problem.costs.num_ops, dtype=np.int64))
    return replace(problem, expert=None if expert is None else plan)


def test_a_training_that_was_interrupted_goes_on_to_the_weights_of_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_problems, "training_problem", with_single_device)
    whole, path, saved = tmp_path / "whole.safetensors", tmp_path / "policy.safetensors", list[bool]()
    monkeypatch.setattr(train, "SAVE_EVERY_S", np.inf)
    run_train(SMALL, whole, watcher=Watcher(on_step=lambda _: saved.append(whole.with_suffix(".state").exists())))
    assert saved == [False] * SMALL.updates  # before that time nothing is
    monkeypatch.setattr(train, "SAVE_EVERY_S", -1.0)
    state = interrupted(path)
    run_train(SMALL, path, resume=True)
    first, second = read_policy(whole, "rules"), read_policy(path, "rules")
    assert not state.exists()
    assert first.weights.keys() == second.weights.keys()
    assert all(np.array_equal(first.weights[name], second.weights[name]) for name in first.weights)


def interrupted(path: Path) -> Path:
    """The file of a state after some updates of a training."""
    done = list[str]()
    with pytest.raises(SearchStopped):
        run_train(SMALL, path, watcher=Watcher(should_stop=lambda: len(done) == 3, on_step=done.append))
    assert done[-1] == "update 3 of 6"
    return path.with_suffix(".state")


def test_only_the_same_training_goes_on_from_a_state_and_another_is_refused_before_it_begins(tmp_path: Path) -> None:
    path, begun = tmp_path / "policy.safetensors", list[str]()
    kept = interrupted(path).read_bytes()
    others: list[tuple[dict[str, Any], str]] = [
        ({"family": "chain"}, r"other options of \w+ \(family\)"),
        ({"problems": 3, "seed": 1}, r"\(problems, seed\)"),
        ({"expert_evaluations": 9}, r"\(expert_evaluations\)"),
        ({"changes": {"rules": "4"}}, r"\(rules\)"),
        ({"updates": 1}, r"has made [2-6] updates.* updates .* at least as many, not 1"),
    ]
    for changes, answer in others:
        with pytest.raises(SearchError, match=answer):
            run_train(replace(SMALL, **changes), path, resume=True, watcher=Watcher(begun.append))
    assert begun == []
    assert path.with_suffix(".state").read_bytes() == kept
    assert run_train(replace(SMALL, updates=8), path, resume=True).card["updates"] == 8


def test_a_training_that_was_interrupted_is_not_lost_by_a_command_without_resume(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    state = interrupted(path)
    kept = state.read_bytes()
    with pytest.raises(OptionError, match="no hyper-parameter 'ruless'"):
        run_train(replace(SMALL, changes={"ruless": "4"}), path)
    with pytest.raises(SearchError, match=r"policy.state holds an interrupted training.*resume"):
        run_train(SMALL, path)
    assert state.read_bytes() == kept
    with pytest.raises(SearchError, match=r"nothing to resume: there is no .*other.state"):
        run_train(SMALL, tmp_path / "other.safetensors", resume=True)


def strict(text: str) -> Any:
    """JSON without the numbers that it does not have."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_means_leave_out_problems_without_a_plan_within_memory_and_count_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = iter([(np.inf, 2.0), (4.0, 3.0), (np.inf, np.inf)] + [(np.inf, np.inf)] * 2)
    monkeypatch.setattr(train_problems, "training_problem", with_single_device)
    monkeypatch.setattr(ScheduleEvaluator, "evaluate", lambda _, plans: [Score(2.0)] * len(plans))
    unseen = [with_single_device(find_family("enas"), number, SMALL.expert) for number in range(3)]
    assert means_over_expert(lambda _: next(found), unseen) == {
        "problems": 3, "first_over_annealing": 2.0, "first_failed": 2, "best_of_16": 1.25, "best_failed": 1
    }  # fmt: skip
    monkeypatch.setattr(RuleTraining, "worth", lambda *_: next(found))
    path, shown = tmp_path / "policy.safetensors", []
    for extra in ((), ("--json",)):
        begin = ("train", "enas", "-o", str(path), "--problems", "2", "--updates", "1", "--unseen", "1")
        assert run([*begin, "--set", "rules=2", *extra]) == 0
        shown.append(capsys.readouterr().out)
    assert "no plan within memory: the first answer on 1, any of 16 on 1" in " ".join(shown[0].split())
    with safe_open(path, framework="np") as stored:
        card = strict(stored.metadata()["card"])
    assert card["unseen"] == strict(shown[1])["card"]["unseen"]
    assert (card["unseen"]["first_over_annealing"], card["unseen"]["best_failed"]) == (None, 1)


def test_options_of_a_training_are_checked() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"updates": 0}, "updates must be at least 1, not 0"),
        ({"expert_evaluations": 0}, "expert_evaluations must be at least 1, not 0"),
        ({"workers": "two"}, "workers 'two' is none of local:N"),
    ]
    for changes, answer in wrong:
        with pytest.raises(OptionError, match=answer):
            TrainOptions("enas", **changes)
    TrainOptions("enas", updates=1, problems=1, unseen=1, expert_evaluations=1, changes={"rules": "1"})
    TrainOptions("enas", problems=2, seed=499_999)
    with pytest.raises(OptionError, match=r"at most 1000000, .* tried on, not 1000002"):
        TrainOptions("enas", problems=2, seed=500_000)
    with pytest.raises(OptionError, match="there is no family 'cats'"):
        run_train(TrainOptions("cats"), Path("unused.safetensors"))


TWO = RuleTrainingOptions(2)


def test_rules_are_those_of_one_process_though_a_worker_is_lost_in_mid_training() -> None:
    problems = rule_problems(5)
    alone = trained(RuleTraining(problems, TWO, 0), 8)
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
    one, two = (training_problem(find_family("chain"), 1, replace(expert, num_threads=n)).expert for n in (1, 2))
    assert one == two
    assert not_none(one).priority is not None
    assert expert.budget_s == np.inf


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
    plans = [RuleScheduler(tables_of(problem.costs)).schedule(rule).plan for rule in training.rules]
    best = min(score.value for score in problem.evaluator.evaluate(plans))
    first, least = training.worth(problem)
    assert first == pytest.approx(best)
    assert least <= first


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


def rule_problems(count: int) -> list[TrainingProblem]:
    return [training_problem(find_family("chain"), number, None) for number in range(count)]


def trained(training: RuleTraining, updates: int) -> RuleTraining:
    """The training, begun and with so many updates made."""
    training.begin()
    for _ in range(updates):
        training.update()
    return training
