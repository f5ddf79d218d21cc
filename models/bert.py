"""The BERT family (Devlin et al. 2019): sizes and zoo entries."""

from __future__ import annotations

from dataclasses import dataclass

from hsdag.models.spec import ModelInput, ModelSpec, seeded


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


def _spec(name: str, summary: str, sizes: BertSizes, num_parameters: int, is_tiny: bool) -> ModelSpec:
    names = ("input_ids", "attention_mask", "token_type_ids")
    return ModelSpec(
        name=name,
        summary=f"{summary}, {NUM_TOKENS} tokens",
        inputs=tuple(ModelInput(name, (1, NUM_TOKENS), "i64") for name in names),
        outputs=("last_hidden_state", "pooler_output"),
        num_parameters=num_parameters,
        is_tiny=is_tiny,
        make_network=seeded("bert_network", "Bert", sizes),
    )


_BASE_SUMMARY = "BERT base, vocabulary of bert-base-uncased, encoder and pooler"
SPECS = (
    _spec("bert_base_uncased", _BASE_SUMMARY, BASE, 109_482_240, is_tiny=False),
    _spec("tiny_bert", "two BERT layers of width 32, vocabulary of 100", TINY, 21_984, is_tiny=True),
)
