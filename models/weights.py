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
            _fill(part, generator)
    return network.eval()


def _fill(part: nn.Module, generator: torch.Generator) -> None:
    match part:
        case nn.Conv2d():
            fan_in = part.in_channels // part.groups * math.prod(part.kernel_size)
            assert part.bias is None
            part.weight.normal_(0.0, math.sqrt(2.0 / fan_in), generator=generator)
        case nn.Linear():
            part.weight.normal_(0.0, math.sqrt(1.0 / part.in_features), generator=generator)
            if part.bias is not None:
                _fill_shift(part.bias, generator)
        case nn.RMSNorm():
            assert part.weight is not None
            part.weight.uniform_(0.8, 1.2, generator=generator)
        case nn.Embedding():
            part.weight.normal_(0.0, 1.0, generator=generator)
        case nn.LayerNorm():
            part.weight.uniform_(0.8, 1.2, generator=generator)
            _fill_shift(part.bias, generator)
        case nn.BatchNorm2d(running_mean=mean, running_var=var, num_batches_tracked=count):
            part.weight.uniform_(0.8, 1.2, generator=generator)
            _fill_shift(part.bias, generator)
            assert mean is not None
            assert var is not None
            assert count is not None
            _fill_shift(mean, generator)
            var.uniform_(0.8, 1.2, generator=generator)
            count.zero_()
        case _:
            assert not [*part.parameters(recurse=False), *part.buffers(recurse=False)], f"{part} keeps garbage"


def _fill_shift(shift: torch.Tensor, generator: torch.Generator) -> None:
    shift.uniform_(-0.08, 0.08, generator=generator)
    shift.add_(torch.where(shift < 0, -0.02, 0.02))
