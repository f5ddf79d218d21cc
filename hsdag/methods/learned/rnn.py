"""Method ``rnn``: an LSTM encodes units and another one with attention decodes devices (Mirhoseini et al. 2017, §3).

Legend: N units, E edges, F features, H width, D devices, B plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.networks import Mlp, draw_within, linear, tokens_of
from hsdag.methods.learned.options import NO_END, REINFORCE, Baseline, Ranges, Reward, TrainingOptions
from hsdag.methods.learned.stepwise import SEEN_NUMBERS, Choose, StepwiseNetwork, StepwisePolicy, order_of_visits
from hsdag.runtime.problem.problem import Problem


class Scoring(Enum):
    """Function by which attention scores encoded units against the decoder's state."""

    ADDITIVE = "additive"  # v . tanh(W s + U h) (Bahdanau et al. 2015)
    DOT = "dot"  # W s . U h; needs memory that does not grow with the width


@dataclass(frozen=True)
class RnnConfig(TrainingOptions):
    """Hyper-parameters of ``rnn``. Raises OptionError for a value out of range."""

    learning_rate: float = 3e-3
    imitation_weight: float = 0.3
    width: int = 64
    """Number of hidden units of the LSTM in each direction of the encoder, and in the decoder."""
    scoring: Scoring = Scoring.DOT
    """Score function of attention: additive or dot."""
    reads_own: bool = True
    """Feed the decoder the encoding of the unit that it places; in the paper, attention has to find that unit."""
    feeds_context: bool = False
    """Feed the decoder the context vector of attention, as Bahdanau et al. do; steps then have to be computed one after
    another."""
    costs: bool = True
    """Use times on every device, transfers and levels as features of units if costs are known; not in the paper."""
    sees: bool = True
    """Place units one after another, each given features of the devices in the schedule of the units before it; not in
    the paper."""

    ranges: ClassVar[Ranges] = (*TrainingOptions.ranges, ("at least 1", 1, NO_END, "width"))

    @classmethod
    def paper(cls) -> Self:
        """Return the preset of the paper (§3).

        It is trained by REINFORCE on the negative square root of the time, less a moving average.
        """
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


class Encodings(NamedTuple):
    """Encodings of all units, in topological order."""

    units: torch.Tensor  # [N, 2 H]
    keys: torch.Tensor  # [N, H] by which attention scores them


class SequenceNetwork(StepwiseNetwork):
    """Network that places one unit per step, in topological order, given the devices of the units before it.

    Untrained, all devices are equally likely.
    """

    def __init__(
        self,
        x: torch.Tensor,
        edges: torch.Tensor,
        order: torch.Tensor,
        num_devices: int,
        config: RnnConfig,
        generator: torch.Generator,
    ) -> None:
        """Initialise the weights at random.

        Args:
            x: Features of units [N, F].
            edges: Producers and consumers [2, E].
            order: Units in topological order [N].
            num_devices: Number of devices D.
            config: Sizes of the layers, and what the decoder is fed.
            generator: Source of the initial weights.
        """
        super().__init__(order, num_devices)
        self._x, self._edges = x, edges
        self._config = config
        width = config.width
        self.features = linear(x.shape[1], width, generator)
        self.neighbours = nn.Parameter(torch.empty(2, len(x), width).uniform_(-0.1, 0.1, generator=generator))
        self.encoder = nn.LSTM(width, width, bidirectional=True)
        draw_within(self.encoder, width, generator)
        self.first = linear(2 * width, width, generator)
        self.decoder = nn.LSTM(width * (1 + 2 * config.feeds_context + 2 * config.reads_own), width)
        draw_within(self.decoder, width, generator)
        self.device = nn.Parameter(torch.empty(num_devices + 1, width).uniform_(-0.1, 0.1, generator=generator))
        self.query, self.key = (linear(n * width, width, generator, bias=False) for n in (1, 2))
        self.score = nn.Parameter(torch.empty(width).uniform_(-(width**-0.5), width**-0.5, generator=generator))
        if config.scoring is Scoring.DOT:
            nn.init.ones_(self.score)  # random weights would give all units about the same score
        self.out = Mlp([3 * width, width, num_devices], generator, zero_output=True)

    def read(self) -> Encodings:
        """Encode the units.

        The token of a unit is the sum of an embedding of its features and one of each of its producers and consumers.
        """
        tokens = self.features(self._x)
        for way, table in enumerate(self.neighbours):
            tokens = tokens.index_add(0, self._edges[1 - way], table[self._edges[way]])
        units = self.encoder(torch.relu(tokens)[self.order])[0]
        return Encodings(units, self.key(units))

    def decode(self, count: int, choose: Choose) -> None:
        """Have devices chosen for ``count`` plans, one unit per step."""
        encodings = self.read()
        weights = tuple(self.decoder.parameters())
        state, cell = (memory[0] for memory in self._before_all(encodings, count))
        before = self.device[-1].expand(count, -1)
        for step in range(len(encodings.units)):
            fed = self._fed(before, encodings.units[step].expand(count, -1), state, encodings)
            state, cell = torch.lstm_cell(fed, (state, cell), *weights)
            logits = self._logits(state, fed, encodings)
            before = self.device[choose(logits[:, None], self.order[step : step + 1]).squeeze(1)]

    def told(self, devices: torch.Tensor) -> torch.Tensor:
        """Return logits [B, N, D] of ``devices`` [B, N]; compute all steps in one pass unless context is fed back."""
        if self._config.feeds_context:
            return super().told(devices)
        encodings = self.read()
        before = self.device[devices[:, self.order[:-1]].t()]
        before = torch.cat([self.device[-1].expand(1, len(devices), -1), before])  # [N, B, H]
        fed = self._fed(before, encodings.units[:, None].expand(-1, len(devices), -1), before, encodings)
        states = self.decoder(fed, self._before_all(encodings, len(devices)))[0]
        return self._logits(states, fed, encodings).transpose(0, 1)

    def _before_all(self, encodings: Encodings, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the decoder's state and cell before the first step, [1, B, H] each."""
        state = torch.tanh(self.first(encodings.units.mean(dim=0))).expand(1, count, -1).contiguous()
        return state, torch.zeros_like(state)

    def _fed(self, before: torch.Tensor, unit: torch.Tensor, state: torch.Tensor, encodings: Encodings) -> torch.Tensor:
        """Return the decoder's input, [..., H] to [..., 5 H] by the options.

        Args:
            before: Embedding of the device of the unit before [..., H].
            unit: Encoding of the unit to be placed [..., 2 H].
            state: State of the decoder, by which attention is computed if context is fed back [..., H].
            encodings: Encodings of all units.
        """
        parts = [before]
        parts += [self._attended(state, encodings)] if self._config.feeds_context else []
        return torch.cat([*parts, unit] if self._config.reads_own else parts, dim=-1)

    def _logits(self, state: torch.Tensor, fed: torch.Tensor, encodings: Encodings) -> torch.Tensor:
        """Return the logits of devices [..., D].

        Args:
            state: State of the decoder [..., H].
            fed: Input of the decoder; it contains the context if that is fed back, else attention computes it.
            encodings: Encodings of all units.
        """
        width = state.shape[-1]
        context = fed[..., width : 3 * width] if self._config.feeds_context else self._attended(state, encodings)
        return torch.as_tensor(self.out(torch.cat([state, context], dim=-1)))

    def _attended(self, state: torch.Tensor, encodings: Encodings) -> torch.Tensor:
        """Return the context of attention [..., 2 H] for states [..., H] of the decoder.

        It is a mean of encodings, weighted by the softmax of their scores.
        """
        query = self.query(state)
        if self._config.scoring is Scoring.ADDITIVE:
            scores = torch.tanh(query[..., None, :] + encodings.keys) @ self.score
        else:
            scores = (query * self.score) @ encodings.keys.t()
        return torch.softmax(scores, dim=-1) @ encodings.units


class RnnPlacer(LearnedPlacer[RnnConfig]):
    """Placer that decodes the devices of units one by one, in topological order; see docs/learned-methods.md."""

    name = "rnn"
    needs_costs = False
    gives_order = True
    options_type = RnnConfig

    def policy(self, problem: Problem, generator: torch.Generator) -> StepwisePolicy:
        """Return an untrained policy; its features are types and outputs of units, and costs if known and asked for."""
        x = tokens_of(problem, with_costs=self.options.costs)
        edges = torch.tensor(np.stack([problem.units.graph.edge_src, problem.units.graph.edge_dst]))
        order = order_of_visits(problem, sees=self.options.sees)
        network = SequenceNetwork(x, edges, order, problem.num_devices, self.options, generator)
        return StepwisePolicy(network, problem, sees=self.options.sees)

    def needed_bytes(self, problem: Problem) -> float:
        """Return the bytes of the weights, and of the activations of all steps of all plans, kept for the gradient.

        Attention scores all pairs of units; additive attention keeps a vector of the width for each pair.
        """
        o = self.options
        num = problem.num_units
        compared = o.width if o.scoring is Scoring.ADDITIVE else 0
        seen = SEEN_NUMBERS * problem.num_devices * o.sees
        of_steps = o.plans_per_update * num * (num * (3 + compared) + 25 * o.width + seen)
        return 4.0 * (of_steps + 160 * o.width**2)
