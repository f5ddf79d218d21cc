"""Ops element by element: activations, roundings, arithmetic, comparisons, logic, conversions; and Softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn import functional

from hsdag.runtime.torch_ops.base import Builder, Op, Tensor, TorchOp, of_floats, operands_to

SAME_IN_TORCH = "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf Exp IsFinite IsNaN Log Sigmoid Sin Sinh Sqrt Tan Tanh"
"""Types of ops on floats that torch has under the same name in lower case."""


def _broadcast(function: Callable[..., Tensor]) -> Builder:
    def build(op: Op) -> TorchOp:
        _check_broadcast(op)
        return lambda xs: (function(*xs),)

    return build


def _check_broadcast(op: Op) -> None:
    op.choice("auto_broadcast", "numpy", "none")


def _gelu(op: Op) -> TorchOp:
    if op.opset == "opset2":
        return lambda xs: (functional.gelu(xs[0]),)
    mode = {"erf": "none", "tanh": "tanh"}[op.choice("approximation_mode", "erf", "tanh")]
    return lambda xs: (functional.gelu(xs[0], approximate=mode),)


def _clamp(op: Op) -> TorchOp:
    """Limits of integers are rounded into the interval."""
    low, high = float(op.attribute("min")), float(op.attribute("max"))
    if op.gives_reals:
        return lambda xs: (torch.clamp(xs[0], low, high),)
    limits = np.iinfo(op.node.get_output_element_type(0).to_dtype())
    first = int(limits.min) if low <= limits.min else math.ceil(low)
    last = int(limits.max) if high >= limits.max else math.floor(high)
    return lambda xs: (torch.clamp(xs[0], first, last),)


def _elu(op: Op) -> TorchOp:
    alpha = float(op.attribute("alpha"))
    return lambda xs: (functional.elu(xs[0], alpha),)


def _round(op: Op) -> TorchOp:
    if not op.gives_reals:
        return lambda xs: (xs[0],)
    if op.choice("mode", "half_to_even", "half_away_from_zero") == "half_to_even":
        return lambda xs: (torch.round(xs[0]),)
    return lambda xs: (torch.trunc(xs[0] + torch.copysign(torch.full_like(xs[0], 0.5), xs[0])),)


def _is_inf(op: Op) -> TorchOp:
    negative, positive = bool(op.attribute("detect_negative")), bool(op.attribute("detect_positive"))
    if negative and positive:
        return lambda xs: (torch.isinf(xs[0]),)
    if positive:
        return lambda xs: (torch.isposinf(xs[0]),)
    if negative:
        return lambda xs: (torch.isneginf(xs[0]),)
    return lambda xs: (torch.zeros_like(xs[0], dtype=torch.bool),)


def _convert(op: Op) -> TorchOp:
    """Numbers are cut towards zero; anything but zero is true."""
    dtype = op.output_type()
    if dtype is torch.bool:
        return lambda xs: (xs[0] != 0,)
    return lambda xs: (xs[0].to(dtype),)


def _softmax(op: Op) -> TorchOp:
    axis = int(op.attribute("axis"))
    function = torch.log_softmax if op.type == "LogSoftmax" else torch.softmax
    return lambda xs: (function(xs[0], axis),)


def _divide(op: Op) -> TorchOp:
    """Integers are rounded down, or towards zero where the op does not ask for Python's way."""
    _check_broadcast(op)
    if op.gives_reals:
        return lambda xs: (torch.div(xs[0], xs[1]),)
    rounding = "floor" if op.attribute("m_pythondiv") else "trunc"
    return lambda xs: (torch.div(xs[0], xs[1], rounding_mode=rounding),)


def _hard_sigmoid(x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return torch.clamp(x * alpha + beta, 0, 1)


def _selu(x: Tensor, alpha: Tensor, scale: Tensor) -> Tensor:
    return scale * torch.where(x > 0, x, alpha * torch.expm1(x))


def _swish(op: Op) -> TorchOp:
    if op.num_inputs == 1:
        return lambda xs: (functional.silu(xs[0]),)
    return lambda xs: (xs[0] * torch.sigmoid(xs[0] * xs[1]),)


def _prelu(op: Op) -> TorchOp:
    """A slope of one axis lies along the channels where it fits there."""
    shape, slope_shape = op.input_shape(), op.input_shape(1)
    if len(slope_shape) == 1 and len(shape) > 1 and slope_shape[0] == shape[1]:
        slope_shape = (slope_shape[0], *(1,) * (len(shape) - 2))
    return lambda xs: (torch.where(xs[0] > 0, xs[0], xs[0] * xs[1].reshape(slope_shape)),)


def _fake_quantize(op: Op) -> TorchOp:
    """Data, the limits of the input and those of the output, which broadcast to the data.

    The input's limits may be equal, which leaves the output's limits alone, or come in reverse.
    """
    _check_broadcast(op)
    steps = int(op.attribute("levels")) - 1

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x, in_low, in_high, out_low, out_high = xs
        low, high = torch.minimum(in_low, in_high), torch.maximum(in_low, in_high)
        level = torch.round((x - in_low) / (in_high - in_low) * steps)
        inner = level / steps * (out_high - out_low) + out_low
        return (torch.where(x <= low, out_low, torch.where(x > high, out_high, inner)),)

    return run


BUILDERS: dict[str, Builder] = {
    **{name: of_floats(operands_to(getattr(torch, name.lower()))) for name in SAME_IN_TORCH.split()},
    "Relu": operands_to(torch.relu),
    "Gelu": of_floats(_gelu),
    "Abs": operands_to(torch.abs),
    "Negative": operands_to(torch.neg),
    "Sign": operands_to(torch.sign),
    "Floor": operands_to(torch.floor),
    "Ceiling": operands_to(torch.ceil),
    "Round": _round,
    "Clamp": _clamp,
    "Elu": of_floats(_elu),
    "HSwish": of_floats(operands_to(functional.hardswish)),
    "HSigmoid": of_floats(operands_to(functional.hardsigmoid)),
    "SoftPlus": of_floats(operands_to(functional.softplus)),
    "SoftSign": of_floats(operands_to(functional.softsign)),
    "Mish": of_floats(operands_to(functional.mish)),
    "LogicalNot": operands_to(torch.logical_not),
    "BitwiseNot": operands_to(torch.bitwise_not),
    "IsInf": _is_inf,
    "Convert": _convert,
    "ConvertLike": _convert,
    "Softmax": of_floats(_softmax),
    "LogSoftmax": of_floats(_softmax),
    "Identity": operands_to(lambda x: x),
    "Add": _broadcast(torch.add),
    "Subtract": _broadcast(torch.sub),
    "Multiply": _broadcast(torch.mul),
    "Divide": _divide,
    "Maximum": _broadcast(torch.maximum),
    "Minimum": _broadcast(torch.minimum),
    "Power": _broadcast(torch.pow),
    "Mod": _broadcast(torch.fmod),
    "FloorMod": _broadcast(torch.remainder),
    "SquaredDifference": _broadcast(lambda a, b: torch.square(a - b)),
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
