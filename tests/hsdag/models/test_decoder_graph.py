"""The language models with state against their formulas, and what plugins make of their weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from scipy.special import expit, softmax

from hsdag.base.errors import OptionError
from hsdag.models import LANGUAGE_MODELS, DecoderSizes, ModelSpec, build_model
from hsdag.models.decoder_graph import byte_weight, nibble_weight
from hsdag.models.networks import TINY_LLAMA
from hsdag.models.sizes import NORM_EPS

Array = NDArray[np.float64]
TINY = [spec for spec in LANGUAGE_MODELS if spec.name.startswith("tiny")]
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "INFERENCE_NUM_THREADS": 1,
}
NUM_TOKENS = 6


def infer(request: Any, tokens: NDArray[np.int64], before: int = 0) -> NDArray[np.float32]:
    """Logits [T, vocabulary] of tokens [T] that come behind so many others."""
    count = len(tokens)
    positions = np.arange(before, before + count)[None]
    inputs = [tokens[None], np.ones((1, before + count), np.int64), positions, np.zeros(1, np.int32)]
    logits: NDArray[np.float32] = np.array(request.infer(inputs)[0])[0]
    return logits


def weights_of(model: ov.Model) -> Callable[[str], Array]:
    """Weights by name, widened as their scales and zero points say."""
    nodes = {node.get_friendly_name(): node for node in model.get_ordered_ops()}

    def numbers(name: str) -> Array:
        node = nodes[name]
        if node.get_element_type() != ov.Type.u4:
            return np.asarray(node.data, np.float64)
        packed, size = np.asarray(node.data).view(np.uint8).reshape(-1), int(np.prod(node.get_output_shape(0)))
        both = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[:size]
        return np.asarray(both.reshape(node.get_output_shape(0)), np.float64)

    def weight(name: str) -> Array:
        stored = numbers(name)
        if f"{name}/scale" in nodes:
            stored = (stored - numbers(f"{name}/zero_point")) * numbers(f"{name}/scale")
        return stored.reshape(tuple(nodes[f"{name}/convert"].get_output_shape(0)))

    return weight


def norm(x: Array, gamma: Array) -> Array:
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + NORM_EPS) * gamma.reshape(-1))


def silu_gated(x: Array, gate: Array, up: Array, down: Array) -> Array:
    return np.asarray((x @ gate.T * expit(x @ gate.T) * (x @ up.T)) @ down.T)


def experts(x: Array, at: str, w: Callable[[str], Array], active: int) -> Array:
    """Each token by its best experts alone, their shares summing up to one."""
    scores = softmax(x @ w(f"{at}.gate.weight").T, axis=-1)
    parts = [w(f"{at}.experts.{name}_proj.weight") for name in ("gate", "up", "down")]
    found = np.zeros_like(x)
    for t, row in enumerate(scores):
        best = np.argsort(-row)[:active]
        for e in best:
            found[t] += row[e] / row[best].sum() * silu_gated(x[t : t + 1], *(part[e] for part in parts))[0]
    return found


def by_formula(sizes: DecoderSizes, w: Callable[[str], Array], tokens: NDArray[np.int64]) -> Array:
    """Logits [T, vocabulary] in NumPy and double precision, head by head and with complex rotations."""
    size, half, count = sizes.head_size, sizes.head_size // 2, len(tokens)
    turn = np.exp(1j * np.arange(count)[:, None] * 10_000.0 ** (-2 * np.arange(half) / size))

    def rotated(x: Array) -> Array:
        z = (x[:, :half] + 1j * x[:, half:]) * turn
        return np.concatenate([z.real, z.imag], axis=-1)

    x = w("model.embed_tokens.weight")[tokens]
    for layer in range(sizes.layers):
        at = f"model.layers.{layer}"
        y = norm(x, w(f"{at}.input_layernorm.weight"))
        query, key, value = (y @ w(f"{at}.self_attn.{name}_proj.weight").T for name in "qkv")
        heads = []
        for head in range(sizes.heads):
            shared = head // (sizes.heads // sizes.key_heads)
            own, group = slice(head * size, (head + 1) * size), slice(shared * size, (shared + 1) * size)
            scores = rotated(query[:, own]) @ rotated(key[:, group]).T / np.sqrt(size)
            heads.append(softmax(np.where(np.tri(count, dtype=bool), scores, -np.inf), axis=-1) @ value[:, group])
        x = x + np.concatenate(heads, axis=-1) @ w(f"{at}.self_attn.o_proj.weight").T
        y = norm(x, w(f"{at}.post_attention_layernorm.weight"))
        parts = [f"{at}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
        x = x + (experts(y, f"{at}.mlp", w, sizes.active) if sizes.experts else silu_gated(y, *map(w, parts)))
    return np.asarray(norm(x, w("model.norm.weight")) @ w("lm_head.weight").T)


@pytest.mark.slow
@pytest.mark.parametrize("spec", TINY, ids=lambda spec: spec.name)
def test_logits_are_those_of_the_formulas_all_at_once_and_token_by_token(spec: ModelSpec) -> None:
    model, sizes = spec.build(), spec.network
    assert isinstance(sizes, DecoderSizes)
    tokens = np.random.default_rng(1).integers(sizes.vocabulary, size=NUM_TOKENS)
    expected = by_formula(sizes, weights_of(model), tokens)
    request = ov.Core().compile_model(model, "CPU", EXACT).create_infer_request()
    np.testing.assert_allclose(infer(request, tokens), expected, atol=2e-3)
    request.reset_state()
    one_by_one = [infer(request, tokens[t : t + 1], t)[0] for t in range(NUM_TOKENS)]
    np.testing.assert_allclose(one_by_one, expected, atol=2e-3)


def test_logits_without_state_are_those_of_the_formulas() -> None:
    model = build_model("tiny_llama")
    tokens = np.random.default_rng(1).integers(TINY_LLAMA.vocabulary, size=TINY_LLAMA.tokens)
    (found,) = ov.Core().compile_model(model, "CPU", EXACT)([tokens[None]]).values()
    np.testing.assert_allclose(found[0], by_formula(TINY_LLAMA, weights_of(model), tokens), atol=2e-3)
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    halves = [node.data.size for node in constants if node.get_element_type() == ov.Type.f16]
    attention, feed_forward, norms, tables = 2 * 32 * (4 + 2) * 8, 3 * 32 * 48, 2 * 32, 2 * 100 * 32
    assert sum(halves) == 2 * (attention + feed_forward + norms) + tables + 32


@pytest.mark.parametrize(
    ("weight", "group", "largest"), [(byte_weight, 8, 255), (partial(nibble_weight, group=4), 4, 15)]
)
def test_quantised_weights_are_off_by_half_a_step_and_steps_span_the_values_and_zero(
    weight: Callable[[str, Any], ov.Output], group: int, largest: int
) -> None:
    values = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32) + np.array(
        [[0.0], [9.0], [-9.0], [0.1]]
    )
    found = weights_of(ov.Model([weight("w", values.astype(np.float32))], [], "m"))("w")
    groups = values.reshape(-1, group)
    steps = (np.maximum(groups.max(1), 0) - np.minimum(groups.min(1), 0)) / largest
    assert (np.abs(found.reshape(-1, group) - groups) <= 0.65 * steps[:, None]).all()  # scales are halves


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 3}, "width 64 must be a multiple of twice the 3 heads"),
        ({"key_heads": 3}, "4 query heads must be a multiple of the 3 key heads"),
        ({"group": 48}, "must be multiples of the group of 48 weights"),
        ({"intermediate": 48}, "must be multiples of the group of 32 weights"),
        ({"experts": 4}, "of 4 experts 0 cannot be active"),
        ({"experts": 4, "active": 5}, "of 4 experts 5 cannot be active"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, int], words: str) -> None:
    sizes = {"layers": 1, "hidden": 64, "heads": 4, "key_heads": 2, "intermediate": 64, "vocabulary": 9, "group": 32}
    with pytest.raises(OptionError, match=words):
        DecoderSizes(**{**sizes, **changes})
