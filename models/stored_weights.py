"""Weights as OpenVINO models store them compressed: a constant, and the ops that widen it for its reader.

The chains are those that NNCF leaves in a model: Constant, Convert, Subtract (zero point), Multiply (scale), Reshape
where groups share a scale, Convert.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

Array: TypeAlias = NDArray[np.float32]


def half_weight(name: str, values: Array) -> ov.Output:
    """Values in half precision, widened to single precision."""
    return op.convert(op.constant(values.astype(np.float16), name=name), np.float32, name=f"{name}/convert").output(0)


def byte_weight(name: str, values: Array) -> ov.Output:
    """Values [..., K] as unsigned bytes with a scale and a zero point for every row."""
    codes, zero, scale = _quantised(values, 255)
    stored = op.constant(codes, name=name)
    return _widened(name, stored, op.constant(zero, name=f"{name}/zero_point"), scale, None)


def nibble_weight(name: str, values: Array, group: int) -> ov.Output:
    """Values [..., K] as unsigned numbers of four bits with a scale and a zero point for every ``group`` of them."""
    codes, zero, scale = _quantised(values.reshape(*values.shape[:-1], -1, group), 15)
    return _widened(name, _nibbles(name, codes), _nibbles(f"{name}/zero_point", zero), scale, values.shape)


def _quantised(values: Array, largest: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float16]]:
    """Codes of ``values`` [..., G], zero points [..., 1] and scales [..., 1]: value = (code - zero) * scale."""
    low, high = np.minimum(values.min(-1, keepdims=True), 0), np.maximum(values.max(-1, keepdims=True), 0)
    scale = (np.maximum(high - low, 1e-5) / largest).astype(np.float16)
    zero = np.clip(np.rint(-low / scale), 0, largest)
    codes = np.clip(np.rint(values / scale) + zero, 0, largest)
    return codes.astype(np.uint8), zero.astype(np.uint8), scale


def _nibbles(name: str, codes: NDArray[np.uint8]) -> ov.Node:
    """A constant of four bits for each code, the first of two in the lower half of a byte."""
    flat = codes.reshape(-1)
    pairs = np.append(flat, np.zeros(len(flat) % 2, np.uint8)).reshape(-1, 2)
    tensor = ov.Tensor(ov.Type.u4, list(codes.shape))
    tensor.data.view(np.uint8)[...] = (pairs[:, 0] | pairs[:, 1] << 4).reshape(tensor.data.shape)
    node: ov.Node = op.constant(tensor)
    node.set_friendly_name(name)
    return node


def _widened(
    name: str, stored: ov.Node, zero: ov.Node, scale: NDArray[np.float16], shape: tuple[int, ...] | None
) -> ov.Output:
    """(stored - zero) * scale in single precision, in another ``shape`` where one is given."""
    wide = [op.convert(node, np.float16, name=f"{node.get_friendly_name()}/wide") for node in (stored, zero)]
    centred = op.subtract(*wide, name=f"{name}/zero_point/subtract")
    value: Any = op.multiply(centred, op.constant(scale, name=f"{name}/scale"), name=f"{name}/scaled")
    if shape is not None:
        target = op.constant(np.asarray(shape, np.int64), name=f"{name}/shape")
        value = op.reshape(value, target, special_zero=False, name=f"{name}/reshape")
    return op.convert(value, np.float32, name=f"{name}/convert").output(0)
