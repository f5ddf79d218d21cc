"""The decoder without state against the formulas of the one with state, and as a model of the zoo."""

from __future__ import annotations

import numpy as np
import torch

from hsdag.models.networks import SMALL_LLAMA, TINY_LLAMA
from hsdag.models.torch_networks import LlamaDecoder, random_network
from tests.models.test_stateful_models import Array, by_formula

OWN_NAMES = {
    "model.embed_tokens": "words",
    "model.norm": "norm",
    "model.layers": "layers",
    "lm_head": "head",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.output",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}


def test_logits_are_those_of_the_formulas() -> None:
    network = random_network(lambda: LlamaDecoder(TINY_LLAMA), 0)
    weights = {name: x.detach().double().numpy() for name, x in network.named_parameters()}

    def weight(name: str) -> Array:
        for theirs, own in OWN_NAMES.items():
            name = name.replace(theirs, own)
        return np.asarray(weights[name])

    tokens = torch.randint(TINY_LLAMA.vocabulary, (1, TINY_LLAMA.tokens), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = network(tokens)[0].numpy()
    np.testing.assert_allclose(found, by_formula(TINY_LLAMA, weight, tokens[0].numpy()), atol=1e-4)


def test_declared_parameters_are_those_of_the_network() -> None:
    with torch.device("meta"):
        network = LlamaDecoder(SMALL_LLAMA)
    assert sum(x.numel() for x in network.parameters()) == SMALL_LLAMA.num_parameters
