"""Inputs that differ by a rounding, to see by how much a model jumps: no device can be asked to be nearer than that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

ROUNDING = {"f32": 2.0**-22, "bf16": 2.0**-9}
"""By which a number is moved, relative to itself."""


def moved_inputs(inputs: list[Any], precision: str, count: int) -> Iterator[list[Any]]:
    """``count`` times these inputs, each floating number of which is a rounding of ``precision`` apart at most."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield [_moved(array, precision, rng) for array in inputs]


def moved_weights(model: ov.Model, precision: str, count: int) -> Iterator[ov.Model]:
    """``count`` times this model, whose weights are moved likewise: for models that read whole numbers alone.

    Constants of one number, such as the exponent of a Power, are no weights.
    """
    rng = np.random.default_rng(0)
    for _ in range(count):
        clone = model.clone()
        for node in clone.get_ordered_ops():
            if node.get_type_name() == "Constant" and node.get_element_type().is_real() and node.data.size > 1:
                node.output(0).replace(opset13.constant(_moved(node.data, precision, rng)).output(0))
        yield clone


def _moved(array: Any, precision: str, rng: np.random.Generator) -> Any:
    if array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        moved = (array * (1 + ROUNDING[precision] * rng.uniform(-1, 1, array.shape))).astype(array.dtype)
    return np.where(np.isinf(moved), array, moved)  # the least number stands for minus infinity in masks
