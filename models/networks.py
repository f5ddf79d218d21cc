"""The models of the zoo: what each is called, takes and answers, and its sizes. Only building one loads torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from hsdag.ir.errors import OptionError

if TYPE_CHECKING:
    import openvino as ov
    from torch import nn

WeightPrecision: TypeAlias = Literal["fp16", "int8", "int4"]
"""How weights are stored: halves, bytes with a scale and a zero point per row, or four bits with those per group."""

NORM_EPS = 1e-5
"""Of the decoders' RMS norms."""
ROTARY_BASE = 10_000.0
"""Of the decoders' rotary positions."""


@dataclass(frozen=True)
class ModelInput:
    """One input: its name, its fixed shape, and its element type in OpenVINO's short form."""

    name: str
    shape: tuple[int, ...]
    element_type: Literal["f32", "i64"]


@dataclass(frozen=True)
class ModelSpec:
    """One model of the zoo.

    ``num_parameters`` counts the trainable weights. ``network`` takes a seed and returns the network
    with random weights, in evaluation mode; its forward takes the inputs in order and returns one tensor for
    each name in ``outputs``. A decoder has its sizes in place of that, and its ``precision`` of weights.

    Decoders that keep keys and values between inferences have the form that optimum-intel exports: dynamic inputs
    ``input_ids``, ``attention_mask`` and ``position_ids`` [B, T], ``beam_idx`` [B], which are not among ``inputs``, and
    a variable for the keys and one for the values of every layer.
    """

    name: str
    summary: str
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    num_parameters: int
    network: Callable[[int], nn.Module] | DecoderSizes
    precision: WeightPrecision = "fp16"

    def build(self, seed: int = 0) -> ov.Model:
        """The model with weights drawn from ``seed``: float constants in fp16, each followed by a Convert."""
        if isinstance(self.network, DecoderSizes):
            from hsdag.models.decoder_graph import decoder_model  # only here: it loads OpenVINO

            return decoder_model(self.name, self.network, self.precision, seed)
        from hsdag.models.torch_networks import compressed, to_openvino

        return compressed(to_openvino(self, self.network(seed)))


def seeded(network: str, sizes: Any) -> Callable[[int], Any]:
    """From a seed to the class ``network`` of ``torch_networks`` in these sizes, with random weights.

    Only the call imports torch.
    """

    def make(seed: int) -> Any:
        from hsdag.models import torch_networks

        return torch_networks.random_network(lambda: getattr(torch_networks, network)(sizes), seed)

    return make


@dataclass(frozen=True)
class ResNetSizes:
    """Channels inside the blocks of each stage, blocks per stage, channels of the stem, classes (He et al. 2016)."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    stem: int
    classes: int


@dataclass(frozen=True)
class InceptionSizes:
    """How many modules of each kind, and by what number all channel counts are divided (Szegedy et al. 2016).

    ``pool_channels`` has one entry per 35 x 35 module (channels of its pooling branch), ``mid_channels`` one
    per 17 x 17 module (channels inside its 7 x 7 branches), before the division.
    """

    pool_channels: tuple[int, ...]
    mid_channels: tuple[int, ...]
    num_expanded: int
    divisor: int
    classes: int


@dataclass(frozen=True)
class BertSizes:
    """Layers, width of a token, heads, width inside the feed-forward part, sizes of tables (Devlin et al. 2019)."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int
    token_types: int = 2


@dataclass(frozen=True)
class DecoderSizes:
    """Layers, width of a token, query heads, key and value heads, width inside the feed-forward part, vocabulary.

    Without state a decoder takes so many ``tokens`` at a time (Touvron et al. 2023; sharded_workloads.py has one layer
    of it, sharded). With ``experts`` every layer has so many feed-forward parts, and ``active`` of them for each token.
    ``group`` is how many weights of four bits share a scale. Raises OptionError where sizes do not fit each other.
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
        """Width of one head."""
        return self.hidden // self.heads

    @property
    def num_parameters(self) -> int:
        """Trainable weights: no biases, and the output's table is not the input's."""
        attention = 2 * self.hidden * (self.heads + self.key_heads) * self.head_size
        feed_forward = 3 * self.hidden * self.intermediate * max(self.experts, 1) + self.hidden * self.experts
        return self.layers * (attention + feed_forward + 2 * self.hidden) + (2 * self.vocabulary + 1) * self.hidden


RESNET50 = ResNetSizes(widths=(64, 128, 256, 512), depths=(3, 4, 6, 3), stem=64, classes=1000)
TINY_RESNET = ResNetSizes(widths=(4, 8), depths=(2, 1), stem=8, classes=10)
INCEPTION_V3 = InceptionSizes((32, 64, 64), (128, 160, 160, 192), num_expanded=2, divisor=1, classes=1000)
TINY_INCEPTION = InceptionSizes((32,), (128,), num_expanded=1, divisor=16, classes=10)
BERT_BASE = BertSizes(layers=12, hidden=768, heads=12, intermediate=3072, vocabulary=30522, positions=512)
TINY_BERT = BertSizes(layers=2, hidden=32, heads=2, intermediate=64, vocabulary=100, positions=16)
BERT_TOKENS = 8
SMALL_LLAMA = DecoderSizes(layers=4, hidden=256, heads=8, key_heads=2, intermediate=688, vocabulary=2048, tokens=32)
TINY_LLAMA = DecoderSizes(layers=2, hidden=32, heads=4, key_heads=2, intermediate=48, vocabulary=100, tokens=8)


def _images(name: str, summary: str, size: int, network: str, sizes: Any, num_parameters: int) -> ModelSpec:
    """A network from images [1, 3, size, size] to logits."""
    given = (ModelInput("images", (1, 3, size, size), "f32"),)
    return ModelSpec(name, f"{summary}, {size} x {size}", given, ("logits",), num_parameters, seeded(network, sizes))


def _bert(name: str, summary: str, sizes: BertSizes, num_parameters: int) -> ModelSpec:
    names, outputs = ("input_ids", "attention_mask", "token_type_ids"), ("last_hidden_state", "pooler_output")
    given = tuple(ModelInput(name, (1, BERT_TOKENS), "i64") for name in names)
    return ModelSpec(name, f"{summary}, {BERT_TOKENS} tokens", given, outputs, num_parameters, seeded("Bert", sizes))


def llama_decoder(name: str, sizes: DecoderSizes) -> ModelSpec:
    """A decoder of these sizes without state: from token numbers [1, T] to logits [1, T, vocabulary]."""
    shape = f"{sizes.layers} layers of width {sizes.hidden}, {sizes.heads} heads over {sizes.key_heads} of keys"
    about = f"Llama decoder, {shape}, vocabulary of {sizes.vocabulary}, {sizes.tokens} tokens"
    given = (ModelInput("input_ids", (1, sizes.tokens), "i64"),)
    return ModelSpec(name, about, given, ("logits",), sizes.num_parameters, sizes)


MODELS = (
    _images("resnet50", "ResNet-50, image classification", 224, "ResNet", RESNET50, 25_557_032),
    _images("inception_v3", "Inception-v3 without auxiliary head, image classification", 299, "Inception",
            INCEPTION_V3, 23_834_568),
    _bert("bert_base_uncased", "BERT base, vocabulary of bert-base-uncased, encoder and pooler", BERT_BASE,
          109_482_240),
    llama_decoder("llama-decoder", SMALL_LLAMA),
    _images("tiny_resnet", "three bottleneck blocks in two stages", 32, "ResNet", TINY_RESNET, 3_922),
    _images("tiny_inception", "one Inception-v3 module of each kind, a sixteenth of the channels", 75, "Inception",
            TINY_INCEPTION, 39_296),
    _bert("tiny_bert", "two BERT layers of width 32, vocabulary of 100", TINY_BERT, 21_984),
    llama_decoder("tiny_llama", TINY_LLAMA),
)  # fmt: skip
"""The models of fixed shapes, benchmark models before tiny ones, as those with state below."""

_STATEFUL = {
    "stateful-llama": DecoderSizes(8, 512, 8, 4, 1408, 4096, group=128),
    "stateful-moe": DecoderSizes(6, 384, 6, 2, 512, 4096, group=128, experts=4, active=2),
    "tiny_stateful_llama": DecoderSizes(4, 64, 4, 2, 96, 160, group=32),
    "tiny_stateful_moe": DecoderSizes(4, 64, 4, 2, 64, 160, group=32, experts=4, active=2),
}


def _stateful(family: str, sizes: DecoderSizes, precision: WeightPrecision) -> ModelSpec:
    experts = f", {sizes.experts} experts of which {sizes.active} are active" if sizes.experts else ""
    shape = f"{sizes.layers} layers of width {sizes.hidden}{experts}, vocabulary of {sizes.vocabulary}"
    kind = "Mixture-of-experts decoder" if sizes.experts else "Llama decoder"
    about = f"{kind} with key-value cache, {precision} weights, {shape}"
    name = f"{family}{'_' if '_' in family else '-'}{precision}"
    return ModelSpec(name, about, (), ("logits",), sizes.num_parameters, sizes, precision)


LANGUAGE_MODELS = tuple(
    _stateful(family, sizes, precision)
    for family, sizes in _STATEFUL.items()
    for precision in get_args(WeightPrecision)
)
"""The models with state."""
