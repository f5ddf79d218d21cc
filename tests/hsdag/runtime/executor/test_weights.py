"""Weights of split models: what the plugins hold of them, under HETERO and under our executor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hsdag
from hsdag.ir.placement.prepared import prepare
from tests.hsdag.runtime.executor.placing import alternating

SIZE, NUM_LAYERS = 96, 2


def int8_weight(rng: np.random.Generator) -> ov.Node:
    stored = op.constant(rng.integers(-127, 127, (SIZE, SIZE)).astype(np.int8))
    return op.multiply(op.convert(stored, "f32"), op.constant(np.full((SIZE, 1), 1e-3, np.float32)))


def half_weight(rng: np.random.Generator) -> ov.Node:
    weight = op.convert(op.constant(rng.standard_normal((SIZE, SIZE)).astype(np.float16) / 10), "f32")
    weight.get_rt_info()["decompression_0"] = ""
    return weight


def residual(weight: Callable[[np.random.Generator], ov.Node], *, is_shared: bool = False) -> ov.Model:
    """Layers of two weights whose result is added to what they read; their second weight may be one for all."""
    rng = np.random.default_rng(0)
    x = op.parameter([4, SIZE], np.float32, name="x")
    y, shared = x, weight(rng)
    for _ in range(NUM_LAYERS):
        inner = op.tanh(op.matmul(op.relu(y), weight(rng), False, True))
        y = op.add(y, op.matmul(inner, shared if is_shared else weight(rng), False, True))
    return ov.Model([op.result(y)], [x], "residual")


def weights_of(compiled: Iterable[Any]) -> list[tuple[str, str]]:
    """Element type and shape of each weight in the runtime models."""
    nodes = [node for each in compiled for node in each.get_runtime_model().get_ordered_ops()]
    found = [
        (node.get_rt_info()["outputPrecisions"].astype(str), str(node.get_output_partial_shape(0)))
        for node in nodes
        if node.get_rt_info()["layerType"].astype(str) == "Const"
    ]
    return sorted(each for each in found if each[1] == f"[{SIZE},{SIZE}]")


def test_a_split_int8_model_holds_each_weight_once_and_compressed(core: ov.Core) -> None:
    model = residual(int8_weight)
    compressed = [("i8", f"[{SIZE},{SIZE}]")] * (2 * NUM_LAYERS)
    assert weights_of([core.compile_model(model, "CPU")]) == compressed
    assert weights_of([alternating(model).compile(core, model)]) == compressed
    with hsdag.compile_work_conserving(model, alternating(model), core) as compiled:
        assert weights_of(part.model for part in compiled._backend._parts) == compressed


def test_copies_of_a_weight_keep_their_runtime_information_and_share_its_memory() -> None:
    model = residual(half_weight, is_shared=True)
    kept = next(dict(node.get_rt_info()).keys() for node in model.get_ops() if node.get_type_name() == "Convert")
    nodes = prepare(model).nodes
    converts = [node for node in nodes if node.get_type_name() == "Convert"]
    assert len(converts) == 2 * NUM_LAYERS
    assert all(kept <= dict(node.get_rt_info()).keys() for node in converts)
    stored = [node.input_value(0).get_node().get_data().ctypes.data for node in converts]
    assert len(set(stored)) == NUM_LAYERS + 1
