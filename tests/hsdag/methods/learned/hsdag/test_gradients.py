"""Gradients reach every part of the policy, and an update moves edge scores the way the rewards point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hsdag.methods.learned.hsdag.groups import Parse
from hsdag.methods.learned.hsdag.network import HsdagConfig, Situation
from hsdag.methods.learned.hsdag.placer import Draw, GroupPolicy
from hsdag.methods.learned.policy import Rollout
from hsdag.runtime.problem.plan import Plan
from hsdag.scoring.base import Score
from tests.hsdag.methods.learned.test_training import learn, trainer_for

SMALL = HsdagConfig(hidden=16, score_bias=0.0)
START = Situation()
PARTS = ("encoder.input", "encoder.rounds", "edge_mlp", "placer")


def grouped(policy: GroupPolicy, *, keep: bool, device: int = 0) -> Rollout:
    """All units on one device, the nominated edges all kept or all dropped, as an untrained policy draws it."""
    network = policy.network
    nominated = network.parse(network.view(START))[0].nominated
    parse = Parse(network.groupable, nominated, np.full(len(nominated), keep))
    homes = torch.full((parse.partition.num_groups,), device)
    even = tuple(torch.full((count,), float(np.log(0.5))) for count in (parse.partition.num_groups, len(nominated)))
    return Rollout(Plan(homes[parse.labels].numpy()), Draw(START, parse, homes, even))


def edge_scores(policy: GroupPolicy) -> torch.Tensor:
    return torch.sigmoid(policy.network.view(START).score_logits.detach())


@pytest.mark.parametrize("kept_is_faster", [True, False])
def test_an_update_raises_the_scores_of_edges_whose_keeping_was_faster_and_lowers_the_others(
    kept_is_faster: bool,
) -> None:
    trainer, policy, _ = trainer_for(replace(SMALL, elites=0, entropy=0.0))
    faster, slower = (grouped(policy, keep=k) for k in (kept_is_faster, not kept_is_faster))
    trainer.buffer.add([faster.plan] * 2, [Score(1.0), Score(2.0)], single=True)
    assert edge_scores(policy).tolist() == [0.5] * 11
    learn(trainer, [faster, slower], [1.0, 2.0])
    change = edge_scores(policy)[torch.tensor(faster.record.parse.nominated)] - 0.5
    assert bool((change > 0.01).all() if kept_is_faster else (change < -0.01).all())
