"""Elements: the values of every type that OpenVINO has go into a tensor and come out of it as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest

from hsdag.ir.elements import array_of, tensor_of
from tests.elements import HELD, held


def test_the_table_has_every_type_of_openvino() -> None:
    kinds = {name for name in dir(ov.Type) if isinstance(getattr(ov.Type, name), ov.Type)}
    assert kinds - {"dynamic"} == {*HELD}
    with pytest.raises(ValueError, match="elements of no known type"):
        tensor_of(ov.Type.dynamic, [0])


@pytest.mark.parametrize("name", HELD)
def test_values_come_out_as_they_went_in(name: str) -> None:
    kind, values = getattr(ov.Type, name), held(name)
    for array in (values, np.tile(values, (3, 1)), values[:0], values[2]):
        found = array_of(tensor_of(kind, array))
        assert found.shape == np.shape(array)
        assert found.dtype.kind == values.dtype.kind
        assert found.tolist() == array.tolist()
    if values.dtype.kind in "iub":
        assert array_of(tensor_of(kind, values.astype(np.float64))).tolist() == values.tolist()
        wide = values.astype(object)
        for beyond in (max(wide) + 1, min(wide) - 1):
            if name not in ("i64", "u64", "u32"):  # whose values in the table are not the limits
                with pytest.raises(ValueError, match=f"takes {name}, from .* to .*, and not all numbers are"):
                    tensor_of(kind, np.array([beyond], np.int64))


BITS: dict[str, list[tuple[float, int]]] = {
    "bf16": [(1.0, 0x3F80), (-2.5, 0xC020), (1.00390625, 0x3F80), (1.01171875, 0x3F82)],  # halfway: to even
    "f8e4m3": [(1.0, 0x38), (-448.0, 0xFE)],
    "f8e5m2": [(1.0, 0x3C), (-57344.0, 0xFB)],
    "f8e8m0": [(1.0, 127), (4.0, 129)],
}
"""Bits by the definitions of bfloat16 and of the OCP's 8-bit floating point and microscaling formats."""


@pytest.mark.parametrize("name", BITS)
def test_real_numbers_become_the_bits_of_their_format(name: str) -> None:
    values, bits = zip(*BITS[name], strict=True)
    raw = tensor_of(getattr(ov.Type, name), np.array(values, np.float32)).data
    assert raw.view(np.uint16 if name == "bf16" else np.uint8).tolist() == [*bits]


@pytest.mark.parametrize(
    ("kind", "values"), [("i32", [0.5]), ("string", [1.0]), ("f32", ["1"]), ("u4", [1j]), ("i8", [np.nan])]
)
def test_values_of_another_sort_are_refused(kind: str, values: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"takes \w+ and cannot hold"):
        tensor_of(getattr(ov.Type, kind), values)
