"""SequenceNetwork: an LSTM reads units, one with attention writes their devices (Mirhoseini et al. 2017, §3).

Legend: N units, E edges, F features, H width, D devices, B plans.
"""

from __future__ import annotations

import torch
from torch import nn

from hsdag.learning.networks import Mlp, linear
from hsdag.learning.rnn.config import RnnConfig, Scoring
from hsdag.learning.stepwise import Choose, StepwiseNetwork


class SequenceNetwork(StepwiseNetwork):
    """One device per step, in topological order, given the devices before it; untrained, all are equally likely."""

    def __init__(
        self,
        x: torch.Tensor,
        edges: torch.Tensor,
        order: torch.Tensor,
        num_devices: int,
        config: RnnConfig,
        generator: torch.Generator,
    ) -> None:
        """``x`` [N, F] are features, ``edges`` [2, E] producers and consumers, ``order`` [N] is topological."""
        super().__init__()
        self._x, self._edges, self._order, self._config = x, edges, order, config
        num, width = len(x), config.width
        self.features = linear(x.shape[1], width, generator)
        self.neighbours = nn.Parameter(torch.empty(2, num, width).uniform_(-0.1, 0.1, generator=generator))
        self.encoder = _within(nn.LSTM(width, width, bidirectional=True), width, generator)
        self.first = linear(2 * width, width, generator)
        self.cell = _within(nn.LSTMCell(width * (5 if config.reads_own else 3), width), width, generator)
        self.device = nn.Parameter(torch.empty(num_devices + 1, width).uniform_(-0.1, 0.1, generator=generator))
        self.query, self.key = (linear(n * width, width, generator, bias=False) for n in (1, 2))
        self.score = nn.Parameter(torch.empty(width).uniform_(-(width**-0.5), width**-0.5, generator=generator))
        self.out = Mlp([3 * width, width, num_devices], generator, zero_output=True)

    def read(self) -> torch.Tensor:
        """[N, 2 H] what was read of every unit, in topological order.

        A token is an embedding of type and shape plus one of the adjacency: of each producer and each consumer.
        """
        tokens = self.features(self._x)
        for way, table in enumerate(self.neighbours):
            tokens = tokens.index_add(0, self._edges[1 - way], table[self._edges[way]])
        return torch.as_tensor(self.encoder(torch.relu(tokens)[self._order])[0])

    def decode(self, count: int, choose: Choose) -> None:
        """Write ``count`` devices at a time."""
        read = self.read()
        keys = self.key(read)
        state = torch.tanh(self.first(read.mean(dim=0))).expand(count, -1)
        cell, before = torch.zeros_like(state), self.device[-1].expand(count, -1)
        for step in range(len(read)):
            context = self._attended(state, keys, read)
            given = [before, context, read[step].expand(count, -1)]
            state, cell = self.cell(torch.cat(given if self._config.reads_own else given[:2], dim=1), (state, cell))
            logits = self.out(torch.cat([state, context], dim=1))
            before = self.device[choose(logits[:, None], self._order[step : step + 1]).squeeze(1)]

    def _attended(self, state: torch.Tensor, keys: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """[B, 2 H] the mean of what was read [N, 2 H], weighted by how it suits the state [B, H]."""
        query = self.query(state)
        if self._config.scoring is Scoring.ADDITIVE:
            scores = torch.tanh(query[:, None] + keys) @ self.score
        else:
            scores = (query * self.score) @ keys.t()
        return torch.softmax(scores, dim=1) @ read


def _within(module: nn.Module, width: int, generator: torch.Generator) -> nn.Module:
    """The module with all weights drawn uniformly within 1 / sqrt(width)."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -(width**-0.5), width**-0.5, generator=generator)
    return module


def needed_bytes(num_units: int, config: RnnConfig) -> float:
    """About what an update holds at once: all steps of all plans, for the gradient, and the weights."""
    plans, width = config.plans_per_update + config.elites, config.width
    compared = width if config.scoring is Scoring.ADDITIVE else 0
    of_steps = plans * num_units * (num_units * (3 + compared) + 25 * width)
    return 4.0 * (of_steps + 4 * (40 * width**2 + 2 * num_units * width))
