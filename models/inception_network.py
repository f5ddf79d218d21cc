"""The Inception-v3 network in torch: input transform, stem, modules of parallel branches, classifier.

Legend: B batch, C channels, H and W rows and columns, K classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from hsdag.models.inception import InceptionSizes

# The network expects pixels scaled by (x - 0.5) / 0.5; images come scaled by ImageNet's channel means and
# deviations. The input transform goes from the second scale to the first.
CHANNEL_MEANS = (0.485, 0.456, 0.406)
CHANNEL_DEVIATIONS = (0.229, 0.224, 0.225)
# Rounded to half precision, which the model's file stores them in: today's OpenVINO would leave the two
# scalars that lose more than 1e-4 of their value in fp32, without the Convert that the paper's graph has.
CHANNEL_SCALES = tuple(float(np.float16(deviation / 0.5)) for deviation in CHANNEL_DEVIATIONS)
CHANNEL_SHIFTS = tuple(float(np.float16((mean - 0.5) / 0.5)) for mean in CHANNEL_MEANS)

Kernel = int | tuple[int, int]


class ConvNormRelu(nn.Module):
    """Convolution, batch norm, ReLU: [B, C, H, W] -> [B, out_channels, H', W']."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel: Kernel, stride: int = 1, padding: Kernel = 0
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(out_channels, eps=0.001)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] -> [B, out_channels, H', W']."""
        return torch.relu(self.norm(self.conv(x)))


class Branches(nn.Module):
    """Branches that read the same input, their outputs concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, C, H, W] -> [B, sum of the branches' channels, H', W']."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


def same(in_channels: int, out_channels: int, rows: int, columns: int) -> ConvNormRelu:
    """A convolution of ``rows`` x ``columns`` (odd) that keeps height and width."""
    return ConvNormRelu(in_channels, out_channels, (rows, columns), padding=(rows // 2, columns // 2))


def chain(in_channels: int, *layers: tuple[int, int, int], last: int | None = None) -> nn.Sequential:
    """Convolutions one after another, of (out channels, rows, columns) each; ``last`` adds a 3 x 3 of stride 2."""
    branch = nn.Sequential()
    for out_channels, rows, columns in layers:
        branch.append(same(in_channels, out_channels, rows, columns))
        in_channels = out_channels
    return branch if last is None else branch.append(ConvNormRelu(in_channels, last, 3, stride=2))


def pooled(in_channels: int, out_channels: int) -> nn.Sequential:
    """The pooling branch: 3 x 3 average, then 1 x 1."""
    return nn.Sequential(nn.AvgPool2d(3, 1, padding=1), same(in_channels, out_channels, 1, 1))


def module_35(c: int, pool_channels: int, scale: Callable[[int], int]) -> Branches:
    """Branches 1 x 1, 5 x 5, double 3 x 3 and pooling (Szegedy et al. 2016, Fig. 5)."""
    n48, n64, n96 = scale(48), scale(64), scale(96)
    return Branches(
        same(c, n64, 1, 1),
        chain(c, (n48, 1, 1), (n64, 5, 5)),
        chain(c, (n64, 1, 1), (n96, 3, 3), (n96, 3, 3)),
        pooled(c, scale(pool_channels)),
    )


def reduction_35(c: int, scale: Callable[[int], int]) -> Branches:
    """From 35 x 35 to 17 x 17 (Fig. 10)."""
    n64, n96 = scale(64), scale(96)
    return Branches(
        ConvNormRelu(c, scale(384), 3, stride=2),
        chain(c, (n64, 1, 1), (n96, 3, 3), last=n96),
        nn.MaxPool2d(3, 2),
    )


def module_17(c: int, mid_channels: int, scale: Callable[[int], int]) -> Branches:
    """Branches 1 x 1, 7 x 7, double 7 x 7 (all as 1 x 7 and 7 x 1) and pooling (Fig. 6)."""
    n192, mid = scale(192), scale(mid_channels)
    return Branches(
        same(c, n192, 1, 1),
        chain(c, (mid, 1, 1), (mid, 1, 7), (n192, 7, 1)),
        chain(c, (mid, 1, 1), (mid, 7, 1), (mid, 1, 7), (mid, 7, 1), (n192, 1, 7)),
        pooled(c, n192),
    )


def reduction_17(c: int, scale: Callable[[int], int]) -> Branches:
    """From 17 x 17 to 8 x 8."""
    n192 = scale(192)
    return Branches(
        chain(c, (n192, 1, 1), last=scale(320)),
        chain(c, (n192, 1, 1), (n192, 1, 7), (n192, 7, 1), last=n192),
        nn.MaxPool2d(3, 2),
    )


def module_8(c: int, scale: Callable[[int], int]) -> Branches:
    """Branches with their last 3 x 3 spread into 1 x 3 beside 3 x 1 (Fig. 7)."""
    n384, n448 = scale(384), scale(448)

    def spread() -> Branches:
        return Branches(same(n384, n384, 1, 3), same(n384, n384, 3, 1))

    return Branches(
        same(c, scale(320), 1, 1),
        chain(c, (n384, 1, 1)).append(spread()),
        chain(c, (n448, 1, 1), (n384, 3, 3)).append(spread()),
        pooled(c, scale(192)),
    )


class Inception(nn.Module):
    """Inception-v3 of Szegedy et al. 2016, Table 1, with input transform and without auxiliary head."""

    def __init__(self, sizes: InceptionSizes) -> None:
        super().__init__()

        def scale(channels: int) -> int:
            return channels // sizes.divisor

        n32, n64, n80, c = scale(32), scale(64), scale(80), scale(192)
        self.stem = nn.Sequential(
            ConvNormRelu(3, n32, 3, stride=2),
            ConvNormRelu(n32, n32, 3),
            same(n32, n64, 3, 3),
            nn.MaxPool2d(3, 2),
            ConvNormRelu(n64, n80, 1),
            ConvNormRelu(n80, c, 3),
            nn.MaxPool2d(3, 2),
        )
        self.modules_35 = nn.Sequential()
        for pool_channels in sizes.pool_channels:
            self.modules_35.append(module_35(c, pool_channels, scale))
            c = scale(64) + scale(64) + scale(96) + scale(pool_channels)
        self.modules_35.append(reduction_35(c, scale))
        c += scale(384) + scale(96)
        self.modules_17 = nn.Sequential()
        for mid_channels in sizes.mid_channels:
            self.modules_17.append(module_17(c, mid_channels, scale))
            c = 4 * scale(192)
        self.modules_17.append(reduction_17(c, scale))
        c += scale(320) + scale(192)
        self.modules_8 = nn.Sequential()
        for _ in range(sizes.num_expanded):
            self.modules_8.append(module_8(c, scale))
            c = scale(320) + 4 * scale(384) + scale(192)
        self.mean = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(c, sizes.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """[B, 3, H, W] -> logits [B, K]."""
        x = self.stem(transform_input(images))
        x = self.modules_8(self.modules_17(self.modules_35(x)))
        logits: torch.Tensor = self.classifier(torch.flatten(self.mean(x), 1))
        return logits


def transform_input(images: torch.Tensor) -> torch.Tensor:
    """[B, 3, H, W] scaled by ImageNet's statistics -> the same pixels scaled to [-1, 1]."""
    channels = [
        images[:, channel].unsqueeze(1) * scale + shift
        for channel, (scale, shift) in enumerate(zip(CHANNEL_SCALES, CHANNEL_SHIFTS, strict=True))
    ]
    return torch.cat(channels, dim=1)
