"""DOPPLER: what is drawn, what it is worth under the weights, where gradients reach; stages of its training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hsdag.methods.incumbent import Limits
from hsdag.methods.learned import decoding
from hsdag.methods.learned.doppler.network import Beginning, DopplerConfig, DualNetwork
from hsdag.methods.learned.doppler.placer import DualPolicy
from hsdag.methods.learned.networks import network_inputs, sum_over_path
from hsdag.methods.learned.order import log_p_in_turn
from hsdag.methods.learned.policy import Exploring, log_p_of
from hsdag.methods.lists.schedule import list_schedule
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate
from hsdag.search.evaluators.recording import RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import random_problem
from tests.hsdag.methods.learned.policies import generator
from tests.hsdag.methods.searches import not_none
from tests.hsdag.runtime.problem.test_problem import DIAMOND

PLAIN = Exploring()
SMALL = DopplerConfig(width=8, layers=2, logit_range=8.0, begins_as=Beginning.NOTHING)


def policy_of(problem: ScheduleProblem, config: DopplerConfig = SMALL, *, trained: bool = True) -> DualPolicy:
    """A small policy; ``trained`` draws the last layers too, which are zero otherwise."""
    network = DualNetwork(config, generator(1))
    if trained:
        draw_last_layers(network)
    return DualPolicy(network, problem, config)


@torch.no_grad()
def draw_last_layers(network: DualNetwork) -> None:
    torch.nn.init.normal_(network.out, generator=generator(2))
    torch.nn.init.normal_(network.direct, std=0.01, generator=generator(4))
    torch.nn.init.normal_(network.direct_select, generator=generator(5))
    torch.nn.init.normal_(network.select.layers[-1].weight, generator=generator(3))  # type: ignore[arg-type]


def whole(problem: ScheduleProblem) -> ScheduleProblem:
    """The problem, every device of which runs every op."""
    return replace(problem, time_s=np.nan_to_num(problem.time_s, nan=4.0))


@pytest.mark.parametrize("exploring", [PLAIN, Exploring(share=0.3, heat=2.0)])
def test_a_selected_op_has_all_its_producers_placed(exploring: Exploring) -> None:
    problem = random_problem(3, 14, 3)
    for rollout in policy_of(problem).draw(8, exploring, generator()):
        step = not_none(rollout.plan.priority)
        assert (step[problem.edge_src] < step[problem.edge_dst]).all()


def test_scores_of_single_ops_are_part_of_the_probability_that_decisions_were_drawn_with() -> None:
    problem = random_problem(3, 14, 3)
    network = DualNetwork(SMALL, generator(1), (problem.num_ops, problem.num_devices))
    draw_last_layers(network)
    for i, own in enumerate(network.own.values()):
        torch.nn.init.normal_(own, std=0.03, generator=generator(i))
    policy = DualPolicy(network, problem, SMALL)
    rollouts = policy.draw(6, PLAIN, generator())
    now = policy.likelihood(rollouts)
    np.testing.assert_allclose(now.log_p.detach(), now.drawn, atol=2e-4)
    policy.network.own.clear()
    without = policy.likelihood(rollouts).log_p.detach().reshape(-1, 2)
    assert ((without - now.drawn.reshape(-1, 2)).abs() > 0.1).any(dim=0).all()


def test_a_replayed_plan_is_decided_again_as_it_runs() -> None:
    problem = whole(random_problem(3, 14, 3))
    policy, rng = policy_of(problem), np.random.default_rng(0)
    plan = Plan(rng.integers(0, 3, 14), rng.permutation(14))
    again = policy.replay([plan], generator())[0].plan
    assert np.array_equal(again.placement, plan.placement)
    runs = [simulate(problem, each.placement, priority=each.priority) for each in (plan, again)]
    np.testing.assert_allclose(runs[0].start_s, runs[1].start_s)


def test_the_teacher_is_critical_path() -> None:
    problem = random_problem(3, 14, 3)
    inputs = network_inputs(problem)
    expected = list_schedule(inputs.tables, inputs.levels.upward_s, by_start=True)
    taught = policy_of(problem).teacher(generator())[0]
    assert np.array_equal(taught.plan.placement, expected.device)
    assert np.array_equal(taught.record.order, expected.sequence)


@pytest.mark.parametrize("learned", ["learns_order", "learns_devices"])
def test_what_is_not_learned_is_critical_paths_and_has_no_part_in_the_probability(learned: str) -> None:
    problem = whole(random_problem(3, 14, 3))
    inputs = network_inputs(problem)
    config = replace(SMALL, learns_order=learned == "learns_order", learns_devices=learned == "learns_devices")
    policy = policy_of(problem, config)
    rollouts = policy.draw(4, PLAIN, generator())
    now = policy.likelihood(rollouts)
    np.testing.assert_allclose(now.log_p.detach(), now.drawn, atol=2e-4)
    for rollout in rollouts:
        schedule = list_schedule(inputs.tables, inputs.levels.upward_s, by_start=True)
        if learned == "learns_devices":
            level_s = inputs.levels.upward_s
            assert np.array_equal(level_s[rollout.record.order], level_s[schedule.sequence])  # but for ties
        else:
            times = rollout.record.features[:, :, decoding.START]
            assert (times[np.arange(14), rollout.record.home] == times.min(axis=1)).all()


def test_paths_from_the_beginning_are_the_longest() -> None:
    inputs = network_inputs(DIAMOND)
    assert inputs.before.tolist() == [4, 0, 0, 2]
    assert [each.flatten().tolist() for each in inputs.path_lengths] == [[1, 2, 2, 3], [3, 2, 2, 1]]


def test_path_sums_add_up_embeddings_to_the_end() -> None:
    h = torch.arange(1.0, 6.0)[:, None]
    following = torch.tensor([2, 2, 4, 5, 5])  # 0 -> 2 -> 4, 1 -> 2, 3
    assert sum_over_path(h, following).squeeze(1).tolist() == [9.0, 10.0, 8.0, 4.0, 5.0]


def test_what_a_network_begins_with_is_as_good_as_the_list_schedule_that_it_begins_as() -> None:
    problem = random_problem(3, 14, 3)
    config = replace(SMALL, begins_as=Beginning.CRITICAL_PATH, logit_range=12.0)
    policy = policy_of(problem, config, trained=False)
    plans = [policy.teacher(generator())[0].plan, *(policy.best(generator(seed)).plan for seed in range(10))]
    taught_s, *found_s = (simulate(problem, plan.placement, priority=plan.priority).makespan_s for plan in plans)
    assert max(found_s) <= taught_s * (1 + 1e-6)
    alike = policy_of(problem, SMALL, trained=False).draw(10, PLAIN, generator())
    drawn_s = [simulate(problem, each.plan.placement, priority=each.plan.priority).makespan_s for each in alike]
    assert min(drawn_s) > max(found_s)


def test_an_op_goes_where_there_is_room_for_it() -> None:
    problem = whole(random_problem(4, 14, 2))
    memory = np.array([np.inf, problem.output_bytes.max() / 2])
    policy = policy_of(replace(problem, memory_bytes=memory), trained=False)
    for rollout in policy.draw(8, PLAIN, generator()):
        large = problem.output_bytes > memory[1]
        assert (rollout.plan.placement[large] == 0).all()


def test_results_that_no_op_waits_for_leave_room_for_others() -> None:
    """Two chains one after the other on a device that has room for two results at a time."""
    problem = ScheduleProblem.from_arrays(
        [[1.0, 1.0]] * 6, [(0, 1), (1, 2), (3, 4), (4, 5)], output_bytes=[1.0] * 6, memory_bytes=[2.0, np.inf]
    )
    (rollout,) = policy_of(problem).replay([Plan(np.zeros(6, dtype=np.int64), np.arange(6))], generator())
    assert rollout.record.order.tolist() == list(range(6))
    assert rollout.record.able.all()


def one_by_one(score: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``log_p_in_turn`` step by step."""
    step = torch.arange(score.shape[1])
    is_candidate = (first[:, None, :] <= step[:, None]) & (step[:, None] <= step)  # [B, N, N]
    return log_p_of(score[:, None, :].masked_fill(~is_candidate, -torch.inf), step.expand_as(score))


@pytest.mark.parametrize("num_steps", [1, 2, 7, 64])
@pytest.mark.parametrize("spread", [1.0, 40.0, 2000.0])
def test_choices_in_turn_have_the_probabilities_and_entropies_of_a_softmax(num_steps: int, spread: float) -> None:
    rng, shape = generator(), (5, num_steps)
    score = spread * torch.rand(shape, generator=rng, dtype=torch.float64)
    first = (torch.rand(shape, generator=rng) * (torch.arange(num_steps) + 1)).long()
    share, found = torch.rand((2, *shape), generator=rng, dtype=torch.float64), []
    for compute in (log_p_in_turn, one_by_one):
        by = score.clone().requires_grad_()
        log_p, entropy = compute(by, first)
        (share * torch.stack([log_p, entropy])).sum().backward()  # type: ignore[no-untyped-call]
        assert by.grad is not None
        found.append((log_p.detach(), entropy.detach(), by.grad))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
    assert (found[0][1] >= 0.0).all()


SMALL_CHANGES = {"width": "8", "layers": "1", "updates": "1", "begins_as": "nothing", "learning_rate": "0.003"}


class Measured(ScheduleEvaluator):
    """Simulated, but as dear as what a machine measures."""

    is_cheap = False


@pytest.mark.slow
def test_a_policy_that_learned_from_simulated_plans_is_better_from_the_first_measured_one() -> None:
    problem, mean = whole(random_problem(3, 30, 3)), {}
    for updates in ("0", "20"):
        machine = RecordingEvaluator(Measured(problem, Semantics()))
        changes = {**SMALL_CHANGES, "simulated_updates": updates}
        make_placer("doppler", changes=changes).search(problem_of(problem), machine, Limits(seed=1))
        mean[updates] = np.mean([event.score.value for event in machine.events[problem.num_devices :]])
    assert mean["20"] < 0.95 * mean["0"]
