"""Specifications of the zoo's models: name, inputs, outputs and sizes. Torch is imported only when a model is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import openvino as ov

from hsdag.models.sizes import BertSizes, DecoderSizes, InceptionSizes, ModelInput, ResNetSizes, WeightPrecision

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ModelSpec:
    """Specification of one model of the zoo.

    ``network`` is a function from a seed to a torch network with random weights in evaluation mode, whose forward takes
    the inputs in order and returns one tensor for each name in ``outputs``; or, for a decoder, its sizes. ``precision``
    says how a decoder's weights are stored.

    Decoders that keep keys and values between inferences have the form that optimum-intel exports. Their inputs are
    dynamic and therefore not listed in ``inputs``: ``input_ids``, ``attention_mask`` and ``position_ids`` [B, T], and
    ``beam_idx`` [B]. Every layer has one variable for its keys and one for its values.
    """

    name: str
    summary: str
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    network: Callable[[int], nn.Module] | DecoderSizes
    precision: WeightPrecision = "fp16"

    def build(self, seed: int = 0) -> ov.Model:
        """Build the model with weights drawn from ``seed``; float constants are in fp16, each followed by a Convert."""
        if isinstance(self.network, DecoderSizes):
            from hsdag.models.decoder_graph import decoder_model  # imported here because it loads OpenVINO

            return decoder_model(self.name, self.network, self.precision, seed)
        from hsdag.models.torch_networks import compressed, to_openvino

        return compressed(to_openvino(self.network(seed), self.name, self.inputs, self.outputs))


def seeded(network: str, sizes: Any) -> Callable[[int], Any]:
    """Return a function from a seed to the network class ``network`` of ``torch_networks`` with random weights.

    Torch is imported when that function is called.
    """

    def make(seed: int) -> Any:
        from hsdag.models import torch_networks

        return torch_networks.random_network(lambda: getattr(torch_networks, network)(sizes), seed)

    return make


RESNET50 = ResNetSizes(widths=(64, 128, 256, 512), depths=(3, 4, 6, 3), stem=64, classes=1000)
TINY_RESNET = ResNetSizes(widths=(4, 8), depths=(2, 1), stem=8, classes=10)
INCEPTION_V3 = InceptionSizes((32, 64, 64), (128, 160, 160, 192), num_expanded=2, divisor=1, classes=1000)
TINY_INCEPTION = InceptionSizes((32,), (128,), num_expanded=1, divisor=16, classes=10)
BERT_BASE = BertSizes(layers=12, hidden=768, heads=12, intermediate=3072, vocabulary=30522, positions=512)
TINY_BERT = BertSizes(layers=2, hidden=32, heads=2, intermediate=64, vocabulary=100, positions=16)
BERT_TOKENS = 8
SMALL_LLAMA = DecoderSizes(layers=4, hidden=256, heads=8, key_heads=2, intermediate=688, vocabulary=2048, tokens=32)
TINY_LLAMA = DecoderSizes(layers=2, hidden=32, heads=4, key_heads=2, intermediate=48, vocabulary=100, tokens=8)


def _images(name: str, summary: str, size: int, network: str, sizes: Any) -> ModelSpec:
    """Specify a network from images [1, 3, size, size] to logits."""
    inputs = (ModelInput("images", (1, 3, size, size), "f32"),)
    return ModelSpec(name, f"{summary}, {size} x {size}", inputs, ("logits",), seeded(network, sizes))


def _bert(name: str, summary: str, sizes: BertSizes) -> ModelSpec:
    """Specify a BERT of BERT_TOKENS tokens."""
    names, outputs = ("input_ids", "attention_mask", "token_type_ids"), ("last_hidden_state", "pooler_output")
    inputs = tuple(ModelInput(name, (1, BERT_TOKENS), "i64") for name in names)
    return ModelSpec(name, f"{summary}, {BERT_TOKENS} tokens", inputs, outputs, seeded("Bert", sizes))


def llama_decoder(name: str, sizes: DecoderSizes) -> ModelSpec:
    """Specify a stateless decoder of these sizes, from token ids [1, T] to logits [1, T, vocabulary]."""
    shape = f"{sizes.layers} layers of width {sizes.hidden}, {sizes.heads} heads over {sizes.key_heads} of keys"
    about = f"Llama decoder, {shape}, vocabulary of {sizes.vocabulary}, {sizes.tokens} tokens"
    inputs = (ModelInput("input_ids", (1, sizes.tokens), "i64"),)
    return ModelSpec(name, about, inputs, ("logits",), sizes)


MODELS = (
    _images("resnet50", "ResNet-50, image classification", 224, "ResNet", RESNET50),
    _images("inception_v3", "Inception-v3 without auxiliary head, image classification", 299, "Inception",
            INCEPTION_V3),
    _bert("bert_base_uncased", "BERT base, vocabulary of bert-base-uncased, encoder and pooler", BERT_BASE),
    llama_decoder("llama-decoder", SMALL_LLAMA),
    _images("tiny_resnet", "three bottleneck blocks in two stages", 32, "ResNet", TINY_RESNET),
    _images("tiny_inception", "one Inception-v3 module of each kind, a sixteenth of the channels", 75, "Inception",
            TINY_INCEPTION),
    _bert("tiny_bert", "two BERT layers of width 32, vocabulary of 100", TINY_BERT),
    llama_decoder("tiny_llama", TINY_LLAMA),
)  # fmt: skip
"""Models of fixed shapes, benchmark models before tiny ones."""

_STATEFUL = {
    "stateful-llama": DecoderSizes(8, 512, 8, 4, 1408, 4096, group=128),
    "stateful-moe": DecoderSizes(6, 384, 6, 2, 512, 4096, group=128, experts=4, active=2),
    "tiny_stateful_llama": DecoderSizes(4, 64, 4, 2, 96, 160, group=32),
    "tiny_stateful_moe": DecoderSizes(4, 64, 4, 2, 64, 160, group=32, experts=4, active=2),
}


def _stateful(family: str, sizes: DecoderSizes, precision: WeightPrecision) -> ModelSpec:
    """Specify a decoder with state; ``family`` is the first part of its name."""
    experts = f", {sizes.experts} experts of which {sizes.active} are active" if sizes.experts else ""
    shape = f"{sizes.layers} layers of width {sizes.hidden}{experts}, vocabulary of {sizes.vocabulary}"
    kind = "Mixture-of-experts decoder" if sizes.experts else "Llama decoder"
    about = f"{kind} with key-value cache, {precision} weights, {shape}"
    name = f"{family}{'_' if '_' in family else '-'}{precision}"
    return ModelSpec(name, about, (), ("logits",), sizes, precision)


LANGUAGE_MODELS = tuple(
    _stateful(family, sizes, precision)
    for family, sizes in _STATEFUL.items()
    for precision in get_args(WeightPrecision)
)
"""Decoders with state, benchmark models before tiny ones, each in every precision."""
