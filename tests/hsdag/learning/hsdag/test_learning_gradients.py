"""Gradients reach every part of the policy, and an update moves edge scores the way the rewards point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hsdag.evaluators.base import Score
from hsdag.learning.hsdag.config import HsdagConfig
from hsdag.learning.hsdag.parsing import Level, Parse
from hsdag.learning.hsdag.policy import Draw, Experience, HsdagPolicy, Situation
from tests.hsdag.learning.hsdag.test_learning_policy import chain, policy_for, trained_a_little
from tests.hsdag.learning.hsdag.test_learning_reinforce import trainer_for

SMALL = HsdagConfig(hidden=16)
START = Situation(None, None)
PARTS = ("encoder.input", "encoder.convolutions", "parsing.edge_mlp", "placer")


def grouped(policy: HsdagPolicy, *, keep: bool) -> Draw:
    """All units on device 0, the nominated edges all kept or all dropped."""
    plain = policy.parsing.parse(policy.view(START).z, policy.groupable, None)
    nominated = plain.levels[0].nominated
    parse = Parse((Level(policy.groupable, nominated, np.full(len(nominated), keep)),))
    return Draw(START, parse, torch.zeros(parse.num_groups, dtype=torch.int64))


def edge_scores(policy: HsdagPolicy) -> torch.Tensor:
    return torch.sigmoid(policy.view(START).score_logits.detach())


@pytest.mark.parametrize("kept_is_faster", [True, False])
def test_an_update_raises_the_scores_of_edges_whose_keeping_was_faster_and_lowers_the_others(
    kept_is_faster: bool,
) -> None:
    trainer, _ = trainer_for(replace(SMALL, elites=0, entropy=0.0))
    faster, slower = (grouped(trainer.policy, keep=k) for k in (kept_is_faster, not kept_is_faster))
    trainer.memory.add([faster.placement] * 2, [Score(1.0), Score(2.0)], single=True)
    assert edge_scores(trainer.policy).tolist() == [0.5] * 11
    trainer.learn([Experience(faster, 1.0, 1), Experience(slower, 2.0, 1)])
    change = edge_scores(trainer.policy)[torch.tensor(faster.parse.levels[0].nominated)] - 0.5
    assert bool((change > 0.01).all() if kept_is_faster else (change < -0.01).all())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("sampled", [True, False], ids=["sampled parsing", "the paper's parsing"])
def test_the_gradient_of_every_part_is_the_numerical_derivative(part: str, sampled: bool) -> None:
    policy = trained_a_little(replace(SMALL, sampled_parsing=sampled))
    draw = policy.draw(START, policy.view(START), torch.Generator().manual_seed(0))
    chosen = [p for name, p in policy.named_parameters() if name.startswith(part)]
    gradients = torch.autograd.grad(policy.log_probs(policy.bundle([draw]))[0].sum(), chosen)
    length = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    assert length > 0.01
    step, values = 1e-3, []
    with torch.no_grad():
        for sign in (1.0, -2.0):  # a step up the gradient, then as far down from where it began
            for parameter, gradient in zip(chosen, gradients, strict=True):
                parameter.add_(gradient / length, alpha=sign * step)
            values.append(policy.log_probs(policy.bundle([draw]))[0].sum())
    assert ((values[0] - values[1]) / (2 * step)).item() == pytest.approx(length.item(), rel=0.02)


def test_a_search_changes_the_weights_of_every_part() -> None:
    trainer, _ = trainer_for(replace(SMALL, episodes=3))
    before = {name: p.detach().clone() for name, p in trainer.policy.named_parameters()}
    trainer.run()
    for part in PARTS:
        moved = [not torch.equal(p, before[n]) for n, p in trainer.policy.named_parameters() if n.startswith(part)]
        assert all(moved)


def test_an_untrained_policy_believes_in_no_device() -> None:
    policy = policy_for(chain(num_units=200))
    believed = policy.greedy(START, policy.view(START)).group_devices
    assert 0.3 < believed.float().mean().item() < 0.7
    assert torch.equal(believed, policy.greedy(START, policy.view(START)).group_devices)


def test_where_one_device_is_more_probable_than_the_others_no_tie_is_broken() -> None:
    policy = policy_for(chain())
    with torch.no_grad():
        policy.placer.layers[-1].bias.copy_(torch.tensor([0.0, 1e-3]))  # type: ignore[operator]
    assert bool((policy.greedy(START, policy.view(START)).group_devices == 1).all())
