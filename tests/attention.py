"""A model with an op of ONNX Runtime's that OpenVINO reads into one of its own, outside its opsets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

TOKENS, HEADS, KEY_HEADS, SIZE, PAST = 4, 4, 2, 8, 6
ALL = PAST + TOKENS


def grouped_attention(path: Path) -> Path:
    """An ONNX file: projections [1, TOKENS, HEADS * SIZE], GroupQueryAttention, which sees PAST more, a projection."""
    rng, width = np.random.default_rng(0), HEADS * SIZE

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32) / 4, name)

    def value(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    held = [
        weights(f"w{name}", width, heads * SIZE)
        for name, heads in zip("qkv", (HEADS, KEY_HEADS, KEY_HEADS), strict=True)
    ]
    held += [weights("wo", width, width), weights("cos", ALL, SIZE // 2), weights("sin", ALL, SIZE // 2)]
    held.append(numpy_helper.from_array(np.array([ALL - 1], np.int32), "last"))
    held.append(numpy_helper.from_array(np.array(ALL, np.int32), "all"))
    nodes = [helper.make_node("MatMul", ["x", f"w{name}"], [name]) for name in "qkv"]
    read = ["q", "k", "v", "keys", "values", "last", "all", "cos", "sin"]
    of: dict[str, Any] = {"domain": "com.microsoft", "num_heads": HEADS, "kv_num_heads": KEY_HEADS, "do_rotary": 1}
    nodes.append(helper.make_node("GroupQueryAttention", read, ["seen", "new_keys", "new_values"], **of))
    nodes.append(helper.make_node("MatMul", ["seen", "wo"], ["y"]))
    kept = (1, KEY_HEADS, ALL, SIZE)
    inputs = [value("x", 1, TOKENS, width), value("keys", *kept), value("values", *kept)]
    outputs = [value("y", 1, TOKENS, width), value("new_keys", *kept), value("new_values", *kept)]
    graph = helper.make_graph(nodes, "attention", inputs, outputs, held)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path
