"""Op, the view that builders of the torch op library have of an OpenVINO op; what they take, return and raise.

A builder reads an op once; what it returns runs on the device of its inputs, asks OpenVINO nothing,
never waits for the device and never branches on data, so that CUDA graphs can capture it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class Op:
    """An op to be built. What it lacks, or has and torch does not run, raises UnsupportedOpError."""

    node: ov.Node

    @property
    def type(self) -> str:
        """Its type."""
        return str(self.node.get_type_name())

    @property
    def opset(self) -> str:
        """The opset of its type, such as ``opset1``."""
        return str(self.node.get_type_info().version_id)

    @property
    def num_inputs(self) -> int:
        """How many inputs it has."""
        return int(self.node.get_input_size())

    @property
    def rank(self) -> int:
        """Axes of its first input."""
        return len(self.input_shape())

    @property
    def label(self) -> str:
        """How errors call it: its type, opset and name."""
        return f"{self.type} ({self.opset}) {self.node.get_friendly_name()!r}"

    def unsupported(self, what: object, supported: str) -> UnsupportedOpError:
        """The error for an op that has ``what`` where only ``supported`` runs."""
        return UnsupportedOpError(
            f"{self.label} has {what}; the torch op library runs {supported}; place it on OpenVINO"
        )

    def attribute(self, name: str) -> Any:
        """An attribute's value as OpenVINO gives it."""
        attributes = self.node.get_attributes()
        if name not in attributes:
            raise self.unsupported(f"no attribute {name!r}", "ops of the opsets that have it")
        return attributes[name]

    def choice(self, name: str, *choices: str) -> str:
        """A textual attribute in lower case, which must be one of ``choices``."""
        value = str(self.attribute(name)).lower()
        if value not in choices:
            raise self.unsupported(f"{name}={value}", f"{name} {', '.join(choices)}")
        return value

    def input_shape(self, port: int = 0) -> Shape:
        """The shape that an input port reads, which must be fixed."""
        return self._fixed(self.node.get_input_partial_shape(port), f"input {port}")

    def output_shape(self, port: int = 0) -> Shape:
        """The shape of an output port, which must be fixed."""
        return self._fixed(self.node.get_output_partial_shape(port), f"output {port}")

    def output_type(self, port: int = 0) -> torch.dtype:
        """The element type of an output port in torch."""
        name = str(self.node.get_output_element_type(port).get_type_name())
        if name not in TORCH_TYPES:
            raise self.unsupported(f"element type {name}", f"element types {', '.join(TORCH_TYPES)}")
        return TORCH_TYPES[name]

    @property
    def gives_reals(self) -> bool:
        """Whether its first output is of a floating type."""
        return bool(self.node.get_output_element_type(0).is_real())

    def known_input(self, port: int, what: str) -> NDArray[Any]:
        """The value of an input port, called ``what`` where it is not known beforehand."""
        value = static_value(self.node.input_value(port))
        if value is None:
            raise self.unsupported(f"{what} (input {port}) that change from call to call", "it with constant ones")
        return value

    def known_axis(self, port: int = 1) -> int:
        """The axis of the first input that an input port holds, counted from the front."""
        return axis_index(int(self.known_input(port, "an axis").item()), self.rank)

    def known_axes(self, port: int = 1) -> Shape:
        """The axes of the first input that an input port holds, counted from the front."""
        return tuple(axis_index(int(axis), self.rank) for axis in np.atleast_1d(self.known_input(port, "axes")))

    def for_axes(self, axes: Sequence[object], *functions: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The one of ``functions`` for windows along one, two or three axes."""
        if not 1 <= len(axes) <= len(functions):
            raise self.unsupported(f"windows of {len(axes)} axes", "one to three")
        return functions[len(axes) - 1]

    def _fixed(self, shape: ov.PartialShape, where: str) -> Shape:
        if not shape.is_static:
            raise self.unsupported(f"the open shape {shape} at {where}", "fixed shapes")
        return tuple(int(size) for size in shape.to_shape())


Builder = Callable[[Op], TorchOp]
"""Raises UnsupportedOpError for ops that it cannot run."""


def of_floats(build: Builder) -> Builder:
    """``build``, but for ops whose first input is of a floating type; UnsupportedOpError is raised for others."""

    def checked(op: Op) -> TorchOp:
        if not op.node.get_input_element_type(0).is_real():
            name = op.node.get_input_element_type(0).get_type_name()
            raise op.unsupported(f"element type {name}", "it for floating types")
        return build(op)

    return checked


def operands_to(function: Callable[..., Tensor]) -> Builder:
    """The builder of an op without attributes, which ``function`` computes from all operands."""
    return lambda _: lambda xs: (function(*xs),)


def axis_index(axis: int, rank: int) -> int:
    """The axis counted from the front."""
    return axis + rank if axis < 0 else axis


def sides(begin: Sequence[int], end: Sequence[int]) -> list[int]:
    """The argument of ``torch.nn.functional.pad``: last axis first."""
    return [side for pair in zip(begin[::-1], end[::-1], strict=True) for side in pair]


def static_value(output: ov.Output) -> NDArray[Any] | None:
    """The value of an output that depends on no model input's contents; None where it does.

    The shape of a tensor counts as known where it is fixed. OpenVINO evaluates what lies between.
    """
    values: dict[tuple[str, int], NDArray[Any]] = {}
    waiting = [output.get_node()]
    while waiting:
        node = waiting[-1]
        sources = [] if node.get_type_name() == "ShapeOf" else node.input_values()
        missing = [source.get_node() for source in sources if _key(source) not in values]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if _key(node.output(0)) not in values:
            results = _evaluated(node, [values[_key(source)] for source in sources])
            if results is None:
                return None
            values.update({_key(port): result for port, result in zip(node.outputs(), results, strict=True)})
    return values[_key(output)]


def _key(output: ov.Output) -> tuple[str, int]:
    return output.get_node().get_name(), output.get_index()


def _evaluated(node: ov.Node, inputs: list[NDArray[Any]]) -> list[NDArray[Any]] | None:
    """The values of all outputs of a node; None where they are not known."""
    if node.get_type_name() == "Constant":
        return [np.array(node.data)]
    if node.get_type_name() == "ShapeOf":
        return [np.array(Op(node).input_shape(), dtype=node.get_output_element_type(0).to_dtype())]
    if not inputs:
        return None
    results = [ov.Tensor(port.get_element_type(), _shape(port)) for port in node.outputs()]
    tensors = [ov.Tensor(np.ascontiguousarray(x).reshape(x.shape)) for x in inputs]
    return [np.array(result.data) for result in results] if node.evaluate(results, tensors) else None


def _shape(port: ov.Output) -> ov.Shape:
    shape = port.get_partial_shape()
    return shape.to_shape() if shape.is_static else ov.Shape([0] * shape.rank.get_length())


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


def allow_tf32(allowed: bool) -> None:
    """Let matrix products and convolutions on CUDA round f32 operands to ten bits of mantissa, or not.

    Torch has it off for products and on for convolutions. Results agree with OpenVINO's f32 to 1e-4 only
    with it off; speed is measured with either. It holds for the whole process, from then on; a captured graph
    keeps what held when it was captured.
    """
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
