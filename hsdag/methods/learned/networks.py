"""What networks read of a problem, layers that learned methods share, and encoders by name: embeddings of ops.

Legend: N nodes or ops, E edges, D devices, U placement units, F features, H width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from hsdag.base.errors import chosen
from hsdag.features import feature_matrix
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import (
    OP_FEATURES,
    Levels,
    Tables,
    levels_of,
    mean_seconds,
    mean_transfers,
    op_features,
    paper_features,
    tables_of,
)


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


NUM_PAPER, NUM_WIDE = 5, len(OP_FEATURES)
"""Features of an op: DOPPLER's (App. E.1), and with ours."""


class Inputs(NamedTuple):
    """A problem as networks read it; without a time unit of its own, so that one network reads them all."""

    costs: ScheduleProblem
    tables: Tables
    levels: Levels
    x: torch.Tensor  # [N, F] features of ops; the first five are DOPPLER's (App. E.1)
    edges: Edges
    before: torch.Tensor  # [N] the producer on the longest path from the beginning, N at its end
    behind: torch.Tensor  # [N] the consumer on the longest path to the end, N at its end
    path_lengths: tuple[torch.Tensor, torch.Tensor]  # [N, 1] each: ops on these two, itself included


def inputs_of(costs: ScheduleProblem, *, is_wide: bool = True) -> Inputs:
    """What networks read of a problem; DOPPLER's five features, standardised, where not ``is_wide``."""
    tables = tables_of(costs)
    levels = levels_of(tables)
    mean_s, edge_s = mean_seconds(tables), mean_transfers(tables, tables.out_bytes)
    source, target = np.repeat(np.arange(costs.num_ops), np.diff(tables.out_first)), tables.out_op
    unit_s = max(float(mean_s.mean()), np.finfo(float).tiny)
    if is_wide:
        x = torch.tensor(op_features(tables, levels), dtype=torch.float32)
    else:
        x = standardise(paper_features(tables, levels))
    cost = torch.tensor(np.log1p(edge_s / unit_s), dtype=torch.float32)[:, None]
    backwards = tables._replace(
        in_first=tables.out_first,
        in_op=tables.out_op,
        in_bytes=tables.out_bytes,
        out_first=tables.in_first,
        out_op=tables.in_op,
        out_bytes=tables.in_bytes,
        order=tables.order[::-1],
    )
    heaviest = (levels_of(backwards).heaviest, levels.heaviest)
    before, behind = (torch.tensor(np.where(each < 0, costs.num_ops, each)) for each in heaviest)
    ones = torch.ones(costs.num_ops, 1)
    return Inputs(
        costs=costs,
        tables=tables,
        levels=levels,
        x=x,
        edges=Edges(torch.tensor(source), torch.tensor(target), cost),
        before=before,
        behind=behind,
        path_lengths=(sum_over_path(ones, before), sum_over_path(ones, behind)),
    )


def cost_features(costs: ScheduleProblem) -> FloatArray:
    """[N, D + 14] what the ops cost: log times on every device relative to their mean, shares of all work, and wide x.

    Times are those of ``finite_times``.
    """
    time_s = finite_times(costs)
    mean_s = time_s.mean(axis=1)
    share = mean_s / mean_s.max()
    return np.concatenate([np.log(time_s / mean_s[:, None]), share[:, None], inputs_of(costs).x.numpy()], axis=1)


def assumed_costs(problem: Problem) -> ScheduleProblem:
    """Costs to draw plans by where none are known: an op takes a second on any device, and so does a mean transfer."""
    graph = problem.units.graph
    edges = np.stack([graph.edge_src, graph.edge_dst], axis=1)
    sent = graph.output_bytes[graph.edge_src]
    return ScheduleProblem.from_arrays(
        np.where(problem.supported, 1.0, np.nan),
        edges,
        output_bytes=graph.output_bytes,
        link_bandwidth_bytes_per_s=max(float(sent.mean()) if len(sent) else 0.0, 1.0),
    )


def finite_times(costs: ScheduleProblem) -> FloatArray:
    """[N, D] seconds, above 0 in single precision, too: a thousandth of the mean is added, or a second where all are 0.

    A device that lacks an op takes ten times as long.
    """
    time_s = np.where(costs.supported, costs.time_s, 10.0 * np.nanmax(costs.time_s, axis=1)[:, None])
    return np.asarray(time_s + (1e-3 * float(time_s.mean()) or 1.0), dtype=np.float64)


def sum_over_path(h: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """[N, H] sum of embeddings [N, H] over the path that begins at every op and goes on to ``following`` [N].

    N ends a path. Jumps double in length, so that O(log N) rounds do.
    """
    total = torch.cat([h, h.new_zeros(1, h.shape[1])])
    jump = torch.cat([following, torch.tensor([len(h)])])
    while bool((jump < len(h)).any()):
        total = total + total[jump]
        jump = jump[jump]
    return total[:-1]


def tokens_of(problem: Problem, *, with_costs: bool) -> torch.Tensor:
    """[U, F] type, place in topological order, shape of the output, and its bytes, all that problem files know of it.

    Without places, shards of one op would be alike to a network. With costs, where they are known, the times on every
    device, transfers and levels too.
    """
    values = feature_matrix(problem.units, ("op_type", "positional", "output_shape")).values
    columns = [values, np.log1p(problem.units.graph.output_bytes)[:, None]]
    if with_costs and problem.costs is not None:
        columns.append(cost_features(problem.costs))
    return standardise(np.concatenate(columns, axis=1))


def edges_of(problem: Problem, *, with_costs: bool) -> Edges:
    """The edges of the units' graph, with what they carry where costs are asked for and known, else with zeros."""
    if with_costs and problem.costs is not None:
        return inputs_of(problem.costs).edges
    return Edges.without_costs(torch.tensor(problem.units.graph.edge_src), torch.tensor(problem.units.graph.edge_dst))
