"""The Inception-v3 family (Szegedy et al. 2016): sizes and zoo entries."""

from __future__ import annotations

from dataclasses import dataclass

from hsdag.models.spec import image_model, seeded


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


_V3, _TINY = (seeded("inception_network", "Inception", sizes) for sizes in (INCEPTION_V3, TINY))
_TINY_SUMMARY = "one Inception-v3 module of each kind, a sixteenth of the channels"
SPECS = (
    image_model("inception_v3", "Inception-v3 without auxiliary head, image classification", 299, _V3, 23_834_568),
    image_model("tiny_inception", _TINY_SUMMARY, 75, _TINY, 39_296, is_tiny=True),
)
