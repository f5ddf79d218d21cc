"""Sizes of the zoo's networks, and constants and inputs of their models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from hsdag.base.errors import OptionError

WeightPrecision: TypeAlias = Literal["fp16", "int8", "int4"]
"""How weights are stored; int8 has a scale and a zero point per row, int4 per group of weights."""

NORM_EPS = 1e-5
"""Epsilon that the decoders' RMS norms add to the mean square."""
ROTARY_BASE = 10_000.0
"""Base of the geometric series of rotary frequencies in the decoders."""


@dataclass(frozen=True)
class ModelInput:
    """An input of a model: name, fixed shape, and element type in OpenVINO's short form."""

    name: str
    shape: tuple[int, ...]
    element_type: Literal["f32", "i64"]


@dataclass(frozen=True)
class ResNetSizes:
    """Sizes of a ResNet (He et al. 2016): inner channels and blocks per stage, channels of the stem, classes."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    stem: int
    classes: int


@dataclass(frozen=True)
class InceptionSizes:
    """Sizes of an Inception network (Szegedy et al. 2016); all channel counts are divided by ``divisor``.

    ``pool_channels`` has an entry per 35 x 35 module, the channels of its pooling branch; ``mid_channels`` has an entry
    per 17 x 17 module, the inner channels of its 7 x 7 branches. Both are before the division. ``num_expanded`` counts
    the 8 x 8 modules.
    """

    pool_channels: tuple[int, ...]
    mid_channels: tuple[int, ...]
    num_expanded: int
    divisor: int
    classes: int


@dataclass(frozen=True)
class BertSizes:
    """Sizes of a BERT (Devlin et al. 2019): layers, token width, heads, inner feed-forward width, table sizes."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int
    token_types: int = 2


@dataclass(frozen=True)
class DecoderSizes:
    """Sizes of a decoder (Touvron et al. 2023). Raises OptionError for sizes that do not fit each other.

    ``heads`` counts query heads, ``key_heads`` heads of keys and values; ``intermediate`` is the width inside a
    feed-forward part. A positive ``tokens`` makes the decoder stateless with that number of tokens per inference.
    ``group`` is the number of int4 weights that share a scale. With ``experts`` > 0 every layer has that many
    feed-forward parts, of which each token uses ``active``. sharded_workloads.py has one layer of such a decoder,
    sharded.
    """

    layers: int
    hidden: int
    heads: int
    key_heads: int
    intermediate: int
    vocabulary: int
    tokens: int = 0
    group: int = 1
    experts: int = 0
    active: int = 0

    def __post_init__(self) -> None:
        if self.hidden % (2 * self.heads):
            raise OptionError(f"the width {self.hidden} must be a multiple of twice the {self.heads} heads")
        if self.heads % self.key_heads:
            raise OptionError(f"the {self.heads} query heads must be a multiple of the {self.key_heads} key heads")
        if self.hidden % self.group or self.intermediate % self.group:
            raise OptionError(f"the widths must be multiples of the group of {self.group} weights")
        if not 0 <= self.active <= self.experts or bool(self.experts) != bool(self.active):
            raise OptionError(f"of {self.experts} experts {self.active} cannot be active")

    @property
    def head_size(self) -> int:
        """Return the width of one head."""
        return self.hidden // self.heads
