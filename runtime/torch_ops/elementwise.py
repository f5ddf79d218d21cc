"""Ops of several operands, element by element: arithmetic, comparisons, logic, Select, FakeQuantize."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import openvino as ov
import torch

from hsdag.runtime.torch_ops.base import Builder, Tensor, TorchOp, attribute, choice, of_floats, operands_to


def _broadcast(function: Callable[..., Tensor]) -> Builder:
    def build(node: ov.Node) -> TorchOp:
        _check_broadcast(node)
        return lambda xs: (function(*xs),)

    return build


def _divide(node: ov.Node) -> TorchOp:
    """Integers are rounded down, or towards zero where the op does not ask for Python's way."""
    _check_broadcast(node)
    if node.get_output_element_type(0).is_real():
        return lambda xs: (torch.div(xs[0], xs[1]),)
    rounding = "floor" if attribute(node, "m_pythondiv") else "trunc"
    return lambda xs: (torch.div(xs[0], xs[1], rounding_mode=rounding),)


def _squared_difference(a: Tensor, b: Tensor) -> Tensor:
    difference = a - b
    return difference * difference


def _hard_sigmoid(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return torch.clamp(x * alpha + beta, 0, 1)


def _selu(x: Tensor, alpha: Tensor, scale: Tensor) -> Tensor:
    return scale * torch.where(x > 0, x, alpha * torch.expm1(x))


def _swish(node: ov.Node) -> TorchOp:
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


def _fake_quantize(node: ov.Node) -> TorchOp:
    """Data, the limits of the input and those of the output, which broadcast to the data.

    The input's limits may be equal, which leaves the output's limits alone, or come in reverse.
    """
    _check_broadcast(node)
    steps = int(attribute(node, "levels")) - 1

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x, in_low, in_high, out_low, out_high = xs
        low, high = torch.minimum(in_low, in_high), torch.maximum(in_low, in_high)
        level = torch.round((x - in_low) / (in_high - in_low) * steps)
        inner = level / steps * (out_high - out_low) + out_low
        return (torch.where(x <= low, out_low, torch.where(x > high, out_high, inner)),)

    return run


def _check_broadcast(node: ov.Node) -> None:
    choice(node, "auto_broadcast", ("numpy", "none"))


BUILDERS: dict[str, Builder] = {
    "Add": _broadcast(torch.add),
    "Subtract": _broadcast(torch.sub),
    "Multiply": _broadcast(torch.mul),
    "Divide": _divide,
    "Maximum": _broadcast(torch.maximum),
    "Minimum": _broadcast(torch.minimum),
    "Power": _broadcast(torch.pow),
    "Mod": _broadcast(torch.fmod),
    "FloorMod": _broadcast(torch.remainder),
    "SquaredDifference": _broadcast(_squared_difference),
    "Equal": _broadcast(torch.eq),
    "NotEqual": _broadcast(torch.ne),
    "Greater": _broadcast(torch.gt),
    "GreaterEqual": _broadcast(torch.ge),
    "Less": _broadcast(torch.lt),
    "LessEqual": _broadcast(torch.le),
    "LogicalAnd": _broadcast(torch.logical_and),
    "LogicalOr": _broadcast(torch.logical_or),
    "LogicalXor": _broadcast(torch.logical_xor),
    "BitwiseAnd": _broadcast(torch.bitwise_and),
    "BitwiseOr": _broadcast(torch.bitwise_or),
    "BitwiseXor": _broadcast(torch.bitwise_xor),
    "Select": _broadcast(torch.where),
    "HardSigmoid": of_floats(operands_to(_hard_sigmoid)),
    "Selu": of_floats(operands_to(_selu)),
    "Swish": of_floats(_swish),
    "PRelu": _prelu,
    "FakeQuantize": of_floats(_fake_quantize),
}
