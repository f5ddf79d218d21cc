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
from hsdag.learning.encoders import Edges
from hsdag.learning.hsdag.config import HsdagConfig
from hsdag.learning.hsdag.encoder import GroupEncoder
from hsdag.learning.hsdag.groups import Parse, Together
from hsdag.learning.hsdag.parsing import ParsingNetwork
from hsdag.learning.hsdag.topology import Topology
from hsdag.learning.networks import Mlp, unit_rows

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
        alone = Together.of([parse])
        groups, _, _ = self.parsing.embed(view.z, alone, view.score_logits)
        state = view.z + groups[alone.distinct[parse.labels]]
        return unit_rows(state) if self._config.normalise else state

    def logits(self, groups: torch.Tensor, together: Together) -> torch.Tensor:
        """[G, D] device logits of distinct groups [G, H]; -inf where a device lacks an op."""
        logits = self.placer(groups)
        if self._time_s is not None:
            total_s = together.sums(self._time_s)
            slowness = torch.log(total_s / total_s.min(dim=1, keepdim=True).values)
            logits = logits - SLOWNESS_UNIT * self.slowness * slowness
        if self._config.logit_range is not None:
            logits = self._config.logit_range * torch.tanh(logits / self._config.logit_range)
        return torch.as_tensor(logits.masked_fill(~together.representatives(self.supported), -torch.inf))
