"""The Llama family as networks (Touvron et al. 2023): sizes and zoo entries. models/llama.py has the sharded layer."""

from __future__ import annotations

from dataclasses import dataclass

from hsdag.ir.errors import OptionError
from hsdag.models.spec import ModelInput, ModelSpec, seeded

NORM_EPS = 1e-5
ROTARY_BASE = 10_000.0


def check_heads(hidden: int, heads: int, key_heads: int) -> None:
    """Raise OptionError where heads do not divide the width into even parts, or key heads the query heads."""
    if hidden % (2 * heads):
        raise OptionError(f"the width {hidden} must be a multiple of twice the {heads} heads")
    if heads % key_heads:
        raise OptionError(f"the {heads} query heads must be a multiple of the {key_heads} key heads")


@dataclass(frozen=True)
class LlamaDecoderSizes:
    """Layers, width of a token, query heads, key and value heads, width inside the feed-forward part, vocabulary,
    tokens.

    Raises OptionError where heads do not divide the width into even parts, or key heads the query heads.
    """

    layers: int
    hidden: int
    heads: int
    key_heads: int
    intermediate: int
    vocabulary: int
    tokens: int

    def __post_init__(self) -> None:
        check_heads(self.hidden, self.heads, self.key_heads)

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    @property
    def num_parameters(self) -> int:
        """Trainable weights: no biases, and the output's table is not the input's."""
        attention = 2 * self.hidden * (self.heads + self.key_heads) * self.head_size
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + 2 * self.vocabulary * self.hidden + self.hidden


SMALL = LlamaDecoderSizes(layers=4, hidden=256, heads=8, key_heads=2, intermediate=688, vocabulary=2048, tokens=32)
TINY = LlamaDecoderSizes(layers=2, hidden=32, heads=4, key_heads=2, intermediate=48, vocabulary=100, tokens=8)


def llama_decoder(name: str, sizes: LlamaDecoderSizes, is_tiny: bool = False) -> ModelSpec:
    """A decoder of these sizes: from token numbers [1, T] to logits [1, T, vocabulary]."""
    shape = f"{sizes.layers} layers of width {sizes.hidden}, {sizes.heads} heads over {sizes.key_heads} of keys"
    return ModelSpec(
        name=name,
        summary=f"Llama decoder, {shape}, vocabulary of {sizes.vocabulary}, {sizes.tokens} tokens",
        inputs=(ModelInput("input_ids", (1, sizes.tokens), "i64"),),
        outputs=("logits",),
        num_parameters=sizes.num_parameters,
        is_tiny=is_tiny,
        make_network=seeded("llama_network", "LlamaDecoder", sizes),
    )


SPECS = (llama_decoder("llama-decoder", SMALL), llama_decoder("tiny_llama", TINY, is_tiny=True))
