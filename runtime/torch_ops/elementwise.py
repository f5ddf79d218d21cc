"""Ops of two or three operands, element by element: arithmetic, comparisons, logic, Select."""

from __future__ import annotations

from collections.abc import Callable

import openvino as ov
import torch

from hsdag.runtime.torch_ops.base import Builder, Tensor, TorchOp, attribute, choice, require_float

Binary = Callable[[Tensor, Tensor], Tensor]


def _binary(function: Binary) -> Builder:
    def build(node: ov.Node) -> TorchOp:
        _check_broadcast(node)
        return lambda xs: (function(xs[0], xs[1]),)

    return build


def _divide(node: ov.Node) -> TorchOp:
    """Integers are rounded down, or towards zero where the op does not ask for Python's way."""
    _check_broadcast(node)
    if node.get_output_element_type(0).is_real():
        return lambda xs: (torch.div(xs[0], xs[1]),)
    rounding = "floor" if attribute(node, "m_pythondiv") else "trunc"
    return lambda xs: (torch.div(xs[0], xs[1], rounding_mode=rounding),)


def _select(node: ov.Node) -> TorchOp:
    _check_broadcast(node)
    return lambda xs: (torch.where(xs[0], xs[1], xs[2]),)


def _squared_difference(a: Tensor, b: Tensor) -> Tensor:
    difference = a - b
    return difference * difference


def _hard_sigmoid(node: ov.Node) -> TorchOp:
    require_float(node)
    return lambda xs: (torch.clamp(xs[0] * xs[1] + xs[2], 0, 1),)


def _selu(node: ov.Node) -> TorchOp:
    require_float(node)
    return lambda xs: (xs[2] * torch.where(xs[0] > 0, xs[0], xs[1] * torch.expm1(xs[0])),)


def _swish(node: ov.Node) -> TorchOp:
    require_float(node)
    if node.get_input_size() == 1:
        return lambda xs: (torch.nn.functional.silu(xs[0]),)
    return lambda xs: (xs[0] * torch.sigmoid(xs[0] * xs[1]),)


def _prelu(node: ov.Node) -> TorchOp:
    """A slope of one axis lies along the channels where it fits there."""
    shape = tuple(node.get_input_shape(0))
    slope_shape = tuple(node.get_input_shape(1))
    if len(slope_shape) == 1 and len(shape) > 1 and slope_shape[0] == shape[1]:
        slope_shape = (slope_shape[0], *(1,) * (len(shape) - 2))
    return lambda xs: (torch.where(xs[0] > 0, xs[0], xs[0] * xs[1].reshape(slope_shape)),)


def _check_broadcast(node: ov.Node) -> None:
    choice(node, "auto_broadcast", ("numpy", "none"))


BUILDERS: dict[str, Builder] = {
    "Add": _binary(torch.add),
    "Subtract": _binary(torch.sub),
    "Multiply": _binary(torch.mul),
    "Divide": _divide,
    "Maximum": _binary(torch.maximum),
    "Minimum": _binary(torch.minimum),
    "Power": _binary(torch.pow),
    "Mod": _binary(torch.fmod),
    "FloorMod": _binary(torch.remainder),
    "SquaredDifference": _binary(_squared_difference),
    "Equal": _binary(torch.eq),
    "NotEqual": _binary(torch.ne),
    "Greater": _binary(torch.gt),
    "GreaterEqual": _binary(torch.ge),
    "Less": _binary(torch.lt),
    "LessEqual": _binary(torch.le),
    "LogicalAnd": _binary(torch.logical_and),
    "LogicalOr": _binary(torch.logical_or),
    "LogicalXor": _binary(torch.logical_xor),
    "BitwiseAnd": _binary(torch.bitwise_and),
    "BitwiseOr": _binary(torch.bitwise_or),
    "BitwiseXor": _binary(torch.bitwise_xor),
    "Select": _select,
    "HardSigmoid": _hard_sigmoid,
    "Selu": _selu,
    "Swish": _swish,
    "PRelu": _prelu,
}
