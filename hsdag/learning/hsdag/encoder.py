"""Encoder: node embeddings from features and state. Legend: N nodes, F features, H hidden width."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import nn

from hsdag.ir.graph import FloatArray
from hsdag.learning.hsdag.config import HsdagConfig
from hsdag.learning.hsdag.topology import Topology


def standardise(values: FloatArray | np.ndarray) -> torch.Tensor:
    """[N, F] columns with mean 0 and variance 1, cut at five deviations; constant columns become 0."""
    x = torch.tensor(np.asarray(values), dtype=torch.float32)
    x = x - x.mean(dim=0, keepdim=True)
    deviation = x.square().mean(dim=0, keepdim=True).sqrt()
    return torch.where(deviation > 1e-6, x / deviation.clamp(min=1e-6), torch.zeros(())).clamp(-5.0, 5.0)


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


class Mlp(nn.Module):
    """Linear layers with ReLU between them."""

    def __init__(self, widths: list[int], generator: torch.Generator, *, zero_output: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b, device="meta") for a, b in itertools.pairwise(widths))
        self.to_empty(device="cpu")
        for layer in self.layers:
            assert isinstance(layer, nn.Linear)
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)  # He initialisation
            nn.init.zeros_(layer.bias)
            if zero_output and layer is self.layers[-1]:
                nn.init.zeros_(layer.weight)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """What the last layer sees."""
        for layer in list(self.layers)[:-1]:
            x = torch.relu(layer(x))
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The last layer's output, without activation."""
        return torch.as_tensor(self.layers[-1](self.hidden(x)))


class Encoder(nn.Module):
    """Z = GNN(MLP(X) + state, A): an input MLP, then graph convolutions on the symmetrised graph (Eq. 6)."""

    def __init__(self, num_features: int, config: HsdagConfig, generator: torch.Generator) -> None:
        super().__init__()
        h = config.hidden
        self._config = config
        self.input = Mlp([num_features] + [h] * config.input_layers, generator)
        self.convolutions = Mlp([h] * (config.gnn_layers + 1), generator)

    def forward(
        self, x: torch.Tensor, state: torch.Tensor | None, topology: Topology, dropout_seed: int | None
    ) -> torch.Tensor:
        """[N, H] embeddings of standardised features [N, F] and a state [N, H]."""
        dropout = Dropout(self._config.dropout, dropout_seed)
        z = dropout(torch.relu(self.input(x)))
        if state is not None:
            z = z + state
        index, weight = topology.convolution
        for layer in self.convolutions.layers:
            around = torch.zeros_like(z).index_add(0, index[1], weight[:, None] * z[index[0]])
            update = dropout(torch.relu(layer(around)))
            z = z + update if self._config.residual else update
        return unit_rows(z) if self._config.normalise else z


def unit_rows(z: torch.Tensor) -> torch.Tensor:
    """[N, H] rows scaled to a mean square of one."""
    return z * (z.square().mean(dim=1, keepdim=True) + 1e-6).rsqrt()
