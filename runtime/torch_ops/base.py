"""Builders of the torch op library: what they take, return and raise.

A builder reads an OpenVINO op once; what it returns runs on the device of its inputs, asks OpenVINO nothing,
never waits for the device and never branches on data, so that CUDA graphs can capture it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray

from hsdag.ir.errors import ModelError

Tensor = torch.Tensor
Shape = tuple[int, ...]

TorchOp = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
"""From the tensors of all input ports, in order, to those of all output ports.

Results may share memory with inputs (a Reshape is a view); inputs are never written. An output that no op
reads may come back empty (the indices of a MaxPool). What an op holds itself, such as a padding's indices, is
copied to a device at the first call there: call once before capturing.
"""

Builder = Callable[[ov.Node], TorchOp]
"""Raises UnsupportedOpError for ops that it cannot run."""

TORCH_TYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i4": torch.int8,
    "u4": torch.uint8,
    "boolean": torch.bool,
}
"""Torch's element type for each of OpenVINO's; four-bit integers are held in a byte each."""


class UnsupportedOpError(ModelError):
    """An op whose type, attributes or element types the torch op library does not run."""


class DeviceCopies:
    """One tensor, copied once to each device that asks for it."""

    def __init__(self, tensor: Tensor) -> None:
        self._copies = {tensor.device: tensor}
        self._original = tensor

    def on(self, device: torch.device) -> Tensor:
        """The tensor on ``device``; the same object at every call."""
        found = self._copies.get(device)
        if found is None:
            found = self._copies.setdefault(device, self._original.to(device))
        return found


def label(node: ov.Node) -> str:
    """How errors call an op: its type, opset and name."""
    return f"{node.get_type_name()} ({node.get_type_info().version_id}) {node.get_friendly_name()!r}"


def unsupported(node: ov.Node, what: object, supported: str) -> UnsupportedOpError:
    """The error for an op that has ``what`` where only ``supported`` runs."""
    return UnsupportedOpError(f"{label(node)} has {what}; the torch op library runs {supported}; place it on OpenVINO")


def attribute(node: ov.Node, name: str) -> Any:
    """An attribute's value as OpenVINO gives it. Raises UnsupportedOpError where the op has none of that name."""
    attributes = node.get_attributes()
    if name not in attributes:
        raise unsupported(node, f"no attribute {name!r}", "ops of the opsets that have it")
    return attributes[name]


def choice(node: ov.Node, name: str, choices: Iterable[str]) -> str:
    """A textual attribute in lower case. Raises UnsupportedOpError where it is none of ``choices``."""
    value = str(attribute(node, name)).lower()
    known = tuple(choices)
    if value not in known:
        raise unsupported(node, f"{name}={value}", f"{name} {', '.join(known)}")
    return value


def input_shape(node: ov.Node, port: int = 0) -> Shape:
    """The fixed shape that an input port reads. Raises UnsupportedOpError where it is open."""
    return _fixed(node, node.get_input_partial_shape(port), f"input {port}")


def output_shape(node: ov.Node, port: int = 0) -> Shape:
    """The fixed shape of an output port. Raises UnsupportedOpError where it is open."""
    return _fixed(node, node.get_output_partial_shape(port), f"output {port}")


def output_type(node: ov.Node, port: int = 0) -> torch.dtype:
    """The element type of an output port. Raises UnsupportedOpError where torch has none like it."""
    return torch_type(node, node.get_output_element_type(port))


def torch_type(node: ov.Node, element_type: ov.Type) -> torch.dtype:
    """Torch's type for one of OpenVINO's, met at ``node``. Raises UnsupportedOpError where torch has none like it."""
    name = str(element_type.get_type_name())
    if name not in TORCH_TYPES:
        raise unsupported(node, f"element type {name}", f"element types {', '.join(TORCH_TYPES)}")
    return TORCH_TYPES[name]


def of_floats(build: Builder) -> Builder:
    """``build``, but for ops whose first input is of a floating type; UnsupportedOpError is raised for others."""

    def checked(node: ov.Node) -> TorchOp:
        if not node.get_input_element_type(0).is_real():
            name = node.get_input_element_type(0).get_type_name()
            raise unsupported(node, f"element type {name}", "it for floating types")
        return build(node)

    return checked


def operands_to(function: Callable[..., Tensor]) -> Builder:
    """The builder of an op without attributes, which ``function`` computes from all operands."""
    return lambda _: lambda xs: (function(*xs),)


def axis_index(axis: int, rank: int) -> int:
    """The axis counted from the front."""
    return axis + rank if axis < 0 else axis


def axis_indices(axes: NDArray[Any], rank: int) -> Shape:
    """Axes counted from the front."""
    return tuple(axis_index(int(axis), rank) for axis in np.atleast_1d(axes))


def _fixed(node: ov.Node, shape: ov.PartialShape, where: str) -> Shape:
    if not shape.is_static:
        raise unsupported(node, f"the open shape {shape} at {where}", "fixed shapes")
    return tuple(int(size) for size in shape.to_shape())


def allow_tf32(allowed: bool) -> None:
    """Let matrix products and convolutions on CUDA round f32 operands to ten bits of mantissa, or not.

    Torch has it off for products and on for convolutions. Results agree with OpenVINO's f32 to 1e-4 only
    with it off; speed is measured with either. It holds for the whole process, from then on; a captured graph
    keeps what held when it was captured.
    """
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
