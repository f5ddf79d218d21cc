"""The Llama decoder against its formulas, and as a model of the zoo."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from hsdag.ir.errors import OptionError
from hsdag.models import find_model
from hsdag.models.networks import NORM_EPS, SMALL_LLAMA, TINY_LLAMA, DecoderSizes, llama_decoder
from hsdag.models.torch_networks import LlamaDecoder, random_network, rotary_angles, rotate

Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def network() -> LlamaDecoder:
    """A tiny decoder with weights from seed 0."""
    return random_network(lambda: LlamaDecoder(TINY_LLAMA), 0)


def _tokens(seed: int = 0) -> torch.Tensor:
    return torch.randint(TINY_LLAMA.vocabulary, (1, TINY_LLAMA.tokens), generator=torch.Generator().manual_seed(seed))


def _logits(network: LlamaDecoder, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = network(tokens)
    return found


def _by_formula(network: LlamaDecoder, tokens: NDArray[np.int64]) -> Array:
    """Logits [T, vocabulary] in NumPy and double precision, head by head and with complex rotations."""
    w = {name: x.detach().double().numpy() for name, x in network.named_parameters()}
    size, half = TINY_LLAMA.head_size, TINY_LLAMA.head_size // 2
    turn = np.exp(1j * np.arange(TINY_LLAMA.tokens)[:, None] * 10_000.0 ** (-2 * np.arange(half) / size))

    def norm(x: Array, name: str) -> Array:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + NORM_EPS) * w[f"{name}.weight"])

    def rotated(x: Array) -> Array:
        z = (x[:, :half] + 1j * x[:, half:]) * turn
        return np.concatenate([z.real, z.imag], axis=-1)

    x = w["words.weight"][tokens]
    for layer in range(TINY_LLAMA.layers):
        at: Callable[[str], Array] = lambda name, layer=layer: w[f"layers.{layer}.{name}.weight"]  # type: ignore[misc]  # noqa: E731
        y, heads = norm(x, f"layers.{layer}.attention_norm"), []
        for head in range(TINY_LLAMA.heads):
            shared = head // (TINY_LLAMA.heads // TINY_LLAMA.key_heads)
            own, group = slice(head * size, (head + 1) * size), slice(shared * size, (shared + 1) * size)
            query, key = rotated(y @ at("attention.query")[own].T), rotated(y @ at("attention.key")[group].T)
            scores = np.where(np.tri(TINY_LLAMA.tokens, dtype=bool), query @ key.T / np.sqrt(size), -np.inf)
            heads.append(softmax(scores, axis=-1) @ (y @ at("attention.value")[group].T))
        x = x + np.concatenate(heads, axis=-1) @ at("attention.output").T
        y = norm(x, f"layers.{layer}.norm")
        gate = y @ at("gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ at("up").T)) @ at("down").T
    return np.asarray(norm(x, "norm") @ w["head.weight"].T)


def test_logits_are_those_of_the_formulas(network: LlamaDecoder) -> None:
    tokens = _tokens()
    expected = _by_formula(network, tokens[0].numpy())
    np.testing.assert_allclose(_logits(network, tokens)[0].numpy(), expected, atol=1e-4)


def test_later_tokens_change_nothing_before_them(network: LlamaDecoder) -> None:
    first, second = _tokens(), _tokens()
    second[0, 5:] = (second[0, 5:] + 1) % TINY_LLAMA.vocabulary
    a, b = _logits(network, first)[0], _logits(network, second)[0]
    torch.testing.assert_close(a[:5], b[:5])
    assert (a[5:] - b[5:]).abs().max() > 0.1


def test_products_of_rotated_heads_depend_on_the_distance_alone() -> None:
    angles = rotary_angles(6, 8)
    query, key = (torch.randn(8, generator=torch.Generator().manual_seed(seed)).expand(1, 1, 6, 8) for seed in (0, 1))
    turned = [rotate(x, angles.cos(), angles.sin(), 4)[0, 0] for x in (query, key)]
    scores = turned[0] @ turned[1].T
    for distance in range(-5, 6):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along))


@pytest.mark.parametrize("sizes", [SMALL_LLAMA, TINY_LLAMA])
def test_declared_parameters_are_those_of_the_network(sizes: DecoderSizes) -> None:
    with torch.device("meta"):
        network = LlamaDecoder(sizes)
    assert sum(x.numel() for x in network.parameters()) == sizes.num_parameters


def test_other_sizes_make_other_models() -> None:
    sizes = DecoderSizes(1, 16, 2, 1, 24, 10, 4)
    model = llama_decoder("one_layer", sizes).build(0)
    assert list(model.output(0).shape) == [1, 4, 10]


def test_zoo_gives_the_decoder_by_name() -> None:
    spec = find_model("llama-decoder")
    assert (spec.inputs[0].shape, spec.num_parameters) == ((1, 32), SMALL_LLAMA.num_parameters)


@pytest.mark.parametrize(
    ("hidden", "heads", "key_heads", "words"),
    [(30, 4, 2, "width 30 must be a multiple of twice the 4"), (32, 4, 3, "4 query heads must be a multiple of the 3")],
)
def test_heads_that_do_not_fit_are_refused(hidden: int, heads: int, key_heads: int, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        DecoderSizes(1, hidden, heads, key_heads, 24, 10, 4)
