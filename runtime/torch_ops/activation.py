"""Ops of one operand, element by element: activations, roundings, elementary functions, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import openvino as ov
import torch
from torch.nn import functional

from hsdag.runtime.torch_ops.base import Builder, Tensor, TorchOp, attribute, choice, output_type, require_float

Unary = Callable[[Tensor], Tensor]


def _unary(function: Unary) -> Builder:
    return lambda _: lambda xs: (function(xs[0]),)


def _float_unary(function: Unary) -> Builder:
    """Of a function that torch would turn integers into floats for."""

    def build(node: ov.Node) -> TorchOp:
        require_float(node)
        return lambda xs: (function(xs[0]),)

    return build


def _gelu(node: ov.Node) -> TorchOp:
    require_float(node)
    if node.get_type_info().version_id == "opset2":
        return lambda xs: (functional.gelu(xs[0]),)
    mode = {"erf": "none", "tanh": "tanh"}[choice(node, "approximation_mode", ("erf", "tanh"))]
    return lambda xs: (functional.gelu(xs[0], approximate=mode),)


def _clamp(node: ov.Node) -> TorchOp:
    """Limits of integers are rounded into the interval."""
    low, high = float(attribute(node, "min")), float(attribute(node, "max"))
    if node.get_output_element_type(0).is_real():
        return lambda xs: (torch.clamp(xs[0], low, high),)
    limits = np.iinfo(node.get_output_element_type(0).to_dtype())
    first = int(limits.min) if low <= limits.min else math.ceil(low)
    last = int(limits.max) if high >= limits.max else math.floor(high)
    return lambda xs: (torch.clamp(xs[0], first, last),)


def _elu(node: ov.Node) -> TorchOp:
    require_float(node)
    alpha = float(attribute(node, "alpha"))
    return lambda xs: (functional.elu(xs[0], alpha),)


def _round(node: ov.Node) -> TorchOp:
    if not node.get_output_element_type(0).is_real():
        return lambda xs: (xs[0],)
    mode = choice(node, "mode", ("half_to_even", "half_away_from_zero"))
    if mode == "half_to_even":
        return lambda xs: (torch.round(xs[0]),)
    return lambda xs: (torch.trunc(xs[0] + torch.copysign(torch.full_like(xs[0], 0.5), xs[0])),)


def _is_inf(node: ov.Node) -> TorchOp:
    negative, positive = bool(attribute(node, "detect_negative")), bool(attribute(node, "detect_positive"))
    if negative and positive:
        return lambda xs: (torch.isinf(xs[0]),)
    if positive:
        return lambda xs: (torch.isposinf(xs[0]),)
    if negative:
        return lambda xs: (torch.isneginf(xs[0]),)
    return lambda xs: (torch.zeros_like(xs[0], dtype=torch.bool),)


def _convert(node: ov.Node) -> TorchOp:
    """Numbers are cut towards zero; anything but zero is true."""
    dtype = output_type(node)
    if dtype is torch.bool:
        return lambda xs: (xs[0] != 0,)
    return lambda xs: (xs[0].to(dtype),)


BUILDERS: dict[str, Builder] = {
    "Relu": _unary(torch.relu),
    "Sigmoid": _float_unary(torch.sigmoid),
    "Tanh": _float_unary(torch.tanh),
    "Gelu": _gelu,
    "Exp": _float_unary(torch.exp),
    "Log": _float_unary(torch.log),
    "Sqrt": _float_unary(torch.sqrt),
    "Erf": _float_unary(torch.erf),
    "Abs": _unary(torch.abs),
    "Negative": _unary(torch.neg),
    "Sign": _unary(torch.sign),
    "Floor": _unary(torch.floor),
    "Ceiling": _unary(torch.ceil),
    "Round": _round,
    "Clamp": _clamp,
    "Elu": _elu,
    "HSwish": _float_unary(functional.hardswish),
    "HSigmoid": _float_unary(functional.hardsigmoid),
    "SoftPlus": _float_unary(functional.softplus),
    "SoftSign": _float_unary(functional.softsign),
    "Mish": _float_unary(functional.mish),
    "Sin": _float_unary(torch.sin),
    "Cos": _float_unary(torch.cos),
    "Tan": _float_unary(torch.tan),
    "Asin": _float_unary(torch.asin),
    "Acos": _float_unary(torch.acos),
    "Atan": _float_unary(torch.atan),
    "Sinh": _float_unary(torch.sinh),
    "Cosh": _float_unary(torch.cosh),
    "Asinh": _float_unary(torch.asinh),
    "Acosh": _float_unary(torch.acosh),
    "Atanh": _float_unary(torch.atanh),
    "LogicalNot": _unary(torch.logical_not),
    "BitwiseNot": _unary(torch.bitwise_not),
    "IsNaN": _float_unary(torch.isnan),
    "IsFinite": _float_unary(torch.isfinite),
    "IsInf": _is_inf,
    "Convert": _convert,
    "ConvertLike": _convert,
    "Identity": _unary(lambda x: x),
}
