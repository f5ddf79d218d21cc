"""Seeded random weights for networks whose activations shall neither vanish nor explode."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

Network = TypeVar("Network", bound=nn.Module)


def random_network(make: Callable[[], Network], seed: int) -> Network:
    """The network that ``make`` builds, with weights drawn from ``seed``, in evaluation mode.

    Convolutions follow He et al. 2015, eq. 10 (variance 2 / fan-in); linear layers have variance 1 / fan-in,
    embeddings variance 1. Scales of norms lie in [0.8, 1.2], running variances in [0.8, 1.2]; shifts, biases
    and running means in [-0.1, 0.1] but not within 0.02 of zero, since a converter folds away what is
    exactly zero. The global generator of torch is left alone.
    """
    with torch.device("meta"):  # shapes only: torch's own initialisation would draw every weight in vain
        network = make()
    network.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in network.modules():
            for name, tensor in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
                _fill(part, name, tensor, generator)
    return network.eval()


def _fill(part: nn.Module, name: str, tensor: torch.Tensor, generator: torch.Generator) -> None:
    match part, name:
        case nn.Conv2d(), "weight":
            fan_in = part.in_channels // part.groups * math.prod(part.kernel_size)
            tensor.normal_(0.0, math.sqrt(2.0 / fan_in), generator=generator)
        case nn.Linear(), "weight":
            tensor.normal_(0.0, math.sqrt(1.0 / part.in_features), generator=generator)
        case nn.Embedding(), "weight":
            tensor.normal_(0.0, 1.0, generator=generator)
        case nn.RMSNorm() | nn.LayerNorm() | nn.BatchNorm2d(), "weight" | "running_var":
            tensor.uniform_(0.8, 1.2, generator=generator)
        case nn.Linear() | nn.LayerNorm() | nn.BatchNorm2d(), "bias" | "running_mean":
            tensor.uniform_(-0.08, 0.08, generator=generator)
            tensor.add_(torch.where(tensor < 0, -0.02, 0.02))
        case nn.BatchNorm2d(), "num_batches_tracked":
            tensor.zero_()
        case _:
            raise AssertionError(f"{name} of {part} keeps garbage")
