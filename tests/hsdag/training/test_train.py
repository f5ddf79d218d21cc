"""Training a policy for reuse: resumed, it goes the same way; used again, it answers at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from hsdag.cli.app import run
from hsdag.ir.errors import OptionError, SearchError
from hsdag.runtime.problem.plan import Plan
from hsdag.scoring.base import CurvePoint, Score, SearchStopped
from hsdag.scoring.policy_file import read_policy
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.sources import Family, find_family
from hsdag.training import problems as train_problems
from hsdag.training import train
from hsdag.training.problems import TrainingProblem, training_problem
from hsdag.training.rules import RuleTraining
from hsdag.training.train import TrainOptions, TrainResult, means_over_expert, run_train

SMALL = TrainOptions("enas", problems=2, updates=6, expert_s=0.05, unseen=1, changes={"rules": "2"})


def with_single_device(family: Family, number: int, expert: SolveOptions | None) -> TrainingProblem:
    """A problem whose expert leaves all ops on the first device, whatever the time."""
    problem = training_problem(family, number, None)
    plan = Plan(np.zeros(problem.costs.num_ops, dtype=np.int64))
    return replace(problem, experts=() if expert is None else (plan,))


def test_a_training_that_was_interrupted_goes_on_to_the_weights_of_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_problems, "training_problem", with_single_device)
    whole, path, saved = tmp_path / "whole.safetensors", tmp_path / "policy.safetensors", list[bool]()
    run_train(SMALL, whole, on_update=lambda _: saved.append(whole.with_suffix(".state").exists()))
    assert saved == [False] * SMALL.updates  # in the first seconds nothing is
    monkeypatch.setattr(train, "SAVE_EVERY_S", -1.0)
    state = interrupted(path)
    run_train(SMALL, path, resume=True)
    first, second = read_policy(whole, "rules"), read_policy(path, "rules")
    assert not state.exists()
    assert first.weights.keys() == second.weights.keys()
    assert all(np.array_equal(first.weights[name], second.weights[name]) for name in first.weights)


def interrupted(path: Path) -> Path:
    """The file of a state after some updates of a training."""
    done = list[CurvePoint]()
    with pytest.raises(SearchStopped):
        run_train(SMALL, path, watcher=Watcher(should_stop=lambda: len(done) == 3), on_update=done.append)
    return path.with_suffix(".state")


def test_only_the_same_training_goes_on_from_a_state_and_another_is_refused_before_it_begins(tmp_path: Path) -> None:
    path, begun = tmp_path / "policy.safetensors", list[str]()
    kept = interrupted(path).read_bytes()
    others: list[tuple[dict[str, Any], str]] = [
        ({"family": "chain"}, r"other options of \w+ \(family\)"),
        ({"problems": 3, "seed": 1}, r"\(problems, seed\)"),
        ({"expert_s": 0.1}, r"\(expert_s\)"),
        ({"changes": {"rules": "4"}}, r"\(rules\)"),
        ({"updates": 1}, r"has made [2-6] updates.* --updates .* at least as many, not 1"),
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
    with pytest.raises(SearchError, match=r"policy.state holds an interrupted training.*--resume"):
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
    path, curve, shown = tmp_path / "policy.safetensors", tmp_path / "curve.svg", []
    for extra in (("--curve", str(curve)), ("--json",)):
        begin = ("train", "enas", "-o", str(path), "--problems", "2", "--updates", "1", "--unseen", "1")
        assert run([*begin, "--set", "rules=2", *extra]) == 0
        shown.append(capsys.readouterr().out)
    assert "no plan within memory: the first answer on 1, any of 16 on 1" in " ".join(shown[0].split())
    assert "training on enas" in curve.read_text()
    with safe_open(path, framework="np") as stored:
        card = strict(stored.metadata()["card"])
    assert card["unseen"] == strict(shown[1])["card"]["unseen"]
    assert (card["unseen"]["first_over_annealing"], card["unseen"]["best_failed"]) == (None, 1)


@pytest.mark.parametrize("is_saved", [True, False])
def test_an_interrupted_command_names_the_state_that_it_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_saved: bool
) -> None:
    def stopped(_: TrainOptions, path: Path, **__: object) -> TrainResult:
        path.with_suffix(".state" if is_saved else ".other").touch()
        raise SearchStopped

    monkeypatch.setattr(train, "run_train", stopped)
    assert run(["train", "enas", "-o", str(tmp_path / "p.safetensors")]) == 130
    said = "".join(capsys.readouterr().err.split())
    found = "--resume" in said, f"{tmp_path}/p.state" in said, "nothingwassaved" not in said
    assert found == (is_saved, is_saved, is_saved)


def test_options_of_a_training_are_checked() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"updates": 0}, "--updates must be at least 1, not 0"),
        ({"expert_s": 0.0}, "--expert must be more than zero, not 0"),
        ({"expert_evaluations": 0}, "--expert-evaluations must be at least 1, not 0"),
        ({"workers": "two"}, "--workers 'two' is none of local:N"),
    ]
    for changes, answer in wrong:
        with pytest.raises(OptionError, match=answer):
            TrainOptions("enas", **changes)
    assert TrainOptions("enas", updates=1, problems=1, unseen=1).expert_limit == "1 s"
    assert TrainOptions("enas", expert_evaluations=1, changes={"rules": "1"}).expert_limit == "1 evaluations"
    TrainOptions("enas", problems=2, seed=499_999)
    with pytest.raises(OptionError, match=r"at most 1000000, .* tried on, not 1000002"):
        TrainOptions("enas", problems=2, seed=500_000)
    with pytest.raises(OptionError, match="there is no family 'cats'"):
        run_train(TrainOptions("cats"), Path("unused.safetensors"))
