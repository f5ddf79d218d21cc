"""Layers that learned methods share, and encoders by name: embeddings of ops.

Legend: N nodes or ops, E edges, F features, H width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import nn

from hsdag.ir.errors import chosen
from hsdag.ir.graph.computation_graph import FloatArray


class Mlp(nn.Module):
    """Linear layers with ReLU between them, initialised uniformly within 1 / sqrt(fan_in).

    ``zero_output`` begins with a last layer of zeros: untrained, all outputs are equal.
    """

    def __init__(self, widths: Sequence[int], generator: torch.Generator, *, zero_output: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linear(a, b, generator) for a, b in itertools.pairwise(widths))
        if zero_output:
            nn.init.zeros_(self.layers[-1].weight)  # type: ignore[arg-type]
            nn.init.zeros_(self.layers[-1].bias)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last layer's output, without activation."""
        for layer in list(self.layers)[:-1]:
            x = torch.relu(layer(x))
        return torch.as_tensor(self.layers[-1](x))


def linear(fan_in: int, fan_out: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """A linear layer whose weights come from ``generator``."""
    layer = nn.Linear(fan_in, fan_out, bias=bias, device="meta").to_empty(device="cpu")
    draw_within(layer, fan_in, generator)
    return layer


def draw_within(module: nn.Module, fan_in: int, generator: torch.Generator) -> None:
    """Draw all weights of a module uniformly within 1 / sqrt(fan_in)."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)


def standardise(values: FloatArray | np.ndarray) -> torch.Tensor:
    """[N, F] columns with mean 0 and variance 1, cut at five deviations; constant columns become 0."""
    x = torch.tensor(np.asarray(values), dtype=torch.float32)
    x = x - x.mean(dim=0, keepdim=True)
    deviation = x.square().mean(dim=0, keepdim=True).sqrt()
    return torch.where(deviation > 1e-6, x / deviation.clamp(min=1e-6), torch.zeros(())).clamp(-5.0, 5.0)


def within(logits: torch.Tensor, limit: float | None) -> torch.Tensor:
    """[...] logits squashed into plus or minus a limit, if there is one."""
    return logits if limit is None else limit * torch.tanh(logits / limit)


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a graph, from producer to consumer."""

    source: torch.Tensor  # [E]
    target: torch.Tensor  # [E]
    cost: torch.Tensor  # [E, 1] what it carries, in units that suit a network

    @staticmethod
    def without_costs(source: torch.Tensor, target: torch.Tensor) -> Edges:
        """Edges that carry nothing."""
        return Edges(source, target, torch.zeros(len(source), 1))

    @property
    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Producers [E] and consumers [E]."""
        return self.source, self.target

    @cached_property
    def both(self) -> torch.Tensor:
        """[2, 2E] senders and receivers of messages along all edges and against them."""
        return torch.stack([torch.cat([self.source, self.target]), torch.cat([self.target, self.source])])


class GraphConvolution(nn.Module):
    """HSDAG, eq. 6: f(D^-1/2 (A + I) D^-1/2 h) on the symmetrised graph."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.out = linear(width, width, generator)

    def forward(self, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """[N, H] the convolution of embeddings [N, H]."""
        source, target = edges.both
        scale = (1 + torch.bincount(target, minlength=len(h))).rsqrt()
        sent = (scale[source] * scale[target])[:, None] * h.index_select(0, source)
        return torch.as_tensor(self.out((scale.square()[:, None] * h).index_add(0, target, sent)))


class Messages(nn.Module):
    """DOPPLER, eq. 2: phi(h_v, mean over neighbours of psi(h_u, h_v, e_uv)); both kinds of neighbours alike."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.sent, self.read = linear(width, width, generator), linear(width, width, generator, bias=False)
        self.edge, self.out = linear(1, width, generator, bias=False), linear(2 * width, width, generator)

    def forward(self, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """[N, H] what neighbours tell every op of embeddings [N, H]."""
        source, target = edges.both
        cost = self.edge(edges.cost).repeat(2, 1)
        around = mean_over(torch.relu(self.sent(h)[source] + self.read(h)[target] + cost), target, len(h))
        return torch.as_tensor(self.out(torch.cat([h, around], dim=1)))


class PooledSage(nn.Module):
    """GraphSAGE with max pooling: f(h_v, max over neighbours of sigmoid(W h_u)) (GDP, eq. 2 and 3)."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.sent, self.out = linear(width, width, generator), linear(2 * width, width, generator)

    def forward(self, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """[N, H] what units and their neighbours of both kinds make of embeddings [N, H]."""
        source, target = edges.both
        around = largest_over(torch.sigmoid(self.sent(h))[source], target, len(h))
        return torch.as_tensor(self.out(torch.cat([h, around], dim=1)))


class BothWays(nn.Module):
    """Messages along the edges and against them, each with weights of its own: producers differ from consumers."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.sent = nn.ModuleList(linear(width, width, generator) for _ in range(2))
        self.edge = nn.ModuleList(linear(1, width, generator, bias=False) for _ in range(2))
        self.out = linear(5 * width, width, generator)

    def forward(self, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """[N, H] what producers and consumers tell every op of embeddings [N, H]."""
        parts = [h]
        for (from_op, to_op), sent, edge in zip((edges.ends, edges.ends[::-1]), self.sent, self.edge, strict=True):
            messages = torch.relu(sent(h)[from_op] + edge(edges.cost))
            parts += [mean_over(messages, to_op, len(h)), largest_over(messages, to_op, len(h))]
        return torch.as_tensor(self.out(torch.cat(parts, dim=1)))


class Library(nn.Module):
    """A convolution of PyTorch Geometric by name, on the symmetrised graph."""

    def __init__(self, name: str, width: int, generator: torch.Generator) -> None:
        from torch_geometric import nn as geometric

        super().__init__()
        if name == "gin":
            inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            self.convolution: nn.Module = geometric.GINConv(inner)
        else:
            kinds = {"gcn": geometric.GCNConv, "gat": geometric.GATConv, "sage": geometric.SAGEConv}
            self.convolution = kinds[name](width, width)
        for parameter in self.convolution.parameters():
            fan_in = parameter.shape[-1]
            nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)

    def forward(self, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """[N, H] the convolution of embeddings [N, H]."""
        return torch.as_tensor(self.convolution(h, edges.both))


def mean_over(messages: torch.Tensor, target: torch.Tensor, num: int) -> torch.Tensor:
    """[num, H] mean of the messages [E, H] to every target, 0 where there is none."""
    total = messages.new_zeros(num, messages.shape[1]).index_add(0, target, messages)
    return total / torch.bincount(target, minlength=num).clamp(min=1)[:, None]


def largest_over(messages: torch.Tensor, target: torch.Tensor, num: int) -> torch.Tensor:
    """[num, H] the largest of the messages [E, H], which are not negative, to every target; 0 where there is none."""
    index = target[:, None].expand_as(messages)
    return messages.new_zeros(num, messages.shape[1]).scatter_reduce(0, index, messages, "amax")


ENCODERS: dict[str, Callable[[int, torch.Generator], nn.Module]] = {
    "messages": Messages,
    "both-ways": BothWays,
    "sage-pool": PooledSage,
    "hsdag": GraphConvolution,
    **{name: partial(Library, name) for name in ("gcn", "gat", "gin", "sage")},
}
"""A round of messages by name: DOPPLER's, one made for DAGs, GDP's, HSDAG's, and PyTorch Geometric's."""


class Encoder(nn.Module):
    """[N, F] features to [N, H] embeddings: an MLP, then rounds of messages, each added to what it reads if residual.

    Raises OptionError that lists the choices for an encoder of another name.
    """

    def __init__(
        self,
        name: str,
        num_features: int,
        width: int,
        layers: int,
        generator: torch.Generator,
        *,
        input_layers: int = 1,
        residual: bool = True,
    ) -> None:
        super().__init__()
        encoder = ENCODERS[chosen("encoder", name, ENCODERS)]
        self._residual = residual
        self.rounds = nn.ModuleList(encoder(width, generator) for _ in range(layers))
        self.input = Mlp([num_features] + [width] * input_layers, generator)

    def forward(
        self,
        x: torch.Tensor,
        edges: Edges,
        state: torch.Tensor | None = None,
        dropout: Callable[[torch.Tensor], torch.Tensor] = lambda h: h,
    ) -> torch.Tensor:
        """[N, H] embeddings of features [N, F]; a state [N, H] is added before the first round."""
        h = dropout(torch.relu(self.input(x)))
        if state is not None:
            h = h + state
        for each in self.rounds:
            update = dropout(torch.relu(each(h, edges)))
            h = h + update if self._residual else update
        return h
