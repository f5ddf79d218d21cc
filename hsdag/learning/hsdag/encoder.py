"""GroupEncoder: node embeddings from features and state, as in HSDAG. Legend: N nodes, F features, H hidden width."""

from __future__ import annotations

import torch
from torch import nn

from hsdag.learning.encoders import Edges, make_rounds
from hsdag.learning.hsdag.config import OWN, HsdagConfig
from hsdag.learning.hsdag.topology import Topology
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
