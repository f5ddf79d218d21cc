"""Constant, Parameter, Result, and ops whose value is known before anything runs."""

from __future__ import annotations

import numpy as np
import openvino as ov
import torch

from hsdag.runtime.torch_ops.base import Builder, DeviceCopies, Op, Tensor, TorchOp, operands_to, static_value


def _constant(op: Op) -> TorchOp:
    tensor = constant_tensor(op.node)
    return lambda _: (tensor,)


def _known(op: Op) -> TorchOp:
    """The value from build time, on the device of the first input."""
    value = static_value(op.node.output(0))
    if value is None:
        raise op.unsupported("a value that changes from call to call", "it where the value is constant")
    copies = DeviceCopies(torch.from_numpy(np.array(value)))
    return lambda xs: (copies.on(xs[0].device),)


def constant_tensor(node: ov.Node) -> Tensor:
    """A Constant's value on the CPU, in memory of its own; four-bit integers take a byte each.

    Raises UnsupportedOpError for element types without a counterpart.
    """
    dtype = Op(node).output_type()
    shape = tuple(node.get_output_shape(0))
    name = node.get_output_element_type(0).get_type_name()
    data = np.array(node.data)
    if name in ("i4", "u4"):
        data = _unpacked(data.reshape(-1).view(np.uint8), int(np.prod(shape)), signed=name == "i4")
    if dtype is torch.bfloat16:  # OpenVINO hands its bits out as if they were of f16
        return torch.from_numpy(data.view(np.int16)).view(torch.bfloat16).reshape(shape)
    return torch.from_numpy(np.ascontiguousarray(data)).reshape(shape)


def _unpacked(packed: np.ndarray, count: int, signed: bool) -> np.ndarray:
    """Two four-bit integers from each byte, the lower bits first."""
    values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)[:count]
    return ((values ^ 8).astype(np.int8) - 8) if signed else values


BUILDERS: dict[str, Builder] = {
    "Constant": _constant,
    "Parameter": operands_to(lambda x: x),  # takes the tensor that was fed
    "Result": operands_to(lambda x: x),
    "ShapeOf": _known,
    "Range": _known,
    "NonZero": _known,
}
