"""Transposes of heads: attention computes the same wherever a model is cut beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir.device import parse_devices
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.heads import keep_heads_apart
from hsdag.runtime.executor.compiling import compile_on

WIDTH, KEYS = 16, 9
DEVICES = "A=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32],B=CPU[INFERENCE_NUM_THREADS=1]"


def of_heads(x: Any, heads: int) -> Any:
    """Rows [1, R, H W] as [1, H, R, W]."""
    split = op.reshape(x, op.constant(np.array([0, 0, heads, WIDTH])), True)
    return op.transpose(split, op.constant(np.array([0, 2, 1, 3])))


def attention(rows: int, heads: int) -> tuple[ov.Model, list[np.ndarray], np.ndarray]:
    """Attention, its inputs, and what it computes, as [1, H, R, W]."""
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, num, heads * WIDTH), np.float32) for num in (rows, KEYS, KEYS)]
    parameters = [op.parameter(array.shape, np.float32) for array in arrays]
    seen = op.scaled_dot_product_attention(*(of_heads(x, heads) for x in parameters))
    query, key, value = (array.reshape(1, -1, heads, WIDTH).swapaxes(1, 2) for array in arrays)
    e = np.exp(query @ key.swapaxes(-1, -2) * WIDTH**-0.5)
    return ov.Model([op.result(seen)], parameters, "heads"), arrays, e / e.sum(-1, keepdims=True) @ value


@pytest.mark.parametrize(("rows", "heads"), [(4, 4), (12, 12), (5, 4)])
def test_attention_of_as_many_rows_as_heads_without_the_transpose_behind_it_is_right(rows: int, heads: int) -> None:
    model, arrays, wanted = attention(rows, heads)
    keep_heads_apart(model.get_ordered_ops())
    found = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(arrays)[0]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert any("Squeeze" in node.get_type_name() for node in model.get_ops()) == (rows == heads)


def test_a_cut_behind_attention_of_as_many_rows_as_heads_changes_nothing() -> None:
    model, arrays, wanted = attention(4, 4)
    seen = model.output(0).get_node().input_value(0)
    back = op.transpose(seen, op.constant(np.array([0, 2, 1, 3])), name="back")
    model = ov.Model(
        [op.result(op.reshape(back, op.constant(np.array([0, 0, -1])), True))], model.get_parameters(), "cut"
    )
    graph = graph_of(model)
    behind = graph.op_names.index("back")
    devices = [int(v >= behind and graph.op_types[v] != "Constant") for v in range(graph.num_ops)]
    with compile_on(ov.Core(), model, graph, parse_devices(DEVICES), devices) as cut:
        found = next(iter(cut(arrays).values()))
    np.testing.assert_allclose(found, wanted.swapaxes(1, 2).reshape(1, 4, -1), atol=1e-5)
