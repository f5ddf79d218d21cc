"""Training of the graph parsing network by which ``multilevel`` contracts edges: whose ends share a device.

    python -m hsdag.training.parsing FILE.safetensors [100 [0]]

Imitated are annealing's plans for so many problems of the families that policies are trained on. The second number is
the seed, which gives the same weights again. Legend: N ops, E edges.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from hsdag.methods.learned.base import one_thread
from hsdag.methods.learned.hsdag.network import unit_rows
from hsdag.methods.learned.networks import Edges, Encoder, Mlp
from hsdag.methods.local.multilevel import joinable
from hsdag.methods.local.parsing import NUM_EDGE_FEATURES, NUM_OP_FEATURES, ROUNDS, WIDTH, features_of
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.scoring.policy_file import write_policy
from hsdag.search.options import SolveOptions
from hsdag.sources import find_family
from hsdag.training.problems import training_problems

FAMILIES = "random-wired,transformer,chain,nmt,llama"
EXPERT = SolveOptions("sa", budget_s=np.inf, max_evaluations=60_000, num_threads=1)
EPOCHS, BATCH, RATE, DECAY = 60, 5, 3e-3, 1e-4


class ParsingNetwork(nn.Module):
    """What ``hsdag.methods.local.parsing`` computes without torch."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = Encoder("hsdag", NUM_OP_FEATURES, WIDTH, ROUNDS, generator)
        self.score = Mlp([WIDTH + NUM_EDGE_FEATURES, WIDTH, 1], generator)

    def forward(self, x: torch.Tensor, of_edge: torch.Tensor, edges: Edges) -> torch.Tensor:
        """[E] logits of the probability that both ends of an edge share a device."""
        h = unit_rows(self.encoder(x, edges))
        return torch.as_tensor(self.score(torch.cat([h[edges.source] * h[edges.target], of_edge], dim=1)).squeeze(-1))


class Sample(NamedTuple):
    """What the network reads of a graph, and what it is to say of the edges that can be contracted."""

    x: torch.Tensor  # [N, F]
    of_edge: torch.Tensor  # [E, F]
    edges: Edges
    which: torch.Tensor  # the edges that can be contracted
    is_together: torch.Tensor  # whether a plan keeps the ends of each of these together


def sample_of(costs: ScheduleProblem, plan: Plan) -> Sample:
    """What a plan teaches of a problem."""
    x, of_edge = (torch.tensor(each, dtype=torch.float32) for each in features_of(costs))
    ends = (costs.edge_src, costs.edge_dst)
    which = np.flatnonzero(joinable(costs))
    is_together = np.equal(*(plan.placement[each[which]] for each in ends))
    edges = Edges.without_costs(*map(torch.tensor, ends))
    return Sample(x, of_edge, edges, torch.from_numpy(which), torch.tensor(is_together, dtype=torch.float32))


def trained(samples: Sequence[Sample], seed: int, epochs: int = EPOCHS) -> tuple[ParsingNetwork, list[float]]:
    """A network, and the mean cross-entropy over samples in every epoch."""
    network = ParsingNetwork(torch.Generator().manual_seed(seed))
    rng = np.random.default_rng(seed)
    adam = torch.optim.AdamW(network.parameters(), RATE, weight_decay=DECAY)
    batches = -(-len(samples) // BATCH)
    rate = torch.optim.lr_scheduler.OneCycleLR(adam, RATE, total_steps=max(epochs * batches, 1))
    curve = [0.0] * epochs
    for epoch in range(epochs if samples else 0):
        for batch in np.array_split(rng.permutation(len(samples)), batches):
            loss = torch.zeros(())
            for sample in (samples[i] for i in batch):
                logits = network(sample.x, sample.of_edge, sample.edges)[sample.which]
                loss = loss + nn.functional.binary_cross_entropy_with_logits(logits, sample.is_together)
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            rate.step()
            curve[epoch] += float(loss.detach()) / len(samples)
    return network, curve


def main(path: str, number: str = "100", seed: str = "0") -> None:
    """Train on so many problems, which the seed numbers, and write the network; with none of them, untrained."""
    numbers = range(int(seed) * int(number), (int(seed) + 1) * int(number))
    with one_thread():
        problems = training_problems(find_family(FAMILIES), numbers, EXPERT, lambda: None, None)
        able = [each for each in problems if joinable(each.costs).any()]
        network, curve = trained([sample_of(each.costs, plan) for each in able for plan in each.experts], int(seed))
    card = {"method": "multilevel", "family": FAMILIES, "problems": int(number), "seed": int(seed)}
    card |= {"figures": "simulated", "curve": np.round(curve, 4).tolist()}
    write_policy(Path(path), {name: weight.numpy() for name, weight in network.state_dict().items()}, card)


if __name__ == "__main__":
    main(*sys.argv[1:])
