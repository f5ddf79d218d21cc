"""Op, the view that the table of builders has of an OpenVINO op; constants; and ops that OpenVINO itself evaluates.

A builder reads an op once; what it returns runs on the device of its inputs, never waits for the device and never
branches on data. Only ops that are left to OpenVINO wait: their tensors go to the CPU and back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from openvino import opset13

from hsdag.ir.errors import ModelError

Tensor = torch.Tensor
Shape = tuple[int, ...]

TorchOp = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
"""From the tensors of all input ports, in order, to those of the output ports up to the last that is read.

Results may share memory with inputs (a Reshape is a view); inputs are never written.
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

WITH_STATE = ("ReadValue", "Assign")


class UnsupportedOpError(ModelError):
    """An op that neither torch nor OpenVINO on the CPU runs by itself."""


class NotInTorch(Exception):  # noqa: N818 - no error: OpenVINO evaluates the op
    """The table has no builder for this form of an op."""


@dataclass(frozen=True, eq=False)
class Op:
    """An op to be built. What the table does not expect of it raises NotInTorch."""

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
    def label(self) -> str:
        """How errors call it: its type, opset and name."""
        return f"{self.type} ({self.opset}) {self.node.get_friendly_name()!r}"

    @property
    def num_inputs(self) -> int:
        """How many inputs it has."""
        return int(self.node.get_input_size())

    @property
    def takes_reals(self) -> bool:
        """Whether its first input is of a floating type."""
        return bool(self.node.get_input_element_type(0).is_real())

    def require(self, *conditions: object) -> None:
        """Raise NotInTorch unless all hold."""
        if not all(conditions):
            raise NotInTorch

    def attribute(self, name: str) -> Any:
        """An attribute's value as OpenVINO gives it."""
        attributes = self.node.get_attributes()
        self.require(name in attributes)
        return attributes[name]

    def choice(self, name: str, *choices: str) -> str:
        """A textual attribute in lower case, which must be one of ``choices``."""
        value = str(self.attribute(name)).lower()
        self.require(value in choices)
        return value

    def shape(self, port: int = 0) -> Shape:
        """The shape that an input port reads, which must be fixed."""
        return self._fixed(self.node.get_input_partial_shape(port))

    def out_shape(self, port: int = 0) -> Shape:
        """The shape of an output port, which must be fixed."""
        return self._fixed(self.node.get_output_partial_shape(port))

    def _fixed(self, shape: ov.PartialShape) -> Shape:
        self.require(shape.is_static)
        return tuple(int(size) for size in shape.to_shape())

    def dtype(self, port: int = 0) -> torch.dtype:
        """The element type of an output port in torch. Raises UnsupportedOpError where torch has none."""
        name = str(self.node.get_output_element_type(port).get_type_name())
        if name not in TORCH_TYPES:
            raise UnsupportedOpError(
                f"{self.label} has element type {name}; torch devices have {', '.join(TORCH_TYPES)}; "
                "place the model on OpenVINO's devices"
            )
        return TORCH_TYPES[name]

    def value(self, port: int) -> NDArray[Any]:
        """The value of an input port, which must depend on no input of the model."""
        value = static_value(self.node.input_value(port))
        if value is None:
            raise NotInTorch
        return value

    def axis(self, port: int = 1) -> int:
        """The axis of the first input that an input port holds, counted from the front."""
        return int(self.value(port).item()) % len(self.shape())

    def axes(self, port: int = 1) -> Shape:
        """The axes of the first input that an input port holds, counted from the front."""
        return tuple(int(axis) % len(self.shape()) for axis in np.atleast_1d(self.value(port)))


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
        shape = node.get_input_partial_shape(0)
        return [np.array(shape.to_shape(), node.get_output_element_type(0).to_dtype())] if shape.is_static else None
    if not inputs:
        return None
    shapes = [port.get_partial_shape() for port in node.outputs()]
    kept = [shape.to_shape() if shape.is_static else ov.Shape([0] * shape.rank.get_length()) for shape in shapes]
    results = [ov.Tensor(port.get_element_type(), shape) for port, shape in zip(node.outputs(), kept, strict=True)]
    tensors = [ov.Tensor(np.ascontiguousarray(x).reshape(x.shape)) for x in inputs]
    return [np.array(result.data) for result in results] if node.evaluate(results, tensors) else None


def constant_tensor(node: ov.Node) -> Tensor:
    """A Constant's value on the CPU, in memory of its own; four-bit integers take a byte each.

    Raises UnsupportedOpError for element types without a counterpart.
    """
    dtype, shape = Op(node).dtype(), tuple(node.get_output_shape(0))
    name, data = node.get_output_element_type(0).get_type_name(), np.array(node.data)
    if name in ("i4", "u4"):  # two from each byte, the lower bits first
        packed = data.reshape(-1).view(np.uint8)
        values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)[: int(np.prod(shape))]
        data = ((values ^ 8).astype(np.int8) - 8) if name == "i4" else values
    if dtype is torch.bfloat16:  # OpenVINO hands its bits out as if they were of f16
        return torch.from_numpy(data.view(np.int16)).view(torch.bfloat16).reshape(shape)
    return torch.from_numpy(np.ascontiguousarray(data)).reshape(shape)


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


def by_openvino(op: Op) -> TorchOp:
    """The op compiled alone for OpenVINO's CPU device in f32: right for whatever OpenVINO runs, and slow.

    Raises UnsupportedOpError for state, for element types that torch lacks and for what OpenVINO does not compile.
    """
    if op.type in WITH_STATE:
        raise UnsupportedOpError(f"{op.label} keeps state, which torch devices do not run; use OpenVINO's devices")
    types = [op.dtype(port) for port in range(op.node.get_output_size())]
    try:
        model, read = _alone(op.node)
        request = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
    except RuntimeError as error:
        raise UnsupportedOpError(f"{op.label} runs neither in torch nor by itself on OpenVINO's CPU device") from error
    busy = threading.Lock()  # several executors may have the op

    def run(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with busy:
            request.infer([_as_openvino(xs[port]) for port in read])
            found = [np.array(request.get_output_tensor(k).data) for k in range(len(types))]
        return tuple(_of_openvino(x, dtype).to(xs[0].device) for x, dtype in zip(found, types, strict=True))

    return run


def _alone(node: ov.Node) -> tuple[ov.Model, list[int]]:
    """A model of a copy of one op, and the ports of the op that its inputs are; what is known is constant in it."""
    parameters, seen, waiting = [], set[str](), [node]
    while waiting:
        before = waiting.pop()
        if before.get_name() not in seen:
            seen.add(before.get_name())
            parameters += [before] if before.get_type_name() == "Parameter" else []
            waiting += [source.get_node() for source in before.input_values()]
    copy = ov.Model([opset13.result(port) for port in node.outputs()], parameters, "up to the op").clone()
    twin = copy.get_results()[0].input_value(0).get_node()
    read, inputs = list[int](), []
    for port in twin.inputs():
        source = port.get_source_output()
        known = static_value(source)
        if known is None:
            given = opset13.parameter(source.get_partial_shape(), source.get_element_type())
            read.append(port.get_index())
            inputs.append(given)
        elif source.get_node().get_type_name() != "Constant":
            given = opset13.constant(known)
        else:
            continue
        port.replace_source_output(given.output(0))
    return ov.Model(copy.get_results(), inputs, "op"), read


def _as_openvino(x: Tensor) -> ov.Tensor:
    plain = x.detach().cpu().contiguous()
    if plain.dtype is torch.bfloat16:
        return ov.Tensor(plain.view(torch.int16).numpy(), ov.Shape(list(x.shape)), ov.Type.bf16)
    return ov.Tensor(plain.numpy())


def _of_openvino(x: NDArray[Any], dtype: torch.dtype) -> Tensor:
    if dtype is torch.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(dtype)
    return torch.from_numpy(x).to(dtype)


def allow_tf32(allowed: bool) -> None:
    """Let matrix products and convolutions on CUDA round f32 operands to ten bits of mantissa, or not.

    Torch has it off for products and on for convolutions. Results agree with OpenVINO's f32 to 1e-4 only with it off.
    It holds for the whole process, from then on.
    """
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
