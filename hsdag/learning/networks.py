"""Layers that every learned method uses. Legend: N nodes, E edges, F features, H width."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hsdag.ir.graph import FloatArray


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
