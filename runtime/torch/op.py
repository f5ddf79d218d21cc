"""Read OpenVINO ops for the builders of torch functions, and evaluate ops that torch lacks by OpenVINO itself.

A builder reads an op once. The function that it returns runs on the device of its inputs, never waits for the device
and never branches on data. Only ops that are left to OpenVINO wait: their tensors go to the CPU and back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import openvino as ov
import torch
from openvino import opset13

from hsdag.base.errors import ModelError
from hsdag.runtime.machine.devices import PRECISION
from hsdag.runtime.measuring.differences import alone

Tensor = torch.Tensor
Shape = tuple[int, ...]

TensorFunction = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Function from the tensors of all input ports, in order, to those of the output ports up to the last that is read.

Results may share memory with inputs (a Reshape is a view); inputs are never written.
"""

TORCH_TYPES: dict[str, torch.dtype] = {
    **{f"{kind[0]}{bits}": getattr(torch, f"{kind}{bits}") for kind in ("float", "int") for bits in (64, 32, 16)},
    **dict.fromkeys(("i8", "i4"), torch.int8),
    **dict.fromkeys(("u8", "u4"), torch.uint8),
    "bf16": torch.bfloat16,
    "boolean": torch.bool,
}
"""Torch's element type for each of OpenVINO's; four-bit integers are held in a byte each."""


class UnsupportedOpError(ModelError):
    """Error for an op that neither torch nor OpenVINO on the CPU runs by itself."""


class NotInTorch(Exception):  # noqa: N818 - no error: OpenVINO evaluates the op
    """Exception for a form of an op that torch does not run."""


@dataclass(frozen=True, eq=False)
class SourceOp:
    """An OpenVINO op, as builders read it; methods raise NotInTorch where the op is not of the form they ask for.

    Attributes:
        constants: Values on the CPU, by input port, of the inputs that depend on no input of the model.
    """

    node: ov.Node
    constants: Mapping[int, Tensor] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """Return the type of the op."""
        return str(self.node.get_type_name())

    @property
    def opset(self) -> str:
        """Return the opset of the op's type, such as ``opset1``."""
        return str(self.node.get_type_info().version_id)

    @property
    def label(self) -> str:
        """Return type, opset and name of the op, for messages of errors."""
        return f"{self.type} ({self.opset}) {self.node.get_friendly_name()!r}"

    @property
    def num_inputs(self) -> int:
        """Return the number of inputs."""
        return int(self.node.get_input_size())

    @property
    def takes_reals(self) -> bool:
        """Return whether the first input has a floating-point type."""
        return self.num_inputs > 0 and bool(self.node.get_input_element_type(0).is_real())

    def require(self, *conditions: object) -> None:
        """Raise NotInTorch unless all conditions are true."""
        if not all(conditions):
            raise NotInTorch

    def attribute(self, name: str) -> Any:
        """Return the value of an attribute as OpenVINO gives it. Raises NotInTorch if the op lacks it."""
        attributes = self.node.get_attributes()
        self.require(name in attributes)
        return attributes[name]

    def choice(self, name: str, *choices: str) -> str:
        """Return a textual attribute in lower case. Raises NotInTorch if it is not one of ``choices``."""
        value = str(self.attribute(name)).lower()
        self.require(value in choices)
        return value

    def shape(self, port: int = 0) -> Shape:
        """Return the shape of an input port. Raises NotInTorch if it is not fixed."""
        return self._fixed(self.node.get_input_partial_shape(port))

    def out_shape(self, port: int = 0) -> Shape:
        """Return the shape of an output port. Raises NotInTorch if it is not fixed."""
        return self._fixed(self.node.get_output_partial_shape(port))

    def _fixed(self, shape: ov.PartialShape) -> Shape:
        self.require(shape.is_static)
        return tuple(int(size) for size in shape.to_shape())

    def dtype(self, port: int = 0) -> torch.dtype:
        """Return torch's element type of an output port. Raises UnsupportedOpError if torch has none."""
        name = str(self.node.get_output_element_type(port).get_type_name())
        if name not in TORCH_TYPES:
            raise UnsupportedOpError(
                f"{self.label} has element type {name}; torch devices have {', '.join(TORCH_TYPES)}; "
                "place the model on OpenVINO's devices"
            )
        return TORCH_TYPES[name]

    def value(self, port: int) -> Any:
        """Return the value of an input port, a number or nested lists. Raises NotInTorch if it is not known."""
        self.require(port in self.constants)
        return self.constants[port].tolist()

    def axes(self, port: int = 1) -> Shape:
        """Return the axes of the first input that an input port lists, counted from the front."""
        return tuple(int(axis) % len(self.shape()) for axis in np.atleast_1d(self.value(port)))


def constant_tensor(node: ov.Node) -> Tensor:
    """Return a Constant's value on the CPU, in memory of its own; four-bit integers take a byte each.

    Raises UnsupportedOpError for an element type that torch lacks.
    """
    dtype, tensor = SourceOp(node).dtype(), node.get_tensor_view()
    if tensor.element_type.bitwidth == 4:
        packed, tensor = tensor, ov.Tensor(ov.Type.i8 if dtype is torch.int8 else ov.Type.u8, tensor.shape)
        opset13.convert(node, tensor.element_type.get_type_name()).evaluate([tensor], [packed])
    return _from_openvino(tensor, dtype)


def by_openvino(op: SourceOp) -> TensorFunction:
    """Return a function that runs an op compiled alone for OpenVINO's CPU device in f32, which is correct but slow.

    Raises UnsupportedOpError for an op with state, with an element type that torch lacks, or that does not compile.
    """
    if op.type in ("ReadValue", "Assign"):
        raise UnsupportedOpError(f"{op.label} keeps state, which torch devices do not run; use OpenVINO's devices")
    types = [op.dtype(port) for port in range(op.node.get_output_size())]
    ports = [port for port in range(op.num_inputs) if port not in op.constants]
    reads = {port: op.node.get_input_partial_shape(port) for port in ports}
    kinds = [source.get_node().get_type_name() for source in op.node.input_values()]
    reads |= {port: _as_openvino(x) for port, x in op.constants.items() if kinds[port] != "Constant"}
    try:
        compiled = ov.Core().compile_model(alone(op.node, reads), "CPU", {PRECISION: "f32"})
        request = compiled.create_infer_request()
    except RuntimeError as error:
        raise UnsupportedOpError(f"{op.label} runs neither in torch nor by itself on OpenVINO's CPU device") from error
    busy = threading.Lock()  # several executors may share the op

    def run(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with busy:
            request.infer([_as_openvino(xs[port]) for port in ports])
            results = [_from_openvino(request.get_output_tensor(k), dtype) for k, dtype in enumerate(types)]
        return tuple(x.to(xs[0].device) for x in results)

    return run


def _as_openvino(x: Tensor) -> ov.Tensor:
    plain = x.detach().cpu().contiguous()
    if plain.dtype is torch.bfloat16:  # which NumPy lacks
        return ov.Tensor(plain.view(torch.int16).numpy(), ov.Shape(list(x.shape)), ov.Type.bf16)
    return ov.Tensor(plain.numpy())


def _from_openvino(tensor: ov.Tensor, dtype: torch.dtype) -> Tensor:
    data = np.array(tensor.data)
    if dtype is torch.bfloat16:
        return torch.from_numpy(data.view(np.int16)).view(dtype)
    return torch.from_numpy(data).to(dtype)


PRODUCTS = frozenset({"MatMul", "Convolution", "GroupConvolution"})
"""Types of ops that a device may compute in another precision than f32."""

PRECISIONS: dict[str, torch.dtype | None] = {"f32": None, "tf32": None, "bf16": torch.bfloat16, "f16": torch.float16}
"""Torch's element type of each precision to which products may round f32 operands; None if they stay in f32 tensors."""


def with_rounded_operands(run: TensorFunction, precision: str) -> TensorFunction:
    """Return the function of a product with its f32 operands rounded to one of ``PRECISIONS``; its result stays f32."""
    if precision == "f32":
        return run
    dtype = PRECISIONS[precision]
    return partial(_in_tf32, run) if dtype is None else partial(_in_half, run, dtype)


def _in_tf32(run: TensorFunction, xs: Sequence[Tensor]) -> Sequence[Tensor]:
    allow_tf32(True)
    try:
        return run(xs)
    finally:
        allow_tf32(False)


def _in_half(run: TensorFunction, dtype: torch.dtype, xs: Sequence[Tensor]) -> Sequence[Tensor]:
    if all(x.dtype is not torch.float32 for x in xs):  # the model itself is in another precision
        return run(xs)
    rounded = run([x.to(dtype) if x.dtype is torch.float32 else x for x in xs])
    return [y.to(torch.float32) if y.dtype is dtype else y for y in rounded]


def allow_tf32(allowed: bool) -> None:
    """Set whether matrix products and convolutions on CUDA may round f32 operands to ten bits of mantissa.

    By default torch allows it for convolutions but not for products. Results agree with OpenVINO's f32 to 1e-4 only
    without it. The setting holds for the whole process.
    """
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
