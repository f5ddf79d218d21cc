"""Placeto's episodes: what a step changes, what it is rewarded for, and the groups of Merge-and-Colocate."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from hsdag.methods.learned.options import Baseline, Reward
from hsdag.methods.learned.placeto import (
    PlacetoConfig,
    PlacetoNetwork,
    PlacetoPlacer,
    PlacetoPolicy,
    groups_of,
    merge_and_colocate,
)
from hsdag.methods.learned.policy import Aim, Exploring
from hsdag.methods.learned.training import Trainer
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate
from hsdag.search.evaluators.base import Score
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import random_problem
from tests.hsdag.methods.learned.policies import generator
from tests.hsdag.methods.learned.test_training import Additive
from tests.hsdag.methods.searches import not_none

ALONE = Plan(np.zeros(6, dtype=np.int64))
TINY = PlacetoConfig(width=4, embedding=3, head=4, rounds=2, step=1, intermediate=True, sees=False)
CHAIN = [(0, 1), (1, 2), (2, 3), (0, 4)]  # and 5 by itself


def sized(output_bytes: list[float]) -> ScheduleProblem:
    """Six ops on two devices whose results have these sizes."""
    return ScheduleProblem.from_arrays(np.ones((6, 2)), CHAIN, output_bytes=np.array(output_bytes))


def policy_of(problem: ScheduleProblem, config: PlacetoConfig) -> PlacetoPolicy:
    groups = groups_of(problem, problem.topological_order, config.groups, None)
    return PlacetoPolicy(PlacetoNetwork(groups, config, generator(1)), groups, config, problem)


@pytest.mark.parametrize("config", [TINY, replace(TINY, step=4), replace(TINY, groups=5)])
def test_a_step_changes_the_devices_of_the_groups_it_visits_alone(config: PlacetoConfig) -> None:
    policy = policy_of(random_problem(2, 10, 3), config)
    groups = policy._groups
    visits = torch.split(groups.order, config.step)
    for rollout in policy.draw(3, Exploring(), generator()):
        assert len(rollout.trail) == len(visits)
        for visited, before, after in zip(visits, rollout.trail, (*rollout.trail[1:], rollout.plan), strict=True):
            changed = torch.from_numpy(np.flatnonzero(before.placement != after.placement))
            assert set(groups.of_unit[changed].tolist()) <= set(visited.tolist())


def test_an_episode_begins_with_all_groups_on_one_device_whichever() -> None:
    problem = random_problem(2, 10, 3)
    full = replace(problem, time_s=np.nan_to_num(problem.time_s, nan=1.0))
    first = [r.trail[0].placement for r in policy_of(full, TINY).draw(40, Exploring(), generator())]
    assert all(len(set(placement.tolist())) == 1 for placement in first)
    assert np.bincount(np.concatenate(first), minlength=3).min() > 40


def test_the_op_with_the_smallest_result_joins_its_consumer_or_else_its_producer() -> None:
    """Sizes by op: 3, without a consumer, goes to 2; the two, now 6, are larger than 1, which joins them."""
    problem = sized([9.0, 4.0, 5.0, 1.0, 7.0, 0.5])
    assert merge_and_colocate(problem, 5).labels.tolist() == [0, 1, 2, 2, 3, 4]
    assert merge_and_colocate(problem, 4).labels.tolist() == [0, 1, 1, 1, 2, 3]
    assert merge_and_colocate(problem, 1).num_groups == 2  # 5 has no neighbour
    assert merge_and_colocate(sized([1.0, 4.0, 5.0, 6.0, 3.0, 9.0]), 5).labels.tolist() == [0, 1, 2, 3, 0, 4]


def test_ops_without_a_device_in_common_are_not_merged() -> None:
    problem = sized([9.0, 4.0, 5.0, 1.0, 7.0, 0.5])
    time_s = np.ones((6, 2))
    time_s[3, 0] = time_s[2, 1] = np.nan
    labels = merge_and_colocate(replace(problem, time_s=time_s), 1).labels
    assert labels[3] != labels[2]


def test_reachability_is_that_of_paths() -> None:
    problem = sized([1.0] * 6)
    reaches = groups_of(problem, problem.topological_order, None, None).reaches.numpy()
    assert [np.flatnonzero(row).tolist() for row in reaches] == [[1, 2, 3, 4], [2, 3], [3], [], [], []]


def trainer_of(config: PlacetoConfig) -> tuple[Trainer, PlacetoPolicy]:
    policy = policy_of(sized([1.0] * 6), config)
    trainer = Trainer("placeto", policy, Additive(), config, generator())
    trainer.buffer.add([ALONE], [Score(1.0)], single=True)
    return trainer, policy


PLAIN = replace(TINY, reward=Reward.NEGATIVE, baseline=Baseline.NONE)


def test_the_weight_of_a_step_is_the_sum_of_what_it_and_later_ones_gain() -> None:
    trainer, policy = trainer_of(PLAIN)
    rollouts = policy.draw(3, Exploring(), generator())
    values = trainer._evaluate([rollout.plan for rollout in rollouts])
    for weights, rollout in zip(trainer.advantages(values, rollouts), rollouts, strict=True):
        cost = [float((1.0 + plan.placement).sum()) for plan in (*rollout.trail, rollout.plan)]
        gains = [before - after for before, after in itertools.pairwise(cost)]  # A.7: R(p_t) - R(p_t+1)
        np.testing.assert_allclose(weights, np.cumsum(gains[::-1])[::-1])


def test_every_decision_has_the_weight_of_its_step() -> None:
    _, policy = trainer_of(replace(PLAIN, step=4))
    rollouts = policy.draw(2, Exploring(), generator())
    weights = torch.arange(4.0).reshape(2, 2)  # steps of 4 and 2 groups
    expected = -(4 * (0 + 2) + 2 * (1 + 3)) / 12 * np.log(0.5)
    assert policy.loss(rollouts, weights, Aim(None, 0.0, 1.0)).item() == pytest.approx(expected, rel=1e-5)


def test_terminal_rewards_weigh_all_steps_by_the_last_plan() -> None:
    trainer, policy = trainer_of(replace(PLAIN, intermediate=False))
    rollouts = policy.draw(3, Exploring(), generator())
    values = trainer._evaluate([rollout.plan for rollout in rollouts])
    np.testing.assert_allclose(trainer.advantages(values, rollouts), -values)


def test_the_baseline_of_a_step_is_its_mean_over_the_last_ten_episodes() -> None:
    trainer, policy = trainer_of(replace(PLAIN, baseline=Baseline.RECENT))
    plain, _ = trainer_of(PLAIN)
    seen: list[np.ndarray] = []
    for seed in range(4):
        rollouts = policy.draw(4, Exploring(), generator(seed))
        values = trainer._evaluate([rollout.plan for rollout in rollouts])
        rewards = plain.advantages(values, rollouts)
        baseline = np.mean(seen[-10:] or list(rewards), axis=0)
        np.testing.assert_allclose(trainer.advantages(values, rollouts), rewards - baseline)
        seen += list(rewards)


def test_a_plan_over_memory_counts_in_training_with_two_seconds_more_for_each_gb() -> None:
    problem = replace(sized([0.0] * 6), weight_bytes=np.full(6, 1e9), memory_bytes=np.full(2, 4e9))
    placer, units = PlacetoPlacer(TINY), problem_of(problem)
    policy, evaluator = policy_of(problem, TINY), ScheduleEvaluator(problem, Semantics())
    config = replace(TINY, baseline=Baseline.NONE)
    trainer = Trainer("placeto", policy, evaluator, config, generator(), memory=placer.limited_memory(units))
    rollouts = policy.replay([ALONE, Plan(np.array([0, 0, 0, 1, 1, 1]))], generator())
    over, fitting = (rollout.plan for rollout in rollouts)
    values = trainer._evaluate([over, fitting])
    assert np.isnan(values).tolist() == [True, False]
    penalised_s = simulate(problem, ALONE.placement).makespan_s + 2.0 * (6.0 - 4.0)
    assert np.isnan(not_none(placer.limited_memory(units)).value(fitting))
    rewards = -np.log(np.array([penalised_s, values[1]]) / values[1])
    assert trainer.advantages(values, rollouts) == pytest.approx(rewards)
    assert [plan for plan, _ in trainer.buffer.elites] == [fitting]


def test_many_decisions_are_computed_pass_by_pass_with_the_same_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(random_problem(2, 10, 3), replace(TINY, step=4))
    rollouts = policy.draw(3, Exploring(), generator())
    with torch.no_grad():
        torch.nn.init.normal_(policy.network.choose.layers[-1].weight, generator=generator())  # type: ignore[arg-type]
    weights = [p for name, p in policy.network.named_parameters() if not name.startswith("seeing")]
    at_once = torch.autograd.grad(policy.likelihood(rollouts).log_p.sum(), weights)
    monkeypatch.setattr("hsdag.methods.learned.placeto.ROWS", 40)
    now = policy.likelihood(rollouts).log_p
    for one, other in zip(at_once, torch.autograd.grad(now.sum(), weights), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("way", "seen"), [(0, [0, 1, 2]), (1, [0, 1, 2, 4])])
def test_gradients_of_messages_reach_as_far_as_there_are_rounds(way: int, seen: list[int]) -> None:
    """Down the chain what op 2 receives comes from ops 0 and 1; up it, what op 0 receives from 1, 2 and 4."""
    network = policy_of(sized([1.0] * 6), replace(TINY, width=12, embedding=8)).network
    e = torch.randn(1, 6, 8, generator=generator(), requires_grad=True)
    (gradient,) = torch.autograd.grad(network._passed(e, way)[0, (2, 0)[way]].sum(), e)
    assert np.flatnonzero(gradient[0].abs().amax(dim=1)).tolist() == seen


def test_gradients_of_pools_reach_groups_that_send_no_messages() -> None:
    policy = policy_of(sized([1.0] * 6), replace(TINY, width=12, embedding=8))
    h = torch.randn(1, 6, 16, generator=generator(), requires_grad=True)
    pools = policy.network._pooled(h, torch.tensor([[1]]))
    reached = [torch.autograd.grad(pool.sum(), h, retain_graph=True)[0][0].abs().amax(dim=1) for pool in pools]
    assert [np.flatnonzero(each).tolist() for each in reached] == [[0], [2, 3], [4, 5]]
