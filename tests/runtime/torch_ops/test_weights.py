"""Constants as torch tensors: values in every element type; one copy for each device."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset13 as ops

from hsdag.runtime.torch_ops import allow_tf32, constant_tensor
from hsdag.runtime.torch_ops.base import DeviceCopies

VALUES = [1, 0, 5, 7, 3]


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "i4", "u4", "boolean"])
def test_constant_keeps_its_values(name: str) -> None:
    tensor = constant_tensor(ov.op.Constant(getattr(ov.Type, name), ov.Shape([5]), VALUES))
    expected = [bool(x) for x in VALUES] if name == "boolean" else VALUES
    assert tensor.tolist() == expected


@pytest.mark.parametrize(("name", "values"), [("i4", [-8, 7, -1]), ("u4", [15, 8, 1]), ("bf16", [-2.5, 0.75, 384.0])])
def test_narrow_numbers_keep_their_sign_and_size(name: str, values: list[float]) -> None:
    assert constant_tensor(ov.op.Constant(getattr(ov.Type, name), ov.Shape([3]), values)).tolist() == values


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_constant_keeps_its_shape(shape: tuple[int, ...]) -> None:
    assert tuple(constant_tensor(ops.constant(np.ones(shape, np.float32))).shape) == shape


def test_tensor_outlives_the_model() -> None:
    node = ops.constant(np.arange(1000, dtype=np.float32))
    tensor = constant_tensor(node)
    del node
    assert tensor.sum().item() == 499500


def test_a_tensor_is_copied_once_to_each_device() -> None:
    copies = DeviceCopies(torch.ones(3))
    devices = [torch.device("cpu"), torch.device("meta")]
    first, second = ([copies.on(device) for device in devices] for _ in range(2))
    assert [x.device for x in first] == devices
    assert all(a is b for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_is_set_for_products_and_convolutions(allowed: bool) -> None:
    before = torch.backends.cudnn.allow_tf32
    try:
        allow_tf32(allowed)
        assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (allowed, allowed)
    finally:
        allow_tf32(False)
        torch.backends.cudnn.allow_tf32 = before
