"""Ops of one operand, element by element: activations, roundings, elementary functions, conversions; and Softmax."""

from __future__ import annotations

import math

import numpy as np
import openvino as ov
import torch
from torch.nn import functional

from hsdag.runtime.torch_ops.base import Builder, TorchOp, attribute, choice, of_floats, operands_to, output_type


def _gelu(node: ov.Node) -> TorchOp:
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


def _softmax(node: ov.Node) -> TorchOp:
    axis = int(attribute(node, "axis"))
    function = torch.log_softmax if node.get_type_name() == "LogSoftmax" else torch.softmax
    return lambda xs: (function(xs[0], axis),)


BUILDERS: dict[str, Builder] = {
    "Relu": operands_to(torch.relu),
    "Sigmoid": of_floats(operands_to(torch.sigmoid)),
    "Tanh": of_floats(operands_to(torch.tanh)),
    "Gelu": of_floats(_gelu),
    "Exp": of_floats(operands_to(torch.exp)),
    "Log": of_floats(operands_to(torch.log)),
    "Sqrt": of_floats(operands_to(torch.sqrt)),
    "Erf": of_floats(operands_to(torch.erf)),
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
    "Sin": of_floats(operands_to(torch.sin)),
    "Cos": of_floats(operands_to(torch.cos)),
    "Tan": of_floats(operands_to(torch.tan)),
    "Asin": of_floats(operands_to(torch.asin)),
    "Acos": of_floats(operands_to(torch.acos)),
    "Atan": of_floats(operands_to(torch.atan)),
    "Sinh": of_floats(operands_to(torch.sinh)),
    "Cosh": of_floats(operands_to(torch.cosh)),
    "Asinh": of_floats(operands_to(torch.asinh)),
    "Acosh": of_floats(operands_to(torch.acosh)),
    "Atanh": of_floats(operands_to(torch.atanh)),
    "LogicalNot": operands_to(torch.logical_not),
    "BitwiseNot": operands_to(torch.bitwise_not),
    "IsNaN": of_floats(operands_to(torch.isnan)),
    "IsFinite": of_floats(operands_to(torch.isfinite)),
    "IsInf": _is_inf,
    "Convert": _convert,
    "ConvertLike": _convert,
    "Softmax": of_floats(_softmax),
    "LogSoftmax": of_floats(_softmax),
    "Identity": operands_to(lambda x: x),
}
