"""Weights of split models: what the plugins hold of them, under HETERO and under our executor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op

import hsdag
from hsdag.ir.placement.prepared import prepare
from tests.hsdag.runtime.executor.placing import alternating

SIZE = 96


def int8_weight(rng: np.random.Generator) -> ov.Node:
    stored = op.constant(rng.integers(-127, 127, (SIZE, SIZE)).astype(np.int8))
    return op.multiply(op.convert(stored, "f32"), op.constant(np.full((SIZE, 1), 1e-3, np.float32)))


def residual(weights: Sequence[ov.Node]) -> ov.Model:
    """Layers of two weights each, whose result is added to what they read."""
    y = x = op.parameter([4, SIZE], np.float32, name="x")
    for first, second in zip(weights[::2], weights[1::2], strict=True):
        y = op.add(y, op.matmul(op.tanh(op.matmul(op.relu(y), first, False, True)), second, False, True))
    return ov.Model([op.result(y)], [x], "residual")


def weights_of(compiled: Iterable[Any]) -> list[tuple[str, str]]:
    """Element type and shape of each weight in the runtime models."""
    nodes = [node for each in compiled for node in each.get_runtime_model().get_ordered_ops()]
    consts = [node for node in nodes if node.get_rt_info()["layerType"].astype(str) == "Const"]
    found = [(n.get_rt_info()["outputPrecisions"].astype(str), str(n.get_output_partial_shape(0))) for n in consts]
    return sorted(each for each in found if each[1] == f"[{SIZE},{SIZE}]")


def test_a_split_int8_model_holds_each_weight_once_and_compressed(core: ov.Core) -> None:
    rng = np.random.default_rng(0)
    model = residual([int8_weight(rng) for _ in range(4)])
    compressed = [("i8", f"[{SIZE},{SIZE}]")] * 4
    assert weights_of([core.compile_model(model, "CPU")]) == compressed
    assert weights_of([alternating(model).compile(core, model)]) == compressed
    with hsdag.compile_work_conserving(model, alternating(model), core) as compiled:
        assert weights_of(part.model for part in compiled._backend._parts) == compressed


def test_copies_of_a_weight_keep_their_runtime_information_and_share_its_memory() -> None:
    weight = op.convert(op.constant(np.ones((SIZE, SIZE), np.float16)), "f32")
    weight.get_rt_info()["decompression_0"] = ""
    converts = [node for node in prepare(residual([weight] * 4)).nodes if node.get_type_name() == "Convert"]
    assert len(converts) == 4
    assert all("decompression_0" in dict(node.get_rt_info()) for node in converts)
    assert len({node.input_value(0).get_node().get_data().ctypes.data for node in converts}) == 1
