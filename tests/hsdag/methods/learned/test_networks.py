"""Networks against their formulas on small graphs: rounds of messages, GDP's attention, the RNN-based method."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hsdag.methods.learned.gdp import FARTHEST, SegmentAttention
from hsdag.methods.learned.networks import Edges, GraphConvolution, PooledSage, tokens_of
from hsdag.methods.learned.rnn import Encodings, RnnConfig, Scoring, SequenceNetwork
from hsdag.methods.learned.stepwise import StepwiseNetwork
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from tests.hsdag.methods.learned.policies import generator


def test_graph_sage_takes_the_largest_of_what_neighbours_send() -> None:
    sage, edges = PooledSage(2, generator()), Edges.without_costs(torch.tensor([0, 1]), torch.tensor([2, 2]))
    h = torch.randn(3, 2, generator=generator())
    sent = torch.sigmoid(sage.sent(h))
    around = torch.stack([sent[2], sent[2], torch.maximum(sent[0], sent[1])])
    torch.testing.assert_close(sage(h, edges), sage.out(torch.cat([h, around], dim=1)))


def test_the_convolution_of_hsdag_normalises_by_degrees_with_a_loop_at_every_node() -> None:
    edges, h = Edges.without_costs(torch.tensor([0, 1, 1]), torch.tensor([1, 2, 3])), torch.randn(4, 2)
    convolution = GraphConvolution(2, generator())
    adjacency = torch.eye(4)
    adjacency[edges.both[0], edges.both[1]] = 1.0
    scale = adjacency.sum(dim=1).rsqrt().diag()
    torch.testing.assert_close(convolution(h, edges), convolution.out(scale @ adjacency @ scale @ h))


ALL = torch.ones(3, 4, dtype=torch.bool)


def layer(*, relative: bool = True) -> SegmentAttention:
    return SegmentAttention(8, 2, generator(), relative=relative)


def test_a_segment_sees_itself_and_the_one_before_it() -> None:
    h = torch.randn(3, 4, 8, generator=generator())
    changed = h.clone()
    changed[0, 1] += 1.0
    difference = (layer()(h, ALL) - layer()(changed, ALL)).abs().amax(dim=(1, 2))
    assert bool((difference[:2] > 1e-3).all())
    assert difference[2] == 0.0
    changed = h.clone()
    changed[2] += 1.0  # no segment comes before the first
    assert torch.equal(layer()(h, ALL)[:2], layer()(changed, ALL)[:2])


def test_the_segment_before_gets_no_gradient() -> None:
    h = torch.randn(3, 4, 8, generator=generator(), requires_grad=True)
    (gradient,) = torch.autograd.grad(layer()(h, ALL)[1].square().sum(), h)
    assert gradient[1].abs().max() > 0
    assert gradient[0].abs().max() == 0


def test_what_fills_up_the_last_segment_is_not_seen() -> None:
    h, is_unit = torch.randn(3, 4, 8, generator=generator()), ALL.clone()
    is_unit[2, 2:] = False
    changed = h.clone()
    changed[2, 3] += 1.0
    assert torch.equal(layer()(h, is_unit)[2, :2], layer()(changed, is_unit)[2, :2])


def test_distances_count_in_topological_order_across_segments() -> None:
    """With a bias for the unit just before alone, attention returns that unit's value, in whichever segment it is."""
    attention = layer()
    assert attention.distance is not None
    with torch.no_grad():
        attention.attention.in_proj_weight[:8].zero_()  # queries
        attention.attention.in_proj_bias.zero_()
        attention.distance[:, FARTHEST - 1] = 50.0
    h = torch.randn(3, 4, 8, generator=generator())
    changed = h.clone()
    changed[0, 3] += 1.0
    difference = (attention(h, ALL) - attention(changed, ALL)).abs().amax(dim=2)
    assert difference[1, 0] > 1e-3
    assert bool((difference[1, 1:] < 1e-5).all())


def test_shards_that_cost_the_same_can_be_told_apart() -> None:
    """Twelve ops without edges that are alike but for their places: what is learned of one is not learned of all."""
    problem = problem_of(ScheduleProblem.from_arrays(np.ones((12, 2)), []))
    tokens = tokens_of(problem, with_costs=True)
    assert len(torch.unique(tokens, dim=0)) == 12


EDGES = torch.tensor([[0, 0, 1], [1, 2, 3]])


def network_of(config: RnnConfig) -> SequenceNetwork:
    generator = torch.Generator().manual_seed(0)
    network = SequenceNetwork(torch.randn(4, 3, generator=generator), EDGES, torch.arange(4), 2, config, generator)
    with torch.no_grad():
        torch.nn.init.normal_(network.out.layers[-1].weight, generator=generator)  # type: ignore[arg-type]
    return network


def logits_after(network: SequenceNetwork, devices: list[int]) -> torch.Tensor:
    """[4, D] logits of all steps where these devices are written."""
    found: list[torch.Tensor] = []

    def choose(logits: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
        found.append(logits[0, 0])
        return torch.tensor([[devices[int(units)]]])

    network.decode(1, choose)
    return torch.stack(found)


@pytest.mark.parametrize("config", [RnnConfig(width=6), RnnConfig(width=6, scoring=Scoring.ADDITIVE, reads_own=False)])
def test_a_device_depends_on_those_written_before_it_and_on_no_other(config: RnnConfig) -> None:
    network = network_of(config)
    first, second = logits_after(network, [0, 0, 0, 0]), logits_after(network, [0, 1, 0, 0])
    assert torch.equal(first[:2], second[:2])
    assert (first[2:] - second[2:]).abs().amax(dim=1).min() > 1e-4


def test_a_token_adds_an_embedding_for_each_producer_and_each_consumer() -> None:
    network = network_of(RnnConfig(width=6))
    given: list[torch.Tensor] = []
    network.encoder.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    network.read()
    of_producers, of_consumers = network.neighbours
    plain = network.features(network._x)
    adjacency = torch.zeros(4, 4)
    adjacency[EDGES[0], EDGES[1]] = 1.0
    expected = plain + adjacency.t() @ of_producers + adjacency @ of_consumers
    torch.testing.assert_close(given[0], torch.relu(expected))


@pytest.mark.parametrize("scoring", Scoring)
def test_attention_is_a_mean_of_the_units_weighted_by_their_scores(scoring: Scoring) -> None:
    """Scores are v . tanh(W s + U h) for ADDITIVE; for DOT the products W s . U h, in which v weighs each dimension."""
    network = network_of(RnnConfig(width=6, scoring=scoring))
    torch.nn.init.normal_(network.score, generator=generator())
    state, read = torch.randn(5, 6, generator=generator()), torch.randn(4, 12, generator=generator())
    query, key, v = (w.detach().numpy() for w in (network.query.weight, network.key.weight, network.score))
    ws, uh = state.numpy() @ query.T, read.numpy() @ key.T
    if scoring is Scoring.ADDITIVE:
        weights = np.exp([[v @ np.tanh(s + h) for h in uh] for s in ws])
    else:
        weights = np.exp([[(s * h) @ v for h in uh] for s in ws])
    expected = weights / weights.sum(axis=1, keepdims=True) @ read.numpy()
    with torch.no_grad():
        found = network._attended(state, Encodings(read, network.key(read))).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scoring", Scoring)
def test_decisions_are_computed_in_one_pass_as_step_by_step(scoring: Scoring) -> None:
    network = network_of(RnnConfig(width=6, scoring=scoring))
    devices, found = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0]]), []
    for told in (network.told, lambda given: StepwiseNetwork.told(network, given)):
        logits, units = told(devices)
        gradient = torch.autograd.grad(logits.square().sum(), list(network.parameters()), allow_unused=True)
        found.append([logits, units, *(g for g in gradient if g is not None)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
