"""GDP: GraphSAGE and segment-recurrent attention (Zhou et al. 2019, §3.1 and §3.2), and its options.

Legend: N units, E edges, F features, H width, S units of a segment, T segments, A heads, D devices, B plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import nn

from hsdag.ir.errors import OptionError
from hsdag.methods.learned.networks import Edges, Mlp, linear, make_encoder
from hsdag.methods.learned.options import Baseline, Ranges, Reward, TrainingOptions
from hsdag.methods.learned.policy import Choose, StepwiseNetwork


@dataclass(frozen=True)
class GdpConfig(TrainingOptions):
    """Hyper-parameters of GDP. Raises OptionError for wrong ones."""

    plans_per_update: int = 32
    epochs: int = 4
    learning_rate: float = 2e-3
    last_learning_rate: float = 3e-4
    entropy: float = 0.03
    elites: int = 1
    imitation_weight: float = 0.3
    patience: int = 25
    width: int = 64
    """Width of embeddings and of attention."""
    layers: int = 3
    """Rounds of messages."""
    encoder: str = "sage-pool"
    """How messages are passed: sage-pool (eq. 2 and 3), messages, both-ways, gcn, gat, gin or sage."""
    blocks: int = 2
    """Layers of attention."""
    heads: int = 4
    """Heads of attention; they share the width."""
    segment: int = 128
    """Units of a segment; each attends to its own segment and to the one before it."""
    relative: bool = True
    """Tell attention how far apart units are in topological order; the paper leaves positions to the graph encoder."""
    costs: bool = True
    """Use the times of units on every device, their transfers and levels where they are known; not in the paper."""

    ranges: ClassVar[Ranges] = (
        *TrainingOptions.ranges,
        ("at least 1", lambda x: x >= 1, "width layers blocks heads segment"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise OptionError(f"option width must be a multiple of heads, {self.heads}, not {self.width}")

    @classmethod
    def paper(cls) -> Self:
        """The paper's policy and reward: §3.1 to §3.3, square root of the time, PPO, mean of earlier rewards."""
        return cls(
            plans_per_update=20,
            epochs=20,
            learning_rate=1e-3,
            last_learning_rate=1e-3,
            entropy=1e-2,
            last_entropy=1e-2,
            reward=Reward.SQUARE_ROOT,
            baseline=Baseline.RUNNING,
            elites=0,
            patience=0,
            max_grad_norm=0.0,
            width=64,
            segment=128,
            relative=False,
            costs=False,
        )


FARTHEST = 32
"""Distances in topological order beyond which attention tells no difference."""


class Segments(nn.Module):
    """A layer of attention within segments and to the segment before, which gets no gradient (Dai et al. 2019, §3.2).

    All segments are computed side by side, for the memory of a layer is what the layer below made.
    """

    def __init__(self, width: int, heads: int, generator: torch.Generator, *, relative: bool) -> None:
        super().__init__()
        self._heads = heads
        self.query, self.value, self.mixed = (linear(width, width, generator) for _ in range(3))
        self.key = linear(width, width, generator, bias=False)
        self.inner = Mlp([width, 2 * width, width], generator)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.distance = nn.Parameter(torch.zeros(heads, 2 * FARTHEST + 1)) if relative else None

    def forward(self, h: torch.Tensor, is_unit: torch.Tensor) -> torch.Tensor:
        """[T, S, H] from [T, S, H]; ``is_unit`` [T, S] is False where the last segment is filled up."""
        before, was_unit = torch.roll(h, 1, 0).detach(), torch.roll(is_unit, 1, 0)
        was_unit[0] = False
        known = torch.cat([before, h], dim=1)
        seen = torch.cat([was_unit, is_unit], dim=1)[:, None, None, :]
        query, key, value = (self._split(of) for of in (self.query(h), self.key(known), self.value(known)))
        mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
        if self.distance is not None:
            place = torch.arange(known.shape[1])
            apart = (place[None, :] - place[h.shape[1] :, None]).clamp(-FARTHEST, FARTHEST) + FARTHEST
            mask = mask + self.distance[:, apart]
        told = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        h = self.norms[0](h + self.mixed(told.transpose(1, 2).flatten(2)))
        return torch.as_tensor(self.norms[1](h + self.inner(h)))

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """[T, A, S, H / A] the heads' parts of [T, S, H]."""
        return x.reshape(*x.shape[:2], self._heads, -1).transpose(1, 2)


class GdpNetwork(StepwiseNetwork):
    """From features of units to logits of all their devices in one pass; untrained, all are equal."""

    def __init__(
        self,
        x: torch.Tensor,
        edges: Edges,
        order: torch.Tensor,
        num_devices: int,
        config: GdpConfig,
        generator: torch.Generator,
    ) -> None:
        """``x`` [N, F] are features, ``order`` [N] the units in topological order."""
        super().__init__()
        self._x, self._edges, self._order, self._segment = x, edges, order, min(config.segment, len(x))
        width = config.width
        self.encoder = make_encoder(config.encoder, x.shape[1], width, config.layers, generator)
        self.attention = nn.ModuleList(
            Segments(width, config.heads, generator, relative=config.relative) for _ in range(config.blocks)
        )
        self.out = Mlp([width, width, num_devices], generator, zero_output=True)

    def logits(self) -> torch.Tensor:
        """[N, D] of all units in topological order."""
        num = len(self._x)
        filled = -num % self._segment
        h = nn.functional.pad(self.encoder(self._x, self._edges)[self._order], (0, 0, 0, filled))
        h = h.reshape(-1, self._segment, h.shape[1])
        is_unit = (torch.arange(num + filled) < num).reshape(-1, self._segment)
        for layer in self.attention:
            h = layer(h, is_unit)
        return torch.as_tensor(self.out(h.flatten(0, 1)[:num]))

    def decode(self, count: int, choose: Choose) -> None:
        """Plans are independent draws from one pass."""
        choose(self.logits().expand(count, -1, -1), self._order)


def needed_bytes(num_units: int, num_devices: int, config: GdpConfig) -> float:
    """About what an update holds at once: activations of a pass, attention weights, and the logits of all plans."""
    segment = min(config.segment, num_units)
    of_pass = num_units * (12 * config.layers * config.width + config.blocks * 20 * config.width)
    of_attention = num_units * config.blocks * 3 * config.heads * 2 * segment
    of_plans = 8 * num_units * num_devices * (config.plans_per_update + config.elites)
    return 4.0 * (of_pass + of_attention + of_plans)
