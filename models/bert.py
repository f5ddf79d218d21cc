"""The BERT family (Devlin et al. 2019): sizes and zoo entries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hsdag.models.spec import ModelInput, ModelSpec

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class BertSizes:
    """Layers, width of a token, attention heads, width inside the feed-forward part, table sizes."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    positions: int
    token_types: int = 2


BASE = BertSizes(layers=12, hidden=768, heads=12, intermediate=3072, vocabulary=30522, positions=512)
TINY = BertSizes(layers=2, hidden=32, heads=2, intermediate=64, vocabulary=100, positions=16)
NUM_TOKENS = 8


def _make(sizes: BertSizes, seed: int) -> nn.Module:
    from hsdag.models.bert_network import Bert
    from hsdag.models.weights import random_network

    return random_network(lambda: Bert(sizes), seed)


def _token_inputs() -> tuple[ModelInput, ...]:
    names = ("input_ids", "attention_mask", "token_type_ids")
    return tuple(ModelInput(name, (1, NUM_TOKENS), "i64") for name in names)


SPECS = (
    ModelSpec(
        name="bert_base_uncased",
        summary="BERT base, vocabulary of bert-base-uncased, encoder and pooler, 8 tokens",
        inputs=_token_inputs(),
        outputs=("last_hidden_state", "pooler_output"),
        num_parameters=109_482_240,
        is_tiny=False,
        make_network=partial(_make, BASE),
    ),
    ModelSpec(
        name="tiny_bert",
        summary="two BERT layers of width 32, vocabulary of 100, 8 tokens",
        inputs=_token_inputs(),
        outputs=("last_hidden_state", "pooler_output"),
        num_parameters=21_984,
        is_tiny=True,
        make_network=partial(_make, TINY),
    ),
)
