"""Conversion between OpenVINO tensors and NumPy arrays, also for types that NumPy lacks: bf16, f8, packed integers.

OpenVINO shows those as other numbers, or as bytes. Exported scripts contain these functions, so they import no other
part of hsdag.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13


def numpy_type(kind: ov.Type) -> np.dtype[Any]:
    """Return the NumPy type for elements of ``kind``: f32 for bf16 and smaller real types, 8 bits for packed integers.

    Raises ValueError for the dynamic type, which has no values.
    """
    if kind == ov.Type.dynamic:
        raise ValueError("has elements of no known type, which cannot be given or read")
    if kind == ov.Type.string:
        return np.dtype(np.str_)
    if kind in (ov.Type.f64, ov.Type.f32, ov.Type.f16) or (kind.bitwidth >= 8 and not kind.is_real()):
        dtype: np.dtype[Any] = kind.to_dtype()
        return dtype
    return np.dtype(np.float32 if kind.is_real() or kind == ov.Type.nf4 else np.int8 if kind.is_signed() else np.uint8)


def has_own_values(kind: ov.Type) -> bool:
    """Return whether the array that OpenVINO shows of a tensor has the values of its elements."""
    return bool(kind.bitwidth == 8 * numpy_type(kind).itemsize)


def array_of(tensor: ov.Tensor) -> NDArray[Any]:
    """Return a copy of the values in a tensor; strings as text."""
    kind = tensor.element_type
    if kind == ov.Type.string:
        return np.array(tensor.str_data, np.str_)
    if has_own_values(kind) or not tensor.size:
        return np.array(tensor.data).astype(numpy_type(kind)).reshape(list(tensor.shape))
    return np.array(opset13.constant(tensor).get_data(dtype=np.float32)).astype(numpy_type(kind))


def tensor_of(kind: ov.Type, values: Any) -> ov.Tensor:
    """Return a tensor of type ``kind`` with these values. Raises ValueError where the type cannot hold them."""
    numpy_type(kind)
    tensor = ov.Tensor(kind, ov.Shape(list(np.shape(values))))
    fill(tensor, values)
    return tensor


def fill(tensor: ov.Tensor, values: Any) -> None:
    """Fill a tensor with values, rounded to its element type.

    Raises ValueError, which says what the tensor takes, for text instead of numbers and the reverse, and, where the
    elements are integers, for fractions and numbers out of their range.
    """
    kind, array = tensor.element_type, np.asarray(values)
    wanted = numpy_type(kind)
    if wanted.kind == "U":
        if array.dtype.kind not in "SU":
            raise ValueError(f"takes strings and cannot hold {array.dtype}")
        tensor.str_data = array
        return
    is_whole = array.dtype.kind in "biu" or wanted.kind == "f" or (array.dtype.kind == "f" and (array % 1 == 0).all())
    if array.dtype.kind not in "biuf" or not is_whole:
        raise ValueError(f"takes {kind.get_type_name()} and cannot hold {array.dtype}")
    if wanted.kind in "biu" and array.size and (array.dtype != wanted or kind.bitwidth < 8):
        bits = 1 if kind == ov.Type.boolean else kind.bitwidth
        is_signed = wanted.kind == "i"
        least, most = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
        if int(array.min()) < least or int(array.max()) > most:
            raise ValueError(f"takes {kind.get_type_name()}, from {least} to {most}, and not all numbers are")
    if has_own_values(kind):
        np.copyto(tensor.data, array, casting="unsafe")
    elif array.size:
        constant = opset13.constant(np.ascontiguousarray(array, wanted), dtype=kind)
        tensor.data.reshape(-1).view(np.uint8)[:] = constant.data.reshape(-1).view(np.uint8)
