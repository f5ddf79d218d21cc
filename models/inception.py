"""The Inception-v3 family (Szegedy et al. 2016): sizes and zoo entries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hsdag.models.spec import ModelInput, ModelSpec

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class InceptionSizes:
    """How many modules of each kind, and by what number all channel counts are divided.

    ``pool_channels`` has one entry per 35 x 35 module (channels of its pooling branch), ``mid_channels`` one
    per 17 x 17 module (channels inside its 7 x 7 branches), before the division.
    """

    pool_channels: tuple[int, ...]
    mid_channels: tuple[int, ...]
    num_expanded: int
    divisor: int
    classes: int


INCEPTION_V3 = InceptionSizes((32, 64, 64), (128, 160, 160, 192), num_expanded=2, divisor=1, classes=1000)
TINY = InceptionSizes((32,), (128,), num_expanded=1, divisor=16, classes=10)


def _make(sizes: InceptionSizes, seed: int) -> nn.Module:
    from hsdag.models.inception_network import Inception
    from hsdag.models.weights import random_network

    return random_network(lambda: Inception(sizes), seed)


SPECS = (
    ModelSpec(
        name="inception_v3",
        summary="Inception-v3 without auxiliary head, image classification, 299 x 299",
        inputs=(ModelInput("images", (1, 3, 299, 299), "f32"),),
        outputs=("logits",),
        num_parameters=23_834_568,
        is_tiny=False,
        make_network=partial(_make, INCEPTION_V3),
    ),
    ModelSpec(
        name="tiny_inception",
        summary="one Inception-v3 module of each kind, a sixteenth of the channels, 75 x 75",
        inputs=(ModelInput("images", (1, 3, 75, 75), "f32"),),
        outputs=("logits",),
        num_parameters=39_296,
        is_tiny=True,
        make_network=partial(_make, TINY),
    ),
)
