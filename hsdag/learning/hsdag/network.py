"""GroupNetwork: encoder, parsing network and placer as one network (paper §2.4, §2.5).

Legend: U placement units, F features, D devices, E edges, G distinct groups, H hidden width.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from hsdag.ir.graph import BoolArray
from hsdag.learning.encoders import Edges, make_rounds
from hsdag.learning.hsdag.config import OWN, HsdagConfig
from hsdag.learning.hsdag.groups import Groups, Parse, Topology
from hsdag.learning.hsdag.parsing import ParsingNetwork
from hsdag.learning.networks import Mlp, unit_rows


class Dropout:
    """Dropout masks from a seed, so that stored steps can be recomputed; without a seed, none."""

    def __init__(self, share: float, seed: int | None) -> None:
        self._share = share if seed is not None else 0.0
        self._generator = torch.Generator().manual_seed(seed or 0)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` with a share of its entries set to 0 and the rest scaled up."""
        if self._share == 0.0:
            return x
        kept = torch.rand(x.shape, generator=self._generator) >= self._share
        return x * kept / (1.0 - self._share)


class GroupEncoder(nn.Module):
    """Z = GNN(MLP(X) + state, A): an input MLP, then graph convolutions on the symmetrised graph (Eq. 6).

    Another encoder passes messages along ``edges``.
    """

    def __init__(
        self, num_features: int, config: HsdagConfig, generator: torch.Generator, edges: Edges | None = None
    ) -> None:
        super().__init__()
        h = config.hidden
        self._config, self._edges = config, edges
        self.input = Mlp([num_features] + [h] * config.input_layers, generator)
        if config.encoder == OWN:
            self.convolutions = Mlp([h] * (config.gnn_layers + 1), generator).layers
        else:
            self.convolutions = make_rounds(config.encoder, h, config.gnn_layers, generator)

    def forward(
        self, x: torch.Tensor, state: torch.Tensor | None, topology: Topology, dropout_seed: int | None
    ) -> torch.Tensor:
        """[N, H] embeddings of standardised features [N, F] and a state [N, H]."""
        dropout = Dropout(self._config.dropout, dropout_seed)
        z = dropout(torch.relu(self.input(x)))
        if state is not None:
            z = z + state
        for layer in self.convolutions:
            update = dropout(torch.relu(self._told(layer, z, topology)))
            z = z + update if self._config.residual else update
        return unit_rows(z) if self._config.normalise else z

    def _told(self, layer: nn.Module, z: torch.Tensor, topology: Topology) -> torch.Tensor:
        """[N, H] what a round makes of embeddings [N, H]."""
        if self._config.encoder != OWN:
            return torch.as_tensor(layer(z, self._edges))
        index, weight = topology.convolution
        around = torch.zeros_like(z).index_add(0, index[1], weight[:, None] * z.index_select(0, index[0]))
        return torch.as_tensor(layer(around))


SLOWNESS_UNIT = 30.0
"""By how much the weight of slowness grows where its parameter grows by 1: a few updates are to be enough."""


@dataclass(frozen=True, eq=False)
class Situation:
    """Where plans are drawn: the state [U, H] (None at the start of an episode) and the dropout seed."""

    state: torch.Tensor | None
    dropout_seed: int | None

    @cached_property
    def key(self) -> tuple[bytes, int | None]:
        """Equal for situations of equal content."""
        data = b"" if self.state is None else self.state.numpy().tobytes()
        return hashlib.blake2b(data, digest_size=16).digest(), self.dropout_seed


@dataclass(frozen=True, eq=False)
class View:
    """What one forward pass of a situation gives: embeddings [U, H] and edge-score logits [E]."""

    z: torch.Tensor
    score_logits: torch.Tensor


class GroupNetwork(nn.Module):
    """Embeddings, edge scores and device logits of one problem; untrained, all edges and devices are equally likely.

    ``x`` [U, F] are standardised features, ``supported`` [U, D]. ``groupable`` joins only units that the same devices
    support, which alone may share a group. Where ``time_s`` [U, D] is known, a learned multiple of the logarithm of
    what a group takes on a device goes straight to its logit; not in the paper.
    """

    def __init__(
        self,
        x: torch.Tensor,
        topology: Topology,
        supported: BoolArray,
        config: HsdagConfig,
        generator: torch.Generator,
        time_s: torch.Tensor | None = None,
        edges: Edges | None = None,
    ) -> None:
        super().__init__()
        self._config, self._x, self._topology, self._time_s = config, x, topology, time_s
        self.slowness = nn.Parameter(torch.zeros(()), requires_grad=time_s is not None)
        alike = (supported[topology.left] == supported[topology.right]).all(axis=1)
        self.groupable = Topology.from_edges(topology.num_nodes, topology.left[alike], topology.right[alike])
        self.supported = torch.tensor(supported)
        self.encoder = GroupEncoder(x.shape[1], config, generator, edges)
        self.parsing = ParsingNetwork(config, generator)
        self.placer = Mlp([config.hidden, config.hidden, supported.shape[1]], generator, zero_output=True)

    def view(self, situation: Situation) -> View:
        """Encode a situation under the current weights."""
        z = self.encoder(self._x, situation.state, self._topology, situation.dropout_seed)
        return View(z, self.parsing.score_logits(z, self.groupable))

    @torch.no_grad()
    def next_state(self, view: View, parse: Parse) -> torch.Tensor:
        """[U, H] Z_v + Z_{v'}, v' being the group of v (Alg. 1, line 10), cut from the gradient history."""
        groups = Groups.of([parse])
        pooled, _, _ = self.parsing.embed(view.z, groups, view.score_logits)
        state = view.z + pooled[groups.distinct[parse.labels]]
        return unit_rows(state) if self._config.normalise else state

    def logits(self, pooled: torch.Tensor, groups: Groups) -> torch.Tensor:
        """[G, D] device logits of the embeddings [G, H] of distinct groups; -inf where a device lacks an op."""
        logits = self.placer(pooled)
        if self._time_s is not None:
            total_s = groups.sums(self._time_s)
            slowness = torch.log(total_s / total_s.min(dim=1, keepdim=True).values)
            logits = logits - SLOWNESS_UNIT * self.slowness * slowness
        if self._config.logit_range is not None:
            logits = self._config.logit_range * torch.tanh(logits / self._config.logit_range)
        return torch.as_tensor(logits.masked_fill(~self.supported[groups.representative], -torch.inf))
