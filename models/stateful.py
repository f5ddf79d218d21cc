"""Language models that keep their keys and values between inferences: sizes and zoo entries.

They have the form that optimum-intel exports: dynamic inputs ``input_ids``, ``attention_mask`` and ``position_ids``
[B, T], ``beam_idx`` [B], and a variable for the keys and one for the values of every layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from hsdag.ir.errors import OptionError
from hsdag.models.llama_decoder import check_heads

if TYPE_CHECKING:
    import openvino as ov

WeightPrecision: TypeAlias = Literal["fp16", "int8", "int4"]
"""How weights are stored: halves, bytes with a scale and a zero point per row, or four bits with those per group."""


@dataclass(frozen=True)
class StatefulSizes:
    """Layers, width of a token, query heads, key and value heads, width inside the feed-forward part, vocabulary.

    With ``experts`` every layer has so many feed-forward parts, and ``active`` of them for each token. ``group`` is how
    many weights of four bits share a scale. Raises OptionError where sizes do not fit each other.
    """

    layers: int
    hidden: int
    heads: int
    key_heads: int
    intermediate: int
    vocabulary: int
    group: int
    experts: int = 0
    active: int = 0

    def __post_init__(self) -> None:
        check_heads(self.hidden, self.heads, self.key_heads)
        if self.hidden % self.group or self.intermediate % self.group:
            raise OptionError(f"the widths must be multiples of the group of {self.group} weights")
        if not 0 <= self.active <= self.experts or bool(self.experts) != bool(self.active):
            raise OptionError(f"of {self.experts} experts {self.active} cannot be active")

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    @property
    def num_parameters(self) -> int:
        """Trainable weights: no biases, and the output's table is not the input's."""
        attention = 2 * self.hidden * (self.heads + self.key_heads) * self.head_size
        feed_forward = 3 * self.hidden * self.intermediate * max(self.experts, 1) + self.hidden * self.experts
        return self.layers * (attention + feed_forward + 2 * self.hidden) + (2 * self.vocabulary + 1) * self.hidden


@dataclass(frozen=True)
class StatefulSpec:
    """One stateful language model of the zoo."""

    name: str
    summary: str
    sizes: StatefulSizes
    precision: WeightPrecision
    is_tiny: bool

    def build(self, seed: int = 0) -> ov.Model:
        """The model with weights drawn from ``seed``."""
        from hsdag.models.stateful_graph import stateful_model

        return stateful_model(self.name, self.sizes, self.precision, seed)


_SIZES = {
    "stateful-llama": StatefulSizes(8, 512, 8, 4, 1408, 4096, group=128),
    "stateful-moe": StatefulSizes(6, 384, 6, 2, 512, 4096, group=128, experts=4, active=2),
    "tiny_stateful_llama": StatefulSizes(4, 64, 4, 2, 96, 160, group=32),
    "tiny_stateful_moe": StatefulSizes(4, 64, 4, 2, 64, 160, group=32, experts=4, active=2),
}


def _spec(family: str, sizes: StatefulSizes, precision: WeightPrecision) -> StatefulSpec:
    is_tiny = family.startswith("tiny")
    experts = f", {sizes.experts} experts of which {sizes.active} are active" if sizes.experts else ""
    shape = f"{sizes.layers} layers of width {sizes.hidden}{experts}, vocabulary of {sizes.vocabulary}"
    kind = "Mixture-of-experts decoder" if sizes.experts else "Llama decoder"
    name = f"{family}{'_' if is_tiny else '-'}{precision}"
    return StatefulSpec(name, f"{kind} with key-value cache, {precision} weights, {shape}", sizes, precision, is_tiny)


SPECS = tuple(
    _spec(family, sizes, precision) for family, sizes in _SIZES.items() for precision in get_args(WeightPrecision)
)
