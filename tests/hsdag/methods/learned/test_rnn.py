"""The RNN-based method: what is read of a unit, and that devices written before count."""

from __future__ import annotations

import pytest
import torch

from hsdag.methods.learned.policy import StepwiseNetwork
from hsdag.methods.learned.rnn import RnnConfig, Scoring, SequenceNetwork

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


def test_the_encoder_reads_both_ways() -> None:
    network = network_of(RnnConfig(width=6))
    before = network.read()
    network._x = network._x.clone()
    network._x[2] += 5.0
    assert (network.read() - before).abs().amax(dim=1).min() > 1e-5


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
