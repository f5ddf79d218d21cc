"""A policy file as a beginning: an answer at once, weights to go on from, and starts of the portfolio."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hsdag.cli.app import run
from hsdag.ir.errors import FileFormatError
from hsdag.methods.base import Placer
from hsdag.methods.incumbent import Limits
from hsdag.methods.learned.doppler.network import DUAL_OPTIONS, DopplerConfig
from hsdag.methods.learned.doppler.placer import DopplerPlacer
from hsdag.methods.learned.policy import first_plans
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem_file import write_problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.recording import Budget, RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.sources import find_family
from tests.hsdag.methods.learned.doppler.policies import SMALL, write_small_policy

SEED = 3


@pytest.fixture(scope="module")
def problem() -> ScheduleProblem:
    return find_family("chain").problem(4)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_policy(tmp_path_factory.mktemp("policy") / "policy.safetensors")


@pytest.fixture(scope="module")
def problem_file(problem: ScheduleProblem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("problem") / "problem.json"
    write_problem(problem, path)
    return path


def answers(problem: ScheduleProblem, policy: Path) -> list[Plan]:
    """The plans of the policy as its file has it."""
    generator, placer = torch.Generator().manual_seed(SEED), DopplerPlacer(options_of(policy))
    return first_plans(placer.policy(problem_of(problem), generator), 16, generator)


def options_of(policy: Path) -> DopplerConfig:
    return DopplerPlacer(DopplerConfig(initial=str(policy))).options


def searched(placer: Placer[object], problem: ScheduleProblem, evaluations: float) -> list[Plan]:
    """What a search had evaluated, in order."""
    recorder = RecordingEvaluator(ScheduleEvaluator(problem, Semantics()), Budget(evaluations=evaluations))
    placer.search(problem_of(problem), recorder, Limits(seed=SEED))
    return [event.plan for event in recorder.events]


def test_a_policy_answers_at_once_with_its_most_probable_plan_and_draws(problem: ScheduleProblem, policy: Path) -> None:
    plans = searched(make_placer("doppler", changes={"initial": str(policy), "updates": "0"}), problem, 1e9)
    assert plans[problem.num_devices :] == list(dict.fromkeys(answers(problem, policy)))


def test_learning_goes_on_from_a_policy_and_does_without_its_teacher(problem: ScheduleProblem, policy: Path) -> None:
    placer = make_placer("doppler", changes={"initial": str(policy), "updates": "2", "teacher_updates": "2"})
    plans, own = searched(placer, problem, 1e9), answers(problem, policy)
    assert plans[problem.num_devices :][: len(own)] == own
    assert len(plans) > problem.num_devices + 16


def test_auto_begins_with_the_plans_of_a_policy_that_is_given(problem: ScheduleProblem, policy: Path) -> None:
    placer = make_placer("auto", changes={"initial": str(policy), "without": "cpsat,milp-split"}, is_cheap=True)
    plans = searched(placer, problem, 500)
    assert set(answers(problem, policy)) <= set(plans)


def test_solve_takes_a_policy_and_a_zero_shot_answer_beats_every_single_device(
    capsys: pytest.CaptureFixture[str], problem_file: Path, policy: Path
) -> None:
    answer = ["solve", str(problem_file), "--method", "doppler", "--init", str(policy), "--set", "updates=0", "--json"]
    assert run(answer) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["value"] < 0.9 * min(document["single_devices"].values())
    assert document["evaluations"] <= len(document["single_devices"]) + 16


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


@pytest.mark.parametrize(
    ("card", "line"),
    [
        ({"method": "placeto"}, "is a policy of method 'placeto', not of 'doppler'"),
        ({"options": {"widths": 8}}, "the card of {path} may give width, layers, encoder, "),
        ({"options": {"width": "abc"}}, "the card of {path} has width='abc': Input should be a valid integer"),
        ({"options": {"logit_range": "x"}}, "the card of {path} has logit_range='x': Input should be a valid number"),
        ({"options": {"width": 1}}, "option that is wrong: option width must be 2 to 4,096, not 1"),
        ({"options": {"encoder": "x"}}, "the card of {path} has an option that is wrong: unknown encoder 'x'"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line_before_any_search(
    capsys: pytest.CaptureFixture[str],
    problem_file: Path,
    tmp_path: Path,
    card: dict[str, object],
    line: str,
) -> None:
    path = write_small_policy(tmp_path / "other.safetensors", **card)
    assert run(["solve", str(problem_file), "--init", str(path), "--method", "doppler"]) == 2
    shown = capsys.readouterr().err.strip()
    assert line.format(path=path) in shown
    assert shown.count("\n") == 0


def test_a_policy_is_read_whose_card_lacks_an_option_and_has_one_that_is_gone(tmp_path: Path, policy: Path) -> None:
    before = {name: getattr(SMALL, name) for name in DUAL_OPTIONS if name != "direct"} | {"messages_each_step": False}
    path = write_small_policy(tmp_path / "older.safetensors", options=before)
    assert replace(options_of(path), initial=None) == replace(options_of(policy), initial=None)


def test_weights_of_other_networks_are_refused(problem_file: Path, tmp_path: Path, policy: Path) -> None:
    options = options_of(policy)
    card = {**{name: getattr(options, name) for name in DUAL_OPTIONS}, "width": 16}
    path = write_small_policy(tmp_path / "wider.safetensors", options=card)
    with pytest.raises(FileFormatError, match="does not hold the weights of its card's networks"):
        make_placer("doppler", changes={"initial": str(path)})


def test_place_refuses_a_policy_without_costs_to_read(
    capsys: pytest.CaptureFixture[str], tiny_resnet: Path, policy: Path
) -> None:
    given = ["--partition-cpu", "2", "--init", str(policy), "--reward", "measured", "--budget", "5s"]
    assert run(["place", str(tiny_resnet), *given, "--method", "doppler"]) == 2
    assert "method 'doppler' needs the costs of ops and transfers" in capsys.readouterr().err.strip().splitlines()[-1]
