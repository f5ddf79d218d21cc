"""A policy that was learned on other problems as a beginning: of every learned method, and of the portfolio."""

from __future__ import annotations

from pathlib import Path

import pytest

from hsdag.cli.app import run
from hsdag.methods.incumbent import Incumbent, Limits
from hsdag.methods.lists.rules import RulesOptions, RulesPlacer
from hsdag.methods.local.sa import SaPlacer
from hsdag.methods.portfolio.auto import LISTS
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.problem_file import write_problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.recording import Budget, RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import random_problem
from tests.hsdag.methods.learned.policies import write_small_policy

SEED = 3


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_policy(tmp_path_factory.mktemp("policy") / "policy.safetensors")


@pytest.fixture(scope="module")
def problem_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problem") / "problem.json"
    write_problem(random_problem(3, 14, 3), path)
    return path


@pytest.mark.parametrize("method", ["auto", "doppler", "gdp", "hsdag", "placeto", "rnn"])
def test_a_search_begins_with_the_plans_of_a_policy(policy: Path, method: str) -> None:
    problem = random_problem(3, 40, 3)
    plans = set(RulesPlacer(RulesOptions(rounds=4, initial=str(policy))).proposals(problem_of(problem), SEED))
    for initial, begins in ((str(policy), True), ("none", False)):
        changes = {"initial": initial} | ({"without": ",".join((*LISTS, "cpsat"))} if method == "auto" else {})
        recorder = RecordingEvaluator(ScheduleEvaluator(problem, Semantics()), Budget(evaluations=60))
        make_placer(method, changes=changes, is_cheap=True).search(problem_of(problem), recorder, Limits(seed=SEED))
        assert (plans <= {event.plan for event in recorder.events}) is begins
    assert method == "auto" or not make_placer(method, "paper", is_cheap=True).options.begins_taught


@pytest.mark.parametrize(("changes", "times"), [({}, 1), ({"polish": "0"}, 0), ({"updates": "1"}, 0)])
def test_the_end_of_a_budget_of_seconds_is_annealing_from_the_best_plan(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], times: int
) -> None:
    problem, begun = ScheduleProblem.from_arrays([[1.0, 2.0]] * 2, [(0, 1)]), []

    def noted(_: SaPlacer, problem: Problem, evaluator: Incumbent, limits: Limits) -> None:
        begun.append((limits.known, (evaluator.best,)))

    monkeypatch.setattr(SaPlacer, "search", noted)
    recorder = RecordingEvaluator(ScheduleEvaluator(problem, Semantics()), Budget(60.0))
    placer = make_placer("gdp", changes={"width": "4", "blocks": "1", "patience": "1", **changes}, is_cheap=True)
    placer.search(problem_of(problem), recorder, Limits(60.0))
    assert len(begun) == times
    assert all(known == best != (None,) for known, best in begun)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--method", "heft"], "method 'heft' uses no policy: leave out --init, or choose 'auto' or the policy's own"),
        (["--set", "initial=other.safetensors"], "--init and --set initial both give a policy; leave one out"),
    ],
)
def test_where_a_policy_cannot_be_used_is_one_line(
    capsys: pytest.CaptureFixture[str], problem_file: Path, policy: Path, arguments: list[str], line: str
) -> None:
    assert run(["solve", str(problem_file), "--init", str(policy), *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"hsdag: {line}")


@pytest.mark.parametrize("method", ["auto", "doppler", "rules"])
def test_a_file_of_another_kind_is_one_line_before_any_search(
    capsys: pytest.CaptureFixture[str], problem_file: Path, tmp_path: Path, method: str
) -> None:
    path = write_small_policy(tmp_path / "other.safetensors", method="placeto")
    assert run(["solve", str(problem_file), "--init", str(path), "--method", method]) == 2
    assert "is a policy of method 'placeto', not of 'rules'" in capsys.readouterr().err
