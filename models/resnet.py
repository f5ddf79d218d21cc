"""The ResNet family (He et al. 2016, bottleneck blocks): sizes and zoo entries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hsdag.models.spec import ModelInput, ModelSpec

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ResNetSizes:
    """Channels inside the blocks of each stage, blocks per stage, channels of the stem, classes."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    stem: int
    classes: int


RESNET50 = ResNetSizes(widths=(64, 128, 256, 512), depths=(3, 4, 6, 3), stem=64, classes=1000)
TINY = ResNetSizes(widths=(4, 8), depths=(2, 1), stem=8, classes=10)


def _make(sizes: ResNetSizes, seed: int) -> nn.Module:
    from hsdag.models.resnet_network import ResNet
    from hsdag.models.weights import random_network

    network = random_network(lambda: ResNet(sizes), seed)
    network.scale_branches()
    return network


SPECS = (
    ModelSpec(
        name="resnet50",
        summary="ResNet-50, image classification, 224 x 224",
        inputs=(ModelInput("images", (1, 3, 224, 224), "f32"),),
        outputs=("logits",),
        num_parameters=25_557_032,
        is_tiny=False,
        make_network=partial(_make, RESNET50),
    ),
    ModelSpec(
        name="tiny_resnet",
        summary="three bottleneck blocks in two stages, 32 x 32",
        inputs=(ModelInput("images", (1, 3, 32, 32), "f32"),),
        outputs=("logits",),
        num_parameters=3_922,
        is_tiny=True,
        make_network=partial(_make, TINY),
    ),
)
