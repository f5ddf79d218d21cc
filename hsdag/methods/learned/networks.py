"""Layers that learned methods share, and encoders by name: embeddings of ops.

Legend: N nodes or ops, E edges, F features, H width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hsdag.ir.errors import OptionError
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

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """What the last layer sees."""
        for layer in list(self.layers)[:-1]:
            x = torch.relu(layer(x))
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last layer's output, without activation."""
        return torch.as_tensor(self.layers[-1](self.hidden(x)))


def linear(fan_in: int, fan_out: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """A linear layer whose weights come from ``generator``."""
    layer = nn.Linear(fan_in, fan_out, bias=bias, device="meta").to_empty(device="cpu")
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
    return layer


def in_passes(
    run: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], items: torch.Tensor, size: int
) -> tuple[torch.Tensor, ...]:
    """What ``run`` makes of items [..., M], row by row of its results, from at most ``size`` items at a time.

    The gradient of more than one pass is taken pass by pass, to save memory.
    """
    passes = torch.split(items, max(1, size), dim=-1)
    if len(passes) == 1:
        return run(items)
    parts = [checkpoint(run, some, use_reentrant=False, preserve_rng_state=False) for some in passes]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def standardise(values: FloatArray | np.ndarray) -> torch.Tensor:
    """[N, F] columns with mean 0 and variance 1, cut at five deviations; constant columns become 0."""
    x = torch.tensor(np.asarray(values), dtype=torch.float32)
    x = x - x.mean(dim=0, keepdim=True)
    deviation = x.square().mean(dim=0, keepdim=True).sqrt()
    return torch.where(deviation > 1e-6, x / deviation.clamp(min=1e-6), torch.zeros(())).clamp(-5.0, 5.0)


def unit_rows(z: torch.Tensor) -> torch.Tensor:
    """[N, H] rows scaled to a mean square of one."""
    return z * (z.square().mean(dim=1, keepdim=True) + 1e-6).rsqrt()


class Edges(NamedTuple):
    """The edges of a graph, from producer to consumer."""

    source: torch.Tensor  # [E]
    target: torch.Tensor  # [E]
    cost: torch.Tensor  # [E, 1] what it carries, in units that suit a network


class Encoder(nn.Module):
    """[N, F] features to [N, H] embeddings: an input layer, then ``layers`` residual rounds of messages."""

    def __init__(self, rounds: nn.ModuleList, num_features: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.input, self.rounds = Mlp([num_features, width], generator), rounds

    def forward(self, x: torch.Tensor, edges: Edges) -> torch.Tensor:
        """[N, H] embeddings of features [N, F]."""
        h = torch.relu(self.input(x))
        for each in self.rounds:
            h = h + torch.relu(each(h, edges))
        return h


class Messages(nn.Module):
    """DOPPLER, eq. 2: phi(h_v, mean over neighbours of psi(h_u, h_v, e_uv)); both kinds of neighbours alike."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.sent, self.read = linear(width, width, generator), linear(width, width, generator, bias=False)
        self.edge, self.out = linear(1, width, generator, bias=False), linear(2 * width, width, generator)

    def forward(self, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """[N, H] what neighbours tell every op of embeddings [N, H]."""
        sent, read, cost = self.sent(h), self.read(h), self.edge(edges.cost)
        ends = torch.cat([edges.source, edges.target]), torch.cat([edges.target, edges.source])
        around = mean_over(torch.relu(sent[ends[0]] + read[ends[1]] + cost.repeat(2, 1)), ends[1], len(h))
        return torch.as_tensor(self.out(torch.cat([h, around], dim=1)))


class PooledSage(nn.Module):
    """GraphSAGE with max pooling: f(h_v, max over neighbours of sigmoid(W h_u)) (GDP, eq. 2 and 3)."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.sent, self.out = linear(width, width, generator), linear(2 * width, width, generator)

    def forward(self, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """[N, H] what units and their neighbours of both kinds make of embeddings [N, H]."""
        source, target = torch.cat([edges.source, edges.target]), torch.cat([edges.target, edges.source])
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
        ends = ((edges.source, edges.target), (edges.target, edges.source))
        for (from_op, to_op), sent, edge in zip(ends, self.sent, self.edge, strict=True):
            messages = torch.relu(sent(h)[from_op] + edge(edges.cost))
            parts += [mean_over(messages, to_op, len(h)), largest_over(messages, to_op, len(h))]
        return torch.as_tensor(self.out(torch.cat(parts, dim=1)))


class Library(nn.Module):
    """A convolution of PyTorch Geometric on the symmetrised graph."""

    def __init__(self, convolution: nn.Module, generator: torch.Generator) -> None:
        super().__init__()
        self.convolution = convolution
        for parameter in convolution.parameters():
            fan_in = parameter.shape[-1]
            nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)

    def forward(self, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """[N, H] the convolution of embeddings [N, H]."""
        index = torch.stack([torch.cat([edges.source, edges.target]), torch.cat([edges.target, edges.source])])
        return torch.as_tensor(self.convolution(h, index))


def mean_over(messages: torch.Tensor, target: torch.Tensor, num: int) -> torch.Tensor:
    """[num, H] mean of the messages [E, H] to every target, 0 where there is none."""
    total = messages.new_zeros(num, messages.shape[1]).index_add(0, target, messages)
    return total / torch.bincount(target, minlength=num).clamp(min=1)[:, None]


def largest_over(messages: torch.Tensor, target: torch.Tensor, num: int) -> torch.Tensor:
    """[num, H] the largest of the messages [E, H], which are not negative, to every target; 0 where there is none."""
    index = target[:, None].expand_as(messages)
    return messages.new_zeros(num, messages.shape[1]).scatter_reduce(0, index, messages, "amax")


def _library(name: str) -> Callable[[int, torch.Generator], nn.Module]:
    def make(width: int, generator: torch.Generator) -> nn.Module:
        from torch_geometric import nn as geometric

        if name == "gin":
            inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            return Library(geometric.GINConv(inner), generator)
        kinds = {"gcn": geometric.GCNConv, "gat": geometric.GATConv, "sage": geometric.SAGEConv}
        return Library(kinds[name](width, width), generator)

    return make


ENCODERS: dict[str, Callable[[int, torch.Generator], nn.Module]] = {
    "messages": Messages,
    "both-ways": BothWays,
    "sage-pool": PooledSage,
    **{name: _library(name) for name in ("gcn", "gat", "gin", "sage")},
}
"""A round of messages by name: DOPPLER's, one made for DAGs, GDP's, and PyTorch Geometric's."""


def make_encoder(name: str, num_features: int, width: int, layers: int, generator: torch.Generator) -> Encoder:
    """An encoder by name. Raises OptionError that lists the choices."""
    return Encoder(make_rounds(name, width, layers, generator), num_features, width, generator)


def make_rounds(name: str, width: int, layers: int, generator: torch.Generator) -> nn.ModuleList:
    """Its rounds of messages alone. Raises OptionError that lists the choices."""
    if name not in ENCODERS:
        raise OptionError(f"unknown encoder {name!r}; choose one of {', '.join(ENCODERS)}")
    return nn.ModuleList(ENCODERS[name](width, generator) for _ in range(layers))
