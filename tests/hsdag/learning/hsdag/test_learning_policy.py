"""The policy is uniform before learning, respects support, and recomputes what it drew."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hsdag.ir.coarsen import CoarseGraph
from hsdag.ir.errors import OptionError
from hsdag.ir.graph import BoolArray, graph_from_edges
from hsdag.ir.partition import Partition
from hsdag.learning.hsdag.config import HsdagConfig
from hsdag.learning.hsdag.encoder import Dropout, standardise
from hsdag.learning.hsdag.policy import HsdagPolicy, Situation
from hsdag.runtime.problems.problem import Problem

SMALL = HsdagConfig(hidden=16)


def chain(num_units: int = 20, supported: BoolArray | None = None) -> Problem:
    graph = graph_from_edges(["Relu"] * num_units, [(v, v + 1) for v in range(num_units - 1)])
    table = np.ones((num_units, 2), dtype=np.bool_) if supported is None else supported
    devices = tuple(f"D{d}" for d in range(table.shape[1]))
    return Problem(CoarseGraph(graph, Partition.identity(num_units), graph), devices, table)


def policy_for(problem: Problem, config: HsdagConfig = SMALL) -> HsdagPolicy:
    x = torch.randn(problem.num_units, 6, generator=torch.Generator().manual_seed(7))
    return HsdagPolicy(problem, x, config, torch.Generator().manual_seed(3))


def test_the_untrained_policy_is_uniform_over_supported_devices() -> None:
    supported = np.ones((20, 3), dtype=np.bool_)
    supported[10:, 1] = False
    problem = chain(supported=supported)
    policy = policy_for(problem, replace(SMALL, sampled_parsing=False))
    situation = Situation(None, None)
    view = policy.view(situation)
    parse = policy.parsing.parse(view.z, policy.groupable, None)
    groups, _ = policy.parsing.embed(view.z, parse, view.score_logits)
    p = torch.softmax(policy.logits(groups, parse), dim=1)[parse.labels]
    assert torch.allclose(p[:10], torch.full((10, 3), 1 / 3))
    assert torch.allclose(p[10:], torch.tensor([0.5, 0.0, 0.5]).expand(10, 3))


def test_drawn_placements_are_always_supported() -> None:
    rng = np.random.default_rng(0)
    supported = rng.random((20, 3)) < 0.5
    supported[np.arange(20), rng.integers(0, 3, 20)] = True
    problem = chain(supported=supported)
    policy = policy_for(problem)
    situation, generator = Situation(None, None), torch.Generator().manual_seed(0)
    view = policy.view(situation)
    draws = [policy.draw(situation, view, generator) for _ in range(50)]
    draws += [policy.uniform(situation, view, d) for d in range(3)] + [policy.greedy(situation, view)]
    assert all(problem.is_legal(d.placement) for d in draws)


def test_log_probability_of_an_untrained_draw_is_the_closed_form() -> None:
    policy = policy_for(chain())
    situation, generator = Situation(None, None), torch.Generator().manual_seed(0)
    draw = policy.draw(situation, policy.view(situation), generator)
    log_p, entropy = policy.log_probs(policy.bundle([draw]))
    decisions = draw.parse.num_groups + len(draw.parse.levels[0].nominated)
    assert log_p.sum().item() == pytest.approx(-decisions * math.log(2), rel=1e-5)
    assert entropy.sum().item() == pytest.approx(draw.parse.num_groups * math.log(2), rel=1e-5)


def trained_a_little(config: HsdagConfig) -> HsdagPolicy:
    policy = policy_for(chain(), config)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return policy


def test_stored_dropout_masks_give_the_same_log_probabilities_again() -> None:
    policy = trained_a_little(replace(SMALL, dropout=0.5))
    first, other = Situation(None, 11), Situation(None, 12)
    draw = policy.draw(first, policy.view(first), torch.Generator().manual_seed(0))
    again = policy.log_probs(policy.bundle([draw]))[0]
    elsewhere = policy.log_probs(policy.bundle([replace(draw, situation=other)]))[0]
    assert torch.equal(policy.log_probs(policy.bundle([draw]))[0], again)
    assert not torch.equal(elsewhere, again)


@pytest.mark.parametrize("levels", [1, 2])
def test_draws_side_by_side_have_the_log_probabilities_of_each_alone(levels: int) -> None:
    policy = trained_a_little(replace(SMALL, levels=levels))
    situations, generator = [Situation(None, None), Situation(torch.ones(20, 16), None)], torch.Generator()
    draws = [policy.draw(s, policy.view(s), generator) for s in situations * 3]
    bundles = policy.bundle(draws)
    together = torch.zeros(6).index_add(0, torch.cat([b.owner for b in bundles]), policy.log_probs(bundles)[0])
    alone = torch.stack([policy.log_probs(policy.bundle([d]))[0].sum() for d in draws])
    assert torch.allclose(together, alone, rtol=1e-4)


def test_dropout_drops_the_asked_share_and_keeps_the_mean() -> None:
    dropped = Dropout(0.2, seed=5)(torch.ones(100_000))
    assert (dropped == 0).float().mean().item() == pytest.approx(0.2, abs=0.01)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.01)


def test_the_next_state_adds_the_embedding_of_each_units_group() -> None:
    policy = policy_for(chain(), replace(SMALL, normalise=False, sampled_parsing=False))
    view = policy.view(Situation(None, None))
    parse = policy.parsing.parse(view.z, policy.groupable, None)
    state = policy.next_state(view, parse)
    z = view.z.detach()
    for g in range(parse.num_groups):
        members = parse.labels == g
        weight = 0.5  # untrained score, and the weight of a unit alone
        assert torch.allclose(state[members], z[members] + weight * z[members].mean(dim=0), atol=1e-5)


def test_states_carry_no_gradient_history() -> None:
    policy = policy_for(chain())
    view = policy.view(Situation(None, None))
    assert not policy.next_state(view, policy.parsing.parse(view.z, policy.groupable, None)).requires_grad


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    problem = chain()
    policy = policy_for(problem, replace(SMALL, dropout=0.2))
    situation = Situation(None, 1)
    policy.draw(situation, policy.view(situation), torch.Generator().manual_seed(0))
    assert torch.equal(before, torch.get_rng_state())


def test_standardised_columns_have_no_mean_and_unit_variance() -> None:
    x = standardise(np.random.default_rng(0).normal(5.0, 3.0, (500, 2)))
    assert x.mean(dim=0).abs().max().item() < 0.01
    assert torch.allclose(x.var(dim=0), torch.ones(2), atol=0.05)
    assert standardise(np.full((4, 1), 3.0)).tolist() == [[0.0]] * 4


def test_an_option_out_of_range_is_named() -> None:
    with pytest.raises(OptionError, match="HSDAG option dropout must be in"):
        HsdagConfig(dropout=1.0)
