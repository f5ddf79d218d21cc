"""Method ``gdp``: GDP, which has GraphSAGE and segment-recurrent attention (Zhou et al. 2019, §3.1 and §3.2).

Legend: N units, E edges, F features, H width, S units of a segment, T segments, A heads, D devices, B plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import nn

from hsdag.base.errors import OptionError
from hsdag.methods.learned.base import LearnedPlacer
from hsdag.methods.learned.networks import Edges, Encoder, Mlp, draw_within, edges_of, tokens_of
from hsdag.methods.learned.options import ALONE, NO_END, Baseline, Ranges, Reward, TrainingOptions
from hsdag.methods.learned.stepwise import SEEN_NUMBERS, Choose, StepwiseNetwork, StepwisePolicy, order_of_visits
from hsdag.runtime.problem.problem import Problem


@dataclass(frozen=True)
class GdpConfig(TrainingOptions):
    """Hyper-parameters of ``gdp``. Raises OptionError for a value out of range or options that conflict."""

    learning_rate: float = 3e-3
    entropy: float = 0.03
    imitation_weight: float = 0.3
    width: int = 64
    """Width of embeddings and of attention layers."""
    layers: int = 3
    """Number of rounds of message passing."""
    encoder: str = "sage-pool"
    """Layer that passes messages: sage-pool (eq. 2 and 3), messages, both-ways or hsdag."""
    blocks: int = 2
    """Number of attention layers."""
    heads: int = 4
    """Number of attention heads, which divide the width equally among them."""
    segment: int = 128
    """Number of units in a segment; a unit attends to its own segment and to the one before it."""
    relative: bool = True
    """Add a learned bias to attention by the distance of two units in topological order; in the paper, positions come
    from the graph encoder alone."""
    costs: bool = True
    """Use times on every device, transfers and levels as features of units if costs are known; not in the paper."""
    sees: bool = True
    """Place units one after another, each given features of the devices in the schedule of the units before it; not in
    the paper."""

    ranges: ClassVar[Ranges] = (
        *TrainingOptions.ranges,
        ("at least 1", 1, NO_END, "width layers blocks heads segment"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise OptionError(f"option width must be a multiple of heads, {self.heads}, not {self.width}")

    @classmethod
    def paper(cls) -> Self:
        """Return the preset of the paper (§3.1 to §3.3).

        It is trained by PPO on the negative square root of the time, less the mean of earlier rewards.
        """
        return cls(
            **ALONE,
            plans_per_update=20,
            epochs=20,
            learning_rate=1e-3,
            last_learning_rate=1e-3,
            entropy=1e-2,
            last_entropy=1e-2,
            reward=Reward.SQUARE_ROOT,
            baseline=Baseline.RUNNING,
            max_grad_norm=0.0,
            relative=False,
            costs=False,
            sees=False,
        )


FARTHEST = 32
"""Largest distance in topological order that has an attention bias of its own; larger distances share its bias."""


class SegmentAttention(nn.Module):
    """Layer of attention within segments and to the segment before, which gets no gradient (Dai et al. 2019, §3.2).

    All segments are computed at once, since a layer attends only to what the layer below returned.
    """

    def __init__(self, width: int, heads: int, generator: torch.Generator, *, relative: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        draw_within(self.attention, width, generator)
        self.inner = Mlp([width, 2 * width, width], generator)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.distance = nn.Parameter(torch.zeros(heads, 2 * FARTHEST + 1)) if relative else None

    def forward(self, h: torch.Tensor, is_unit: torch.Tensor) -> torch.Tensor:
        """Return embeddings [T, S, H] of the units in all segments.

        Args:
            h: Embeddings returned by the layer below [T, S, H].
            is_unit: Whether there is a unit [T, S]; False for the padding of the last segment.
        """
        before, was_unit = torch.roll(h, 1, 0).detach(), torch.roll(is_unit, 1, 0)
        was_unit[0] = False
        context, is_context = torch.cat([before, h], dim=1), torch.cat([was_unit, is_unit], dim=1)
        mask = torch.zeros(len(h), self.attention.num_heads, h.shape[1], context.shape[1])
        mask = mask.masked_fill(~is_context[:, None, None, :], -torch.inf)  # [T, A, S, 2 S]
        if self.distance is not None:
            place = torch.arange(context.shape[1])
            apart = (place[None, :] - place[h.shape[1] :, None]).clamp(-FARTHEST, FARTHEST) + FARTHEST
            mask = mask + self.distance[:, apart]
        attended, _ = self.attention(h, context, context, attn_mask=mask.flatten(0, 1), need_weights=False)
        h = self.norms[0](h + attended)
        return torch.as_tensor(self.norms[1](h + self.inner(h)))


class GdpNetwork(StepwiseNetwork):
    """Network that computes the logits of all units in one pass from their features; untrained, all are equal."""

    def __init__(
        self,
        x: torch.Tensor,
        edges: Edges,
        order: torch.Tensor,
        num_devices: int,
        config: GdpConfig,
        generator: torch.Generator,
    ) -> None:
        """Initialise the weights at random.

        Args:
            x: Features of units [N, F].
            edges: Edges between units, with their costs.
            order: Units in topological order [N].
            num_devices: Number of devices D.
            config: Sizes of the layers.
            generator: Source of the initial weights.
        """
        super().__init__(order, num_devices)
        self._x, self._edges = x, edges
        self._segment = min(config.segment, len(x))
        width = config.width
        self.encoder = Encoder(config.encoder, x.shape[1], width, config.layers, generator)
        self.attention = nn.ModuleList(
            SegmentAttention(width, config.heads, generator, relative=config.relative) for _ in range(config.blocks)
        )
        self.out = Mlp([width, width, num_devices], generator, zero_output=True)

    def logits(self) -> torch.Tensor:
        """Return the logits [N, D] of devices for all units, in topological order."""
        filled = -len(self._x) % self._segment
        h = nn.functional.pad(self.encoder(self._x, self._edges)[self.order], (0, 0, 0, filled))
        h = h.reshape(-1, self._segment, h.shape[1])
        is_unit = (torch.arange(len(self._x) + filled) < len(self._x)).reshape(-1, self._segment)
        for layer in self.attention:
            h = layer(h, is_unit)
        return torch.as_tensor(self.out(h.flatten(0, 1)[: len(self._x)]))

    def decode(self, count: int, choose: Choose) -> None:
        """Have the devices of all units of ``count`` plans chosen in one step, by the logits of one pass."""
        choose(self.logits().expand(count, -1, -1), self.order)


class GdpPlacer(LearnedPlacer[GdpConfig]):
    """Placer that draws plans from the logits that one pass gives for all units; see docs/learned-methods.md."""

    name = "gdp"
    needs_costs = False
    gives_order = True
    options_type = GdpConfig

    def policy(self, problem: Problem, generator: torch.Generator) -> StepwisePolicy:
        """Return an untrained policy; its features are types and outputs of units, and costs if known and asked for."""
        order = order_of_visits(problem, sees=self.options.sees)
        x, edges = tokens_of(problem, with_costs=self.options.costs), edges_of(problem, with_costs=self.options.costs)
        network = GdpNetwork(x, edges, order, problem.num_devices, self.options, generator)
        return StepwisePolicy(network, problem, sees=self.options.sees)

    def needed_bytes(self, problem: Problem) -> float:
        """Return the bytes of a pass's activations, of attention weights, and of the logits of all plans."""
        o = self.options
        of_attention = o.blocks * (20 * o.width + 6 * o.heads * o.segment)
        of_unit = (
            12 * o.layers * o.width
            + of_attention
            + (8 + SEEN_NUMBERS * o.sees) * problem.num_devices * o.plans_per_update
        )
        return 4.0 * problem.num_units * of_unit
