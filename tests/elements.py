"""Every element type that OpenVINO has, with values that it holds exactly, and models that hand them on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

F32, U8 = np.float32, np.uint8
HELD: dict[str, tuple[list[Any], Any]] = {
    "f64": ([0.0, -1.5, 2.0**100], np.float64),
    "f32": ([0.0, -1.5, 2.0**100], F32),
    "f16": ([0.0, -1.5, 65504.0], np.float16),
    "bf16": ([0.0, -1.0078125, 2.0**100], F32),  # 1 + 2^-7, which f16 has too, but by other bits
    "f8e4m3": ([0.0, -1.125, 448.0], F32),
    "f8e5m2": ([0.0, -1.25, 57344.0], F32),
    "f8e8m0": ([0.5, 1.0, 2.0**100], F32),  # powers of two, without a sign
    "f4e2m1": ([0.0, -1.5, 6.0], F32),
    "nf4": ([0.0, -1.0, 1.0], F32),
    "boolean": ([False, True, True], np.bool_),
    "i64": ([0, -(2**31), 2**31 - 1], np.int64),
    "i32": ([0, -(2**31), 2**31 - 1], np.int32),
    "i16": ([0, -(2**15), 2**15 - 1], np.int16),
    "i8": ([0, -128, 127], np.int8),
    "i4": ([0, -8, 7], np.int8),
    "u64": ([0, 1, 2**31 - 1], np.uint64),
    "u32": ([0, 1, 2**31 - 1], np.uint32),
    "u16": ([0, 1, 2**16 - 1], np.uint16),
    "u8": ([0, 1, 255], U8),
    "u6": ([0, 1, 63], U8),
    "u4": ([0, 1, 15], U8),
    "u3": ([0, 1, 7], U8),
    "u2": ([0, 1, 3], U8),
    "u1": ([0, 1, 1], U8),
    "string": (["", "é", "two words"], np.str_),
}
"""Three values of each type that the CPU plugin keeps, which computes in 32 bits at most, and their type in NumPy."""

NOT_ON_CPU = ("u1", "u3", "u6")
"""Types of inputs that OpenVINO's CPU plugin refuses when it compiles."""

ON_CPU = tuple(name for name in HELD if name not in NOT_ON_CPU)


def held(name: str) -> NDArray[Any]:
    """[3] values of a type."""
    values, kind = HELD[name]
    return np.array(values, kind)


def through(*names: str, called: Sequence[str] = ()) -> ov.Model:
    """For each type an input of that name, which is an output, too; and two outputs ``out_NAME`` [3, 1] of one tensor.

    The first ones of these are ``called`` otherwise.
    """
    inputs = [op.parameter([3], getattr(ov.Type, name), name=name) for name in names]
    moved = [op.result(op.reshape(x, op.constant(np.array([3, 1])), special_zero=False)) for x in inputs]
    for name, result in zip([*called, *(f"out_{name}" for name in names[len(called) :])], moved, strict=True):
        result.input_value(0).get_tensor().set_names({name})
    again = [op.result(result.input_value(0)) for result in moved]
    return ov.Model([*moved, *map(op.result, inputs), *again], inputs, "through")
