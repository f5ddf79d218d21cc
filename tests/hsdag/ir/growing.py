"""Models whose shapes are known from the data alone: one that keeps state, which grows, and one that keeps none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset6, opset13

WIDTH, VOCABULARY = 8, 16


def growing_model(layers: int = 2) -> ov.Model:
    """A decoder over tokens [1, T] with one variable [1, P, WIDTH] a layer, to which every inference adds T rows."""
    rng = np.random.default_rng(0)
    tokens = opset13.parameter([-1, -1], np.int64, name="input_ids")
    tokens.output(0).set_names({"input_ids"})
    table = opset13.constant(rng.standard_normal((VOCABULARY, WIDTH)).astype(np.float32))
    y = opset13.gather(table, tokens, opset13.constant(0))
    batch = opset13.gather(opset13.shape_of(tokens), opset13.constant([0]), opset13.constant(0))
    empty = opset13.concat([batch, opset13.constant(np.array([0, WIDTH]))], 0)
    assigns = []
    for layer in range(layers):
        nothing = opset13.broadcast(opset13.constant(np.float32(0)), empty)
        past = opset6.read_value(nothing, f"past {layer}", ov.Type.f32, ov.PartialShape([-1, -1, WIDTH]))
        rows = opset13.concat([past, y], 1)
        assigns.append(opset6.assign(rows, f"past {layer}"))
        scores = opset13.softmax(opset13.matmul(y, rows, False, True), -1)
        y = opset13.add(y, opset13.matmul(scores, rows, False, False))
    result = opset13.result(y)
    result.output(0).set_names({"y"})
    return ov.Model([result], assigns, [tokens], "growing")


def chain_model(layers: int = 4, width: int = 32) -> ov.Model:
    """Products of data [?, width] one after another."""
    rng = np.random.default_rng(0)
    x: Any = opset13.parameter([-1, width], np.float32, name="x")
    x.output(0).set_names({"x"})
    y = x
    for _ in range(layers):
        weight = opset13.constant(rng.standard_normal((width, width)).astype(np.float32) / width)
        y = opset13.relu(opset13.matmul(y, weight, False, False))
    return ov.Model([opset13.result(y)], [x], "chain")


def saved(model: ov.Model, folder: Path) -> Path:
    """The model as a file."""
    path = folder / f"{model.get_friendly_name()}.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    return path
