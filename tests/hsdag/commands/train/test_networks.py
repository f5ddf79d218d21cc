"""Training networks on many problems: shared weights, resumed trainings, and searches that begin with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hsdag.base.errors import FileFormatError, OptionError
from hsdag.commands.sources import find_family
from hsdag.commands.train.networks import NetworkTraining, reusable_options
from hsdag.commands.train.problems import TrainingProblem, training_problem
from hsdag.commands.train.train import TrainOptions, run_train
from hsdag.methods.incumbent import Limits
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.policy_file import read_policy, shipped_policy
from hsdag.methods.registry import begun_with, make_placer
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.search.driver import Watcher
from hsdag.search.evaluators.base import SearchStopped
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.searches import not_none

METHODS = ("doppler", "hsdag")


def network_problems(count: int) -> list[TrainingProblem]:
    """Problems of two families, so that they differ in their ops and their devices."""
    return [training_problem(find_family("chain,enas"), number, None) for number in range(count)]


def begun(method: str, count: int = 2, updates: int = 8, seed: int = 0) -> NetworkTraining:
    training = NetworkTraining(method, network_problems(count), reusable_options(method), seed, updates)
    training.begin()
    return training


@pytest.mark.parametrize("method", METHODS)
def test_problems_share_all_weights_but_those_of_their_own_units_and_take_turns(method: str) -> None:
    training = begun(method, 3)
    before = {name: each.copy() for name, each in training.weights.items()}
    seen = set[tuple[str, ...]]()
    for number in range(1, 7):
        training.update()
        seen.add(tuple(str(trainer.updates.number) for trainer in training.trainers))
        assert len(training.curve) == number // 3
    assert [trainer.updates.number for trainer in training.trainers] == [2, 2, 2]
    assert all(max(map(int, each)) - min(map(int, each)) <= 1 for each in seen)
    assert any(not np.array_equal(before[name], each) for name, each in training.weights.items())
    for trainer in training.trainers:
        of_problem = trainer.policy.network.state_dict().keys() - training.weights.keys()
        assert {name.partition(".")[0] for name in of_problem} <= {"own", "placer"}
        for name, weights in training.weights.items():
            assert np.array_equal(trainer.policy.network.state_dict()[name], weights)
        own = [each for name, each in trainer.policy.network.state_dict().items() if name.startswith("own.")]
        assert own
        assert not any(each.any() for each in own)


@pytest.mark.parametrize("method", METHODS)
def test_a_training_of_networks_goes_on_to_the_weights_of_one_without_a_break(method: str) -> None:
    whole, half, other = begun(method), begun(method), begun(method, seed=0)
    for _ in range(5):
        whole.update()
    for _ in range(3):
        half.update()
    other.restore(*half.state())
    for _ in range(2):
        other.update()
    assert other.num_updates == whole.num_updates
    assert other.curve == whole.curve
    assert all(np.array_equal(whole.weights[name], other.weights[name]) for name in whole.weights)


def test_training_makes_first_draws_better_on_other_problems() -> None:
    training = begun("doppler", 4, 120)
    drawn = [training_problem(find_family("chain,enas"), 1_000 + k, None) for k in range(12)]
    unseen = [each for each in drawn if np.isinf(each.costs.memory_bytes).all()]
    assert len(unseen) > 3
    before = np.log([training.worth(each)[0] for each in unseen])
    for _ in range(120):
        training.update()
    assert np.mean(np.log([training.worth(each)[0] for each in unseen]) - before) < -0.01


@pytest.mark.parametrize("method", METHODS)
def test_a_search_begins_with_the_weights_of_a_trained_policy(method: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    options = TrainOptions("chain,enas", method, problems=2, updates=4, expert_evaluations=500, unseen=1)
    card = run_train(options, path).card
    assert (card["method"], card["updates"], len(card["curve"]), card["unseen"]["problems"]) == (method, 4, 2, 1)
    problem = training_problem(find_family("transformer"), 7, None).costs
    weights = read_policy(path, method).weights
    recorder = RecordingEvaluator(ScheduleEvaluator(problem, Semantics()), Budget(evaluations=60))
    off = {"learning_rate": "0", "last_learning_rate": "0"}
    placer = make_placer(method, changes=begun_with(method, path, off), is_cheap=True)
    placer.search(problem_of(problem), recorder, Limits(seed=1))
    policy = placer.trainer.policy  # type: ignore[attr-defined]
    assert all(np.array_equal(policy.reusable[name].detach(), weights[name]) for name in weights)
    assert len(recorder.events) == 60


def test_a_policy_of_which_no_draw_fits_into_memory_gives_way_to_an_untrained_one(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    run_train(TrainOptions("enas", "doppler", problems=1, updates=2, expert_evaluations=9, unseen=1), path)
    costs = training_problem(find_family("transformer"), 7, None).costs
    for memory_bytes, is_kept in ((np.inf, True), (1.0, False)):
        problem = problem_of(replace(costs, memory_bytes=np.full(costs.num_devices, memory_bytes)))
        recorder = RecordingEvaluator(ScheduleEvaluator.of(problem), Budget(evaluations=100))
        placer = make_placer("doppler", changes=begun_with("doppler", path, {}), is_cheap=True)
        placer.search(problem, recorder, Limits(seed=1))
        assert bool(placer.initial) is is_kept  # type: ignore[attr-defined]
        assert len(recorder.events) == 100


class Stored:
    """A checkpoint in memory."""

    kept: tuple[dict[str, torch.Tensor], dict[str, Any]] | None = None

    def save(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        self.kept = {name: tensor.clone() for name, tensor in tensors.items()}, json.loads(json.dumps(dict(state)))

    def load(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        return self.kept


def test_a_policy_that_has_given_way_stays_away_after_a_break(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    run_train(TrainOptions("enas", "doppler", problems=1, updates=2, expert_evaluations=9, unseen=1), path)
    costs = training_problem(find_family("transformer"), 7, None).costs
    problem = problem_of(replace(costs, memory_bytes=np.ones(costs.num_devices)))
    changes = begun_with("doppler", path, {"stagnation": "2", "plans_per_update": "8"})
    checkpoint = Stored()
    for number, evaluations in enumerate((60, 120)):
        recorder = RecordingEvaluator(ScheduleEvaluator.of(problem), Budget(evaluations=evaluations))
        placer: LearnedPlacer[Any] = make_placer("doppler", changes=changes, is_cheap=True)  # type: ignore[assignment]
        placer.search(problem, recorder, Limits(seed=1), checkpoint)
        assert number == 0 or not_none(placer.trainer).is_trained is False
        assert placer.initial == {}


def test_an_interrupted_training_of_networks_resumes(tmp_path: Path) -> None:
    whole, path, done = tmp_path / "whole.safetensors", tmp_path / "policy.safetensors", list[str]()
    options = TrainOptions("enas", "doppler", problems=2, updates=5, expert_evaluations=500, unseen=1)
    run_train(options, whole)
    with pytest.raises(SearchStopped):
        run_train(options, path, watcher=Watcher(should_stop=lambda: len(done) == 3, on_step=done.append))
    run_train(options, path, resume=True)
    first, second = read_policy(whole, "doppler"), read_policy(path, "doppler")
    assert all(np.array_equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nothing is trained for method 'sa'.*rules.*doppler.*hsdag"):
        TrainOptions("enas", "sa")
    with pytest.raises(OptionError, match=r"nothing is trained for method 'nonsense'.*rules.*doppler.*hsdag"):
        TrainOptions("enas", "nonsense")
    for method, changes in (
        ("hsdag", {"portable_features": "false"}),
        ("doppler", {"initial": "shipped"}),
        ("doppler", {"updates": "3"}),
        ("doppler", {"stagnation": "3"}),
    ):
        with pytest.raises(OptionError, match=f"{next(iter(changes))} cannot be set in a training of networks"):
            TrainOptions("enas", method, changes=changes)
    with pytest.raises(OptionError, match="needs the costs of ops as features"):
        TrainOptions("enas", "hsdag", changes={"costs": "false"})
    with pytest.raises(OptionError, match="has no hyper-parameter 'rules'"):
        TrainOptions("enas", "doppler", changes={"rules": "2"})
    path = tmp_path / "policy.safetensors"
    run_train(TrainOptions("enas", "doppler", problems=1, updates=1, expert_evaluations=9, unseen=1), path)
    with pytest.raises(FileFormatError, match="is a policy of method 'doppler', not of 'hsdag'"):
        make_placer("hsdag", changes=begun_with("hsdag", path, {}))
    problem = problem_of(training_problem(find_family("chain"), 1, None).costs)
    placer = make_placer("doppler", changes=begun_with("doppler", path, {"width": "8"}), is_cheap=True)
    with pytest.raises(FileFormatError, match="of networks with other options"):
        placer.prepare(problem, takes_order=True)  # before anything is evaluated


def test_a_policy_of_hsdag_needs_costs(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    run_train(TrainOptions("enas", "hsdag", problems=1, updates=1, expert_evaluations=9, unseen=1), path)
    problem = problem_of(training_problem(find_family("chain"), 1, None).costs)
    placer = make_placer("hsdag", changes=begun_with("hsdag", path, {}))
    with pytest.raises(OptionError, match="needs the costs of ops, which are unknown here; use reward hybrid"):
        placer.search(replace(problem, costs=None, ops=None), ScheduleEvaluator.of(problem))
    placer = make_placer("hsdag", changes=begun_with("hsdag", path, {"costs": "false"}))
    with pytest.raises(OptionError, match="needs the costs of ops as features: its option costs must be true"):
        placer.search(problem, ScheduleEvaluator.of(problem))


@pytest.mark.parametrize("method", METHODS)
def test_the_policies_of_a_release_are_of_the_networks_of_the_default_preset(method: str) -> None:
    problem = problem_of(training_problem(find_family("ptb"), 1, None).costs)
    placer: LearnedPlacer[Any] = make_placer(method, changes={"initial": "shipped"}, is_cheap=True)  # type: ignore[assignment]
    policy = placer.begun(problem, torch.Generator())
    assert all(np.array_equal(policy.reusable[name].detach(), each) for name, each in placer.initial.items())
    card = read_policy(shipped_policy(method), method).card
    changed = {k: v for k, v in card["options"].items() if reusable_options(method).as_dict()[k] != v}
    assert changed == {"last_learning_rate": 3e-4}
