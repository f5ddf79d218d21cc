"""RnnPlacer: the RNN-based method, an LSTM that reads units and one with attention that writes their devices.

Mirhoseini et al. 2017, §3. Legend: N units, E edges, F features, H width, D devices, B plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Self

import numpy as np
import torch
from torch import nn

from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.networks import Mlp, draw_within, linear, tokens_of
from hsdag.methods.learned.options import NO_END, REINFORCE, Baseline, Ranges, Reward, TrainingOptions
from hsdag.methods.learned.stepwise import SEEN_NUMBERS, Choose, StepwiseNetwork, StepwisePolicy, order_of_visits
from hsdag.runtime.problem.problem import Problem


class Scoring(Enum):
    """How attention compares the decoder's state with what was read."""

    ADDITIVE = "additive"  # v . tanh(W s + U h) (Bahdanau et al. 2015)
    DOT = "dot"  # W s . U h, whose memory does not grow with the width


@dataclass(frozen=True)
class RnnConfig(TrainingOptions):
    """Hyper-parameters of the RNN-based method. Raises OptionError for wrong ones."""

    learning_rate: float = 3e-3
    imitation_weight: float = 0.3
    width: int = 64
    """Units of the LSTM in either direction of the encoder, and in the decoder."""
    scoring: Scoring = Scoring.DOT
    """How attention compares: additive or dot."""
    reads_own: bool = True
    """The decoder is given what was read of the unit that it places; the paper leaves finding it to attention."""
    feeds_context: bool = False
    """The decoder is given what attention found, as by Bahdanau et al.; steps then follow one another."""
    costs: bool = True
    """Use the times of units on every device, their transfers and levels where they are known; not in the paper."""
    sees: bool = True
    """Units are placed one after another, each seeing what devices do with those before it; not in the paper."""

    ranges: ClassVar[Ranges] = (*TrainingOptions.ranges, ("at least 1", 1, NO_END, "width"))

    @classmethod
    def paper(cls) -> Self:
        """The paper's policy and reward: §3, square root of the time, REINFORCE with a moving average."""
        return cls(
            **REINFORCE,
            plans_per_update=8,
            learning_rate=1e-3,
            last_learning_rate=1e-3,
            entropy=0.0,
            reward=Reward.SQUARE_ROOT,
            baseline=Baseline.RECENT,
            width=512,
            scoring=Scoring.ADDITIVE,
            reads_own=False,
            feeds_context=True,
            costs=False,
            sees=False,
        )


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
        super().__init__(order, num_devices)
        self._x, self._edges = x, edges
        self._config = config
        width = config.width
        self.features = linear(x.shape[1], width, generator)
        self.neighbours = nn.Parameter(torch.empty(2, len(x), width).uniform_(-0.1, 0.1, generator=generator))
        self.encoder = nn.LSTM(width, width, bidirectional=True)
        draw_within(self.encoder, width, generator)
        self.first = linear(2 * width, width, generator)
        given = 1 + 2 * config.feeds_context + 2 * config.reads_own
        self.decoder = nn.LSTM(width * given, width)
        draw_within(self.decoder, width, generator)
        self.device = nn.Parameter(torch.empty(num_devices + 1, width).uniform_(-0.1, 0.1, generator=generator))
        self.query, self.key = (linear(n * width, width, generator, bias=False) for n in (1, 2))
        self.score = nn.Parameter(torch.empty(width).uniform_(-(width**-0.5), width**-0.5, generator=generator))
        if config.scoring is Scoring.DOT:
            nn.init.ones_(self.score)  # drawn weights would leave all units about equally suitable
        self.out = Mlp([3 * width, width, num_devices], generator, zero_output=True)

    def read(self) -> torch.Tensor:
        """[N, 2 H] what was read of every unit, in topological order.

        A token is an embedding of type and shape plus one of the adjacency: of each producer and each consumer.
        """
        tokens = self.features(self._x)
        for way, table in enumerate(self.neighbours):
            tokens = tokens.index_add(0, self._edges[1 - way], table[self._edges[way]])
        return torch.as_tensor(self.encoder(torch.relu(tokens)[self.order])[0])

    def decode(self, count: int, choose: Choose) -> None:
        """Write ``count`` devices at a time."""
        read = self.read()
        keys = self.key(read)
        weights = tuple(self.decoder.parameters())
        state, cell = (each[0] for each in self._before_all(read, count))
        before = self.device[-1].expand(count, -1)
        for step in range(len(read)):
            given = self._given(before, read[step].expand(count, -1), state, keys, read)
            state, cell = torch.lstm_cell(given, (state, cell), *weights)
            logits = self._logits(state, given, keys, read)
            before = self.device[choose(logits[:, None], self.order[step : step + 1]).squeeze(1)]

    def told(self, devices: torch.Tensor) -> torch.Tensor:
        """All steps in one pass, where no step is given what attention found."""
        if self._config.feeds_context:
            return super().told(devices)
        read = self.read()
        before = self.device[devices[:, self.order[:-1]].t()]
        before = torch.cat([self.device[-1].expand(1, len(devices), -1), before])  # [N, B, H]
        keys = self.key(read)
        memory = self._before_all(read, len(devices))
        given = self._given(before, read[:, None].expand(-1, len(devices), -1), before, keys, read)
        return self._logits(self.decoder(given, memory)[0], given, keys, read).transpose(0, 1)

    def _before_all(self, read: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Two of [1, B, H]: the decoder's state and its cell before the first step."""
        state = torch.tanh(self.first(read.mean(dim=0))).expand(1, count, -1).contiguous()
        return state, torch.zeros_like(state)

    def _given(
        self, before: torch.Tensor, own: torch.Tensor, state: torch.Tensor, keys: torch.Tensor, read: torch.Tensor
    ) -> torch.Tensor:
        """[..., H] to [..., 5 H] what the decoder is given: the device before; context and own unit if asked."""
        parts = [before]
        parts += [self._attended(state, keys, read)] if self._config.feeds_context else []
        return torch.cat([*parts, own] if self._config.reads_own else parts, dim=-1)

    def _logits(self, state: torch.Tensor, given: torch.Tensor, keys: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """[..., D] from states [..., H] and the context: what was given, else what the state finds."""
        width = state.shape[-1]
        context = given[..., width : 3 * width] if self._config.feeds_context else self._attended(state, keys, read)
        return torch.as_tensor(self.out(torch.cat([state, context], dim=-1)))

    def _attended(self, state: torch.Tensor, keys: torch.Tensor, read: torch.Tensor) -> torch.Tensor:
        """[..., 2 H] the mean of what was read [N, 2 H], weighted by how it suits the states [..., H]."""
        query = self.query(state)
        if self._config.scoring is Scoring.ADDITIVE:
            scores = torch.tanh(query[..., None, :] + keys) @ self.score
        else:
            scores = (query * self.score) @ keys.t()
        return torch.softmax(scores, dim=-1) @ read


class RnnPlacer(LearnedPlacer[RnnConfig]):
    """Writes the devices of units one by one, in topological order; see docs/learned-methods.md."""

    name = "rnn"
    needs_costs = False
    gives_order = True
    options_type = RnnConfig

    def policy(self, problem: Problem, generator: torch.Generator) -> StepwisePolicy:
        """Units by type and output, and by their costs where these are known and asked for."""
        x = tokens_of(problem, with_costs=self.options.costs)
        edges = torch.tensor(np.stack([problem.units.graph.edge_src, problem.units.graph.edge_dst]))
        order = order_of_visits(problem, sees=self.options.sees)
        network = SequenceNetwork(x, edges, order, problem.num_devices, self.options, generator)
        return StepwisePolicy(network, problem, sees=self.options.sees)

    def needed_bytes(self, problem: Problem) -> float:
        """All steps of all plans, for the gradient, and the weights; additive attention compares all pairs of units."""
        o = self.options
        num = problem.num_units
        compared = o.width if o.scoring is Scoring.ADDITIVE else 0
        seen = SEEN_NUMBERS * problem.num_devices * o.sees
        of_steps = o.plans_per_update * num * (num * (3 + compared) + 25 * o.width + seen)
        return 4.0 * (of_steps + 160 * o.width**2)
