"""Rewards, advantages and the loss follow the paper's §2.5 and our stated departures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from hsdag.evaluators.base import Evaluator, Score
from hsdag.ir.coarsen import CoarseGraph
from hsdag.ir.graph import graph_from_edges
from hsdag.ir.partition import Partition
from hsdag.learning.hsdag.config import Baseline, HsdagConfig, Reward
from hsdag.learning.hsdag.memory import Memory
from hsdag.learning.hsdag.policy import Experience, Situation
from hsdag.learning.hsdag.reinforce import Trainer
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem

SMALL = HsdagConfig(hidden=16)


class Additive(Evaluator):
    """One second per unit on device 0, two on device 1; a placement that starts on device 2 fails."""

    def __init__(self) -> None:
        self.placements: list[list[int]] = []
        self.unit_s = 1.0

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        placements = [plan.placement for plan in plans]
        self.placements += [p.tolist() for p in placements]
        return [
            Score.failed("device 2 fails") if p[0] == 2 else Score(self.unit_s * float((1.0 + p).sum()))
            for p in placements
        ]


def trainer_for(config: HsdagConfig, num_devices: int = 2, num_units: int = 12) -> tuple[Trainer, Additive]:
    graph = graph_from_edges(["Relu"] * num_units, [(v, v + 1) for v in range(num_units - 1)])
    units = CoarseGraph(graph, Partition.identity(num_units), graph)
    table = np.ones((num_units, num_devices), dtype=np.bool_)
    problem = Problem(units, tuple(f"D{d}" for d in range(num_devices)), table)
    evaluator = Additive()
    x = torch.randn(num_units, 4, generator=torch.Generator().manual_seed(7))
    return Trainer(problem, evaluator, x, config, seed=0), evaluator


def test_the_papers_reward_is_one_over_latency() -> None:
    memory = Memory(replace(SMALL, reward=Reward.INVERSE))
    memory.add([np.array([0]), np.array([1])], [Score(0.5), Score(0.25)], single=False)
    assert memory.rewards(np.array([0.5, 0.25])).tolist() == [2.0, 4.0]


def test_the_default_reward_has_no_scale_and_is_zero_at_the_best_single_device() -> None:
    for unit in (1.0, 1e-3):
        memory = Memory(SMALL)
        memory.add([np.array([0]), np.array([1])], [Score(2 * unit), Score(3 * unit)], single=True)
        rewards = memory.rewards(np.array([2.0, 1.0]) * unit)
        assert rewards == pytest.approx([0.0, math.log(2)])


def test_a_failure_counts_as_four_times_the_worst_latency() -> None:
    memory = Memory(SMALL)
    latencies = memory.add([np.array([0]), np.array([1])], [Score(2.0), Score.failed("no")], single=True)
    assert memory.rewards(latencies) == pytest.approx([0.0, -math.log(4)])


def test_the_papers_weight_of_step_i_is_gamma_to_the_i_times_the_reward() -> None:
    trainer, _ = trainer_for(replace(HsdagConfig.paper(), hidden=16, discount=0.9))
    situation = Situation(None, None)
    draw = trainer.policy.uniform(situation, trainer.policy.view(situation), 0)
    trainer.memory.add([draw.placement], [Score(0.5)], single=False)
    experiences = [Experience(draw, 0.5, step) for step in (1, 2, 3)]
    assert trainer.advantages(experiences, experiences) == pytest.approx([1.8, 1.62, 1.458])


def test_the_papers_loss_is_minus_the_weighted_log_probabilities() -> None:
    trainer, _ = trainer_for(replace(HsdagConfig.paper(), hidden=16))
    situation = Situation(None, None)
    draw = trainer.policy.uniform(situation, trainer.policy.view(situation), 0)
    bundles = trainer.policy.bundle([draw, draw])
    loss = trainer.loss(bundles, torch.tensor([3.0, 0.5])[bundles[0].owner], None)
    assert loss.item() == pytest.approx(3.5 * draw.parse.num_groups * math.log(2), rel=1e-5)


def test_batch_advantages_have_no_mean_and_unit_spread() -> None:
    trainer, _ = trainer_for(SMALL)
    situation = Situation(None, None)
    draw = trainer.policy.uniform(situation, trainer.policy.view(situation), 0)
    experiences = [Experience(draw, s, 1) for s in (1.0, 2.0, 4.0, 3.0)]
    trainer.memory.add([draw.placement], [Score(1.0)], single=True)
    advantages = trainer.advantages(experiences, experiences)
    assert advantages.mean() == pytest.approx(0.0, abs=1e-9)
    assert advantages.std() == pytest.approx(1.0)
    assert advantages.argmax() == 0


def test_an_update_makes_the_better_device_more_probable() -> None:
    trainer, _ = trainer_for(replace(SMALL, elites=0, entropy=0.0))
    situation = Situation(None, None)
    policy = trainer.policy
    draws = [policy.uniform(situation, policy.view(situation), d) for d in (0, 1)]
    trainer.memory.add([d.placement for d in draws], [Score(1.0), Score(2.0)], single=True)
    on_first = policy.bundle(draws[:1])
    before = policy.log_probs(on_first)[0].sum().item()
    trainer.learn([Experience(draws[0], 1.0, 1), Experience(draws[1], 2.0, 1)])
    assert policy.log_probs(on_first)[0].sum().item() > before + 0.1


def test_without_a_baseline_the_weight_is_the_reward() -> None:
    trainer, _ = trainer_for(replace(SMALL, baseline=Baseline.NONE))
    situation = Situation(None, None)
    draw = trainer.policy.uniform(situation, trainer.policy.view(situation), 0)
    trainer.memory.add([draw.placement], [Score(2.0)], single=True)
    experiences = [Experience(draw, 1.0, 1)]
    assert trainer.advantages(experiences, experiences) == pytest.approx([math.log(2)])


def test_single_device_placements_come_first_and_nothing_is_evaluated_twice() -> None:
    trainer, evaluator = trainer_for(replace(SMALL, episodes=12))
    trainer.run()
    assert evaluator.placements[:2] == [[0] * 12, [1] * 12]
    assert len({tuple(p) for p in evaluator.placements}) > 0.95 * len(evaluator.placements)


def test_failures_do_not_stop_the_search_or_win_it() -> None:
    trainer, evaluator = trainer_for(replace(SMALL, episodes=6), num_devices=3)
    trainer.run()
    assert any(p[0] == 2 for p in evaluator.placements)
    assert trainer._elites[0].draw.placement.tolist() == [0] * 12


def test_a_search_over_few_placements_ends_by_itself() -> None:
    trainer, evaluator = trainer_for(replace(SMALL, patience=3), num_units=2)
    trainer.run()
    assert trainer._elites[0].draw.placement.tolist() == [0, 0]
    assert {tuple(p) for p in evaluator.placements} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_recalibrated_costs_have_elites_worst_and_reference_scored_anew() -> None:
    trainer, evaluator = trainer_for(replace(SMALL, episodes=2))
    trainer.run()
    before = [elite.value for elite in trainer._elites]
    references = trainer.memory.rewards(np.array([1.0, 2.0]))
    evaluator.unit_s, evaluator.version = 10.0, evaluator.version + 1
    trainer._evaluate([trainer._elites[0].draw], step=1)
    assert [elite.value for elite in trainer._elites] == pytest.approx([10 * value for value in before])
    assert trainer.memory.rewards(np.array([10.0, 20.0])) == pytest.approx(references)
