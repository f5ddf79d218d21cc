"""Masks of attention: read rightly in bf16, wherever they come from, and the same numbers in f32."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir.graph.masks import put_masks_first
from tests.precisions import needs_bf16

HEADS, QUERIES, KEYS, WIDTH = 2, 8, 12, 16
MASK = np.where(np.arange(KEYS) % 3, np.float32(0.5), np.float32(-3.0)).reshape(1, 1, 1, KEYS)
HIDES = (np.arange(KEYS) % 3 > 0).reshape(1, 1, 1, KEYS)
RNG = np.random.default_rng(0)
QUERY, KEY, VALUE = (RNG.standard_normal((1, HEADS, n, WIDTH), np.float32) for n in (QUERIES, KEYS, KEYS))
LAST = RNG.standard_normal((WIDTH, 8), np.float32) / 4


def attention(how: str, source: str) -> tuple[ov.Model, list[Any], Any]:
    """Attention whose mask is an input or a constant, behind it a layer, its inputs, and what it computes."""
    bias = np.where(HIDES, 0.0, -np.inf).astype(np.float32) if "bool" in how else MASK
    given = HIDES if "bool" in how else -bias if how == "subtract" else bias
    parameters = [op.parameter(x.shape, np.float32) for x in (QUERY, KEY, VALUE)]
    query, key, value = parameters
    mask = op.constant(given)
    if source == "input":
        mask = op.parameter(given.shape, given.dtype)
        parameters.append(mask)
    if "one op" in how:
        seen = op.scaled_dot_product_attention(query, key, value, mask)
    else:
        scores = op.multiply(op.matmul(query, key, False, True), op.constant(np.float32(WIDTH**-0.5)))
        scores = op.subtract(scores, mask) if how == "subtract" else op.add(scores, mask)
        seen = op.matmul(op.softmax(scores, -1), value, False, False)
    model = ov.Model([op.result(op.matmul(seen, op.constant(LAST), False, False))], parameters, how)
    e = np.exp(QUERY @ KEY.swapaxes(-1, -2) * WIDTH**-0.5 + bias)
    return model, [QUERY, KEY, VALUE, given][: len(parameters)], e / e.sum(-1, keepdims=True) @ VALUE @ LAST


CASES = [(how, source) for how in ("add", "subtract", "one op", "one op, bool") for source in ("input", "constant")]


@pytest.mark.parametrize("precision", ["f32", pytest.param("bf16", marks=needs_bf16)])
@pytest.mark.parametrize(("how", "source"), CASES)
def test_a_mask_along_the_keys_is_read_as_it_is_in_every_precision(how: str, source: str, precision: str) -> None:
    model, given, wanted = attention(how, source)
    put_masks_first(model.get_ordered_ops())
    found = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": precision})(given)[0]
    np.testing.assert_allclose(found, wanted, atol=(1e-5 if precision == "f32" else 0.02) * np.abs(wanted).max())


def test_only_what_attention_adds_is_moved_and_layers_keep_their_biases() -> None:
    x, weights, bias = op.parameter([1, 4, WIDTH]), op.constant(LAST), op.constant(np.ones((1, 1, 8), np.float32))
    layer = op.add(op.matmul(x, weights, False, False), bias)
    put_masks_first(ov.Model([op.result(op.softmax(layer, -1))], [x], "layer").get_ordered_ops())
    assert layer.input_value(1).get_node().get_type_name() == "Constant"
