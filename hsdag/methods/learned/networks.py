"""Inputs of networks, layers that learned methods share, and encoders by name, which compute embeddings of ops.

Legend: N nodes or ops, E edges, D devices, U placement units, F features, H width.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
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
    """Linear layers with ReLU between them.

    Initial weights are drawn as by ``draw_within``. With ``zero_output``, the last layer begins with
    zeros, so that all outputs of an untrained network are equal.
    """

    def __init__(self, widths: Sequence[int], generator: torch.Generator, *, zero_output: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(linear(a, b, generator) for a, b in itertools.pairwise(widths))
        if zero_output:
            nn.init.zeros_(self.layers[-1].weight)  # type: ignore[arg-type]
            nn.init.zeros_(self.layers[-1].bias)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last layer's output [..., F'] for inputs [..., F], without activation."""
        for layer in list(self.layers)[:-1]:
            x = torch.relu(layer(x))
        return torch.as_tensor(self.layers[-1](x))


def linear(fan_in: int, fan_out: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """Return a linear layer; its initial weights are drawn as by ``draw_within``."""
    layer = nn.Linear(fan_in, fan_out, bias=bias, device="meta").to_empty(device="cpu")
    draw_within(layer, fan_in, generator)
    return layer


def draw_within(module: nn.Module, fan_in: int, generator: torch.Generator) -> None:
    """Draw all weights of a module uniformly between -1 / sqrt(fan_in) and 1 / sqrt(fan_in)."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)


def standardise(values: FloatArray | np.ndarray) -> torch.Tensor:
    """Return columns [N, F] with mean 0 and variance 1, clipped to five deviations; constant columns become 0."""
    x = torch.tensor(np.asarray(values), dtype=torch.float32)
    x = x - x.mean(dim=0, keepdim=True)
    deviation = x.square().mean(dim=0, keepdim=True).sqrt()
    return torch.where(deviation > 1e-6, x / deviation.clamp(min=1e-6), torch.zeros(())).clamp(-5.0, 5.0)


def within(logits: torch.Tensor, limit: float | None) -> torch.Tensor:
    """Return logits [...] squashed by tanh into plus or minus a limit; None: unchanged."""
    return logits if limit is None else limit * torch.tanh(logits / limit)


@dataclass(frozen=True, eq=False)
class Edges:
    """Edges of a graph, from producer to consumer."""

    source: torch.Tensor  # [E] producers
    target: torch.Tensor  # [E] consumers
    cost: torch.Tensor  # [E, 1] logarithmic cost of the transfer, 0 if unknown

    @staticmethod
    def without_costs(source: torch.Tensor, target: torch.Tensor) -> Edges:
        """Return edges of cost 0."""
        return Edges(source, target, torch.zeros(len(source), 1))

    @property
    def ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return producers [E] and consumers [E]."""
        return self.source, self.target

    @cached_property
    def both(self) -> torch.Tensor:
        """Return senders and receivers [2, 2 E] of messages that pass along all edges and against them."""
        return torch.stack([torch.cat([self.source, self.target]), torch.cat([self.target, self.source])])


class GraphConvolution(nn.Module):
    """Graph convolution f(D^-1/2 (A + I) D^-1/2 h) on the symmetrised graph (HSDAG, eq. 6)."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.out = linear(width, width, generator)

    def forward(self, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """Return the convolution [N, H] of embeddings [N, H]."""
        source, target = edges.both
        scale = (1 + torch.bincount(target, minlength=len(h))).rsqrt()
        sent = (scale[source] * scale[target])[:, None] * h.index_select(0, source)
        return torch.as_tensor(self.out((scale.square()[:, None] * h).index_add(0, target, sent)))


class Messages(nn.Module):
    """Message passing phi(h_v, mean over neighbours of psi(h_u, h_v, e_uv)) (DOPPLER, eq. 2).

    Producers and consumers are treated alike.
    """

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.sent, self.read = linear(width, width, generator), linear(width, width, generator, bias=False)
        self.edge, self.out = linear(1, width, generator, bias=False), linear(2 * width, width, generator)

    def forward(self, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """Return new embeddings [N, H] from embeddings [N, H] and the messages of neighbours."""
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
        """Return new embeddings [N, H] from embeddings [N, H] of units, their producers and their consumers."""
        source, target = edges.both
        around = largest_over(torch.sigmoid(self.sent(h))[source], target, len(h))
        return torch.as_tensor(self.out(torch.cat([h, around], dim=1)))


class BothWays(nn.Module):
    """Message passing along the edges and against them, with separate weights for producers and consumers."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.sent = nn.ModuleList(linear(width, width, generator) for _ in range(2))
        self.edge = nn.ModuleList(linear(1, width, generator, bias=False) for _ in range(2))
        self.out = linear(5 * width, width, generator)

    def forward(self, h: torch.Tensor, edges: Edges) -> torch.Tensor:
        """Return new embeddings [N, H] from embeddings [N, H] and the messages of producers and of consumers."""
        parts = [h]
        for (from_op, to_op), sent, edge in zip((edges.ends, edges.ends[::-1]), self.sent, self.edge, strict=True):
            messages = torch.relu(sent(h)[from_op] + edge(edges.cost))
            parts += [mean_over(messages, to_op, len(h)), largest_over(messages, to_op, len(h))]
        return torch.as_tensor(self.out(torch.cat(parts, dim=1)))


def mean_over(messages: torch.Tensor, target: torch.Tensor, num: int) -> torch.Tensor:
    """Return the mean [num, H] of the messages [E, H] to each target [E], 0 where there are none."""
    total = messages.new_zeros(num, messages.shape[1]).index_add(0, target, messages)
    return total / torch.bincount(target, minlength=num).clamp(min=1)[:, None]


def largest_over(messages: torch.Tensor, target: torch.Tensor, num: int) -> torch.Tensor:
    """Return the element-wise maximum [num, H] of the messages [E, H] to each target [E], 0 where there are none.

    No message may be negative.
    """
    index = target[:, None].expand_as(messages)
    return messages.new_zeros(num, messages.shape[1]).scatter_reduce(0, index, messages, "amax")


ENCODERS: dict[str, Callable[[int, torch.Generator], nn.Module]] = {
    "messages": Messages,
    "both-ways": BothWays,
    "sage-pool": PooledSage,
    "hsdag": GraphConvolution,
}
"""Layers of message passing by name: DOPPLER's, one made for DAGs, GDP's and HSDAG's."""


class Encoder(nn.Module):
    """Network from features [N, F] to embeddings [N, H]: an MLP, then rounds of message passing.

    If ``residual``, the input of each round is added to its output. Raises OptionError that lists the choices if there
    is no encoder of this name.
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
        """Return embeddings [N, H].

        Args:
            x: Features [N, F].
            edges: Edges that messages pass along.
            state: State that is added before the first round [N, H].
            dropout: Function that applies dropout to hidden layers.
        """
        h = dropout(torch.relu(self.input(x)))
        if state is not None:
            h = h + state
        for layer in self.rounds:
            update = dropout(torch.relu(layer(h, edges)))
            h = h + update if self._residual else update
        return h


NUM_PAPER, NUM_WIDE = 5, len(OP_FEATURES)
"""Number of features of an op: those of DOPPLER (App. E.1), and all of ``OP_FEATURES``."""


class NetworkInputs(NamedTuple):
    """Inputs of networks for a problem, independent of its unit of time, so that one network suits all problems."""

    costs: ScheduleProblem
    tables: Tables
    levels: Levels
    x: torch.Tensor  # [N, F] features of ops; the first five are DOPPLER's (App. E.1)
    edges: Edges
    before: torch.Tensor  # [N] producer on the longest path from the beginning to an op, N if it has none
    behind: torch.Tensor  # [N] consumer on the longest path from an op to the end, N if it has none
    path_lengths: tuple[torch.Tensor, torch.Tensor]  # [N, 1] each: number of ops on these two paths, the op included


def network_inputs(costs: ScheduleProblem, *, is_wide: bool = True) -> NetworkInputs:
    """Return the inputs for a problem; features are all if ``is_wide``, else DOPPLER's five, standardised."""
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
    before, behind = (torch.tensor(np.where(op < 0, costs.num_ops, op)) for op in heaviest)
    ones = torch.ones(costs.num_ops, 1)
    return NetworkInputs(
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
    """Return features of the costs of ops [N, D + 14].

    They are the logarithms of the times on the devices relative to their mean, that mean as a share of the largest one,
    and all features of ``network_inputs``. Times are those of ``finite_times``.
    """
    time_s = finite_times(costs)
    mean_s = time_s.mean(axis=1)
    share = mean_s / mean_s.max()
    return np.concatenate([np.log(time_s / mean_s[:, None]), share[:, None], network_inputs(costs).x.numpy()], axis=1)


def uniform_costs(problem: Problem) -> ScheduleProblem:
    """Return costs to use where none are known: every op takes a second on any device, as does a mean transfer."""
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
    """Return times in seconds [N, D] that are finite and above 0, in single precision too.

    A thousandth of the mean is added to all, or a second if all are 0. A device that does not support an op is given
    ten times the longest time of the op.
    """
    time_s = np.where(costs.supported, costs.time_s, 10.0 * np.nanmax(costs.time_s, axis=1)[:, None])
    return np.asarray(time_s + (1e-3 * float(time_s.mean()) or 1.0), dtype=np.float64)


def sum_over_path(h: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Return the sum of embeddings [N, H] over the path that begins at each op, in O(log N) rounds of pointer doubling.

    ``following`` is the next op on the path of each op [N], N at the end of a path.
    """
    total = torch.cat([h, h.new_zeros(1, h.shape[1])])
    jump = torch.cat([following, torch.tensor([len(h)])])
    while bool((jump < len(h)).any()):
        total = total + total[jump]
        jump = jump[jump]
    return total[:-1]


def tokens_of(problem: Problem, *, with_costs: bool) -> torch.Tensor:
    """Return standardised features of units [U, F].

    They are the type, the position in topological order, and the shape and bytes of the output; problem files contain
    only its bytes. Without positions, a network could not tell the shards of one op apart. ``with_costs`` adds the
    times on every device, transfers and levels if these are known.
    """
    values = feature_matrix(problem.units, ("op_type", "positional", "output_shape")).values
    columns = [values, np.log1p(problem.units.graph.output_bytes)[:, None]]
    if with_costs and problem.costs is not None:
        columns.append(cost_features(problem.costs))
    return standardise(np.concatenate(columns, axis=1))


def edges_of(problem: Problem, *, with_costs: bool) -> Edges:
    """Return the edges of the units' graph; transfer costs are 0 unless they are known and ``with_costs``."""
    if with_costs and problem.costs is not None:
        return network_inputs(problem.costs).edges
    return Edges.without_costs(torch.tensor(problem.units.graph.edge_src), torch.tensor(problem.units.graph.edge_dst))
