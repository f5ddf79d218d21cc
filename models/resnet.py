"""The ResNet family (He et al. 2016, bottleneck blocks): sizes and zoo entries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hsdag.models.spec import image_model, seeded

if TYPE_CHECKING:
    from hsdag.models.resnet_network import ResNet


@dataclass(frozen=True)
class ResNetSizes:
    """Channels inside the blocks of each stage, blocks per stage, channels of the stem, classes."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    stem: int
    classes: int


RESNET50 = ResNetSizes(widths=(64, 128, 256, 512), depths=(3, 4, 6, 3), stem=64, classes=1000)
TINY = ResNetSizes(widths=(4, 8), depths=(2, 1), stem=8, classes=10)


def _make(sizes: ResNetSizes, seed: int) -> ResNet:
    network: ResNet = seeded("resnet_network", "ResNet", sizes)(seed)
    network.scale_branches()
    return network


SPECS = (
    image_model("resnet50", "ResNet-50, image classification", 224, partial(_make, RESNET50), 25_557_032),
    image_model("tiny_resnet", "three bottleneck blocks in two stages", 32, partial(_make, TINY), 3_922, is_tiny=True),
)
