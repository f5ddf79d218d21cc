"""The policy is uniform before learning, respects support, and recomputes what it drew."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.computation_graph import BoolArray, graph_from_edges
from hsdag.ir.graph.partition import Partition
from hsdag.methods.learned.hsdag.groups import Groups, Topology
from hsdag.methods.learned.hsdag.network import GroupNetwork, HsdagConfig, Situation, View, dropout
from hsdag.methods.learned.hsdag.placer import GroupPolicy
from hsdag.methods.learned.networks import standardise
from hsdag.methods.learned.policy import Exploring, Rollout
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem

SMALL = HsdagConfig(hidden=16, score_bias=0.0)


def chain(num_units: int = 20, supported: BoolArray | None = None) -> Problem:
    graph = graph_from_edges(["Relu"] * num_units, [(v, v + 1) for v in range(num_units - 1)])
    table = np.ones((num_units, 2), dtype=np.bool_) if supported is None else supported
    devices = tuple(f"D{d}" for d in range(table.shape[1]))
    return Problem(CoarseGraph(graph, Partition.identity(num_units), graph), devices, table)


def policy_for(problem: Problem, config: HsdagConfig = SMALL) -> GroupPolicy:
    x = torch.randn(problem.num_units, 6, generator=torch.Generator().manual_seed(7))
    graph = problem.units.graph
    topology = Topology.from_edges(graph.num_ops, graph.edge_src, graph.edge_dst)
    network = GroupNetwork(x, topology, problem.supported, config, torch.Generator().manual_seed(3))
    return GroupPolicy(network, config)


def drawn(policy: GroupPolicy, count: int = 1, seed: int = 0) -> list[Rollout]:
    return policy.draw(count, Exploring(), torch.Generator().manual_seed(seed))


def test_the_untrained_policy_is_uniform_over_supported_devices() -> None:
    supported = np.ones((20, 3), dtype=np.bool_)
    supported[10:, 1] = False
    network = policy_for(chain(supported=supported), replace(SMALL, sampled_parsing=False)).network
    view = network.view(Situation())
    parse = network.parse(view)[0]
    alone = Groups.of([parse])
    groups = network.embed(view, alone)[0]
    p = torch.softmax(network.logits(groups, alone), dim=1)[alone.distinct][parse.labels]
    assert torch.allclose(p[:10], torch.full((10, 3), 1 / 3))
    assert torch.allclose(p[10:], torch.tensor([0.5, 0.0, 0.5]).expand(10, 3))


def test_log_probability_of_an_untrained_draw_is_the_closed_form() -> None:
    policy = policy_for(chain())
    rollouts = drawn(policy)
    now, parse = policy.likelihood(rollouts), rollouts[0].record.parse
    decisions = parse.partition.num_groups + len(parse.nominated)
    assert now.log_p.sum().item() == pytest.approx(-decisions * math.log(2), rel=1e-5)
    assert now.entropy.sum().item() == pytest.approx(decisions * math.log(2), rel=1e-5)


def trained_a_little(config: HsdagConfig) -> GroupPolicy:
    policy = policy_for(chain(), config)
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return policy


def test_a_replayed_plan_has_groups_that_allow_it() -> None:
    policy = trained_a_little(SMALL)
    plans = [Plan(np.random.default_rng(seed).integers(0, 2, 20)) for seed in range(5)]
    for plan, rollout in zip(plans, policy.replay(plans, torch.Generator()), strict=True):
        assert np.array_equal(rollout.record.devices[rollout.record.parse.labels], plan.placement)


def test_stored_dropout_masks_give_the_same_log_probabilities_again() -> None:
    policy = trained_a_little(replace(SMALL, dropout=0.5))
    rollout = drawn(policy)[0]
    elsewhere = replace(rollout, record=replace(rollout.record, situation=Situation(None, 12)))
    again = policy.likelihood([rollout]).log_p
    assert torch.equal(policy.likelihood([rollout]).log_p, again)
    assert not torch.equal(policy.likelihood([elsewhere]).log_p, again)


def test_rollouts_side_by_side_have_the_log_probabilities_of_each_alone() -> None:
    policy = trained_a_little(replace(SMALL, steps=2))
    rollouts = drawn(policy, 6)
    now = policy.likelihood(rollouts)
    together = torch.zeros(6).index_add(0, now.owner, now.log_p)
    alone = torch.stack([policy.likelihood([rollout]).log_p.sum() for rollout in rollouts])
    assert torch.allclose(together, alone, rtol=1e-4)


def test_dropout_drops_the_asked_share_and_keeps_the_mean() -> None:
    dropped = dropout(0.2, seed=5)(torch.ones(100_000))
    assert (dropped == 0).float().mean().item() == pytest.approx(0.2, abs=0.01)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.01)


def test_the_next_state_adds_the_embedding_of_each_units_group() -> None:
    network = policy_for(chain(), replace(SMALL, normalise=False, sampled_parsing=False)).network
    view = network.view(Situation())
    parse = network.parse(view)[0]
    state = network.next_state(view, parse)
    z = view.z.detach()
    for g in range(parse.partition.num_groups):
        members = parse.labels == g
        weight = 0.5  # untrained score, and the weight of a unit alone
        assert torch.allclose(state[members], z[members] + weight * z[members].mean(dim=0), atol=1e-5)
    assert not state.requires_grad


def test_standardised_columns_have_no_mean_and_unit_variance() -> None:
    x = standardise(np.random.default_rng(0).normal(5.0, 3.0, (500, 2)))
    assert x.mean(dim=0).abs().max().item() < 0.01
    assert torch.allclose(x.var(dim=0), torch.ones(2), atol=0.05)
    assert standardise(np.full((4, 1), 3.0)).tolist() == [[0.0]] * 4


def test_an_option_out_of_range_is_named() -> None:
    with pytest.raises(OptionError, match="option dropout must be in"):
        HsdagConfig(dropout=1.0)


def test_the_entropy_of_parsing_is_that_of_keeping_each_nominated_edge() -> None:
    network = policy_for(chain()).network
    view = network.view(Situation())
    parse = network.parse(view)[0]
    logits = torch.linspace(-3.0, 2.0, len(view.score_logits))
    _, _, entropy = network.embed(View(view.z, logits), Groups.of([parse]))
    p = torch.sigmoid(logits)[torch.from_numpy(parse.nominated)]
    torch.testing.assert_close(entropy, -(p * p.log() + (1 - p) * (1 - p).log()))


@pytest.mark.parametrize("bias", [-2.0, 2.0])
def test_a_nominated_edge_is_kept_with_probability_equal_to_its_score(bias: float) -> None:
    network = policy_for(chain(), replace(SMALL, score_bias=bias, score_range=None)).network
    view = network.view(Situation())
    kept = np.mean([parse.kept.mean() for parse in network.parse(view, 200, torch.Generator().manual_seed(0))])
    assert kept == pytest.approx(1.0 / (1.0 + math.exp(-bias)), abs=0.02)
    assert network.parse(view)[0].kept.all() == (bias > 0.0)
