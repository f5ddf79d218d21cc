"""Reductions over constant axes, and the normalisations that rest on them.

Legend: N batch, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch.nn import functional

from hsdag.runtime.torch_ops.base import Builder, Op, Shape, Tensor, TorchOp, of_floats

Reduction = Callable[[Tensor, Shape, bool], Tensor]


def _reduction(function: Reduction) -> Builder:
    def build(op: Op) -> TorchOp:
        axes = op.known_axes()
        keep = bool(op.attribute("keep_dims"))
        if not axes:  # torch would reduce all
            return lambda xs: (xs[0],)
        return lambda xs: (function(xs[0], axes, keep),)

    return build


def _sum(x: Tensor, axes: Shape, keep: bool) -> Tensor:
    """Integers of 8 and 16 bits stop at the ends of their range, as on OpenVINO's CPU device."""
    if x.is_floating_point():
        return torch.sum(x, axes, keep, dtype=x.dtype)
    total = torch.sum(x, axes, keep, dtype=torch.int64)
    if x.dtype.itemsize <= 2:
        limits = torch.iinfo(x.dtype)
        total = total.clamp(limits.min, limits.max)
    return total.to(x.dtype)


def _mean(x: Tensor, axes: Shape, keep: bool) -> Tensor:
    """Integers are summed in 64 bits and cut towards zero, so that the mean is one.

    OpenVINO's CPU device lets the sum of 8-bit integers stop at the end of their range before it divides: it gives
    255 / 3 = 85 as the mean of 200, 200 and 100. Where the sum fits both agree.
    """
    if x.is_floating_point():
        return torch.mean(x, axes, keep)
    total = torch.sum(x, axes, keep, dtype=torch.int64)
    return torch.div(total, prod(x.shape[axis] for axis in axes), rounding_mode="trunc").to(x.dtype)


def _prod(x: Tensor, axes: Shape, keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):  # torch multiplies along one axis at a time
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _mvn(op: Op) -> TorchOp:
    """Less the mean; over the deviation too where the op says so. Trailing axes go to one kernel."""
    shape, eps = op.input_shape(), float(op.attribute("eps"))
    axes, inside = _mvn_axes(op)
    normalise = bool(op.attribute("normalize_variance"))
    if normalise and inside and sorted(axes) == list(range(len(shape) - len(axes), len(shape))):
        tail = shape[len(shape) - len(axes) :]
        return lambda xs: (functional.layer_norm(xs[0], tail, eps=eps),)

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        centred = xs[0] - torch.mean(xs[0], axes, keepdim=True)
        if not normalise:
            return (centred,)
        variance = torch.mean(centred * centred, axes, keepdim=True)
        return (centred / (torch.sqrt(variance + eps) if inside else torch.sqrt(variance) + eps),)

    return run


def _mvn_axes(op: Op) -> tuple[Shape, bool]:
    """The axes to normalise over, and whether epsilon lies inside the root."""
    if op.num_inputs == 1:  # opset 2
        return tuple(int(axis) for axis in op.attribute("reduction_axes")), True
    inside = op.choice("eps_mode", "inside_sqrt", "outside_sqrt") == "inside_sqrt"
    return op.known_axes(), inside


def _batch_norm(op: Op) -> TorchOp:
    """Data [N, C, ...]; scale, shift, mean and variance [C]. Opset 1 has the data third."""
    eps = float(op.attribute("epsilon"))
    data = 2 if op.opset == "opset1" else 0

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        scale, shift, mean, variance = (x for port, x in enumerate(xs) if port != data)
        return (functional.batch_norm(xs[data], mean, variance, scale, shift, eps=eps),)

    return run


def _group_norm(op: Op) -> TorchOp:
    """Data [N, C, ...]; scale and shift [C]."""
    groups, eps = int(op.attribute("num_groups")), float(op.attribute("epsilon"))
    return lambda xs: (functional.group_norm(xs[0], groups, xs[1], xs[2], eps),)


def _normalize_l2(op: Op) -> TorchOp:
    axes = op.known_axes()
    eps, adds = float(op.attribute("eps")), op.choice("eps_mode", "add", "max") == "add"

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        squares = xs[0] * xs[0]
        total = torch.sum(squares, axes, keepdim=True) if axes else squares
        return (xs[0] / torch.sqrt(total + eps if adds else torch.clamp(total, min=eps)),)

    return run


def _lrn(op: Op) -> TorchOp:
    """x / (bias + alpha / size^axes * sum of squares)^beta, over (size - 1) // 2 neighbours on each side of an axis."""
    shape = op.input_shape()
    axes = op.known_axes()
    pool = op.for_axes(axes, functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)
    alpha, beta, bias = (float(op.attribute(name)) for name in ("alpha", "beta", "bias"))
    size = int(op.attribute("size"))
    half = (size - 1) // 2
    factor = alpha * ((2 * half + 1) / size) ** len(axes)  # an even size has a smaller window, of size - 1
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    order = (*kept, *axes)
    back = tuple(order.index(axis) for axis in range(len(shape)))
    planes = (prod(shape[axis] for axis in kept), 1, *(shape[axis] for axis in axes))
    pads = [half, half] * len(axes)

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        squares = (xs[0] * xs[0]).permute(order)
        mean = pool(functional.pad(squares.reshape(planes), pads), (2 * half + 1,) * len(axes), 1)
        return (xs[0] / (bias + factor * mean.reshape(squares.shape).permute(back)) ** beta,)

    return run


BUILDERS: dict[str, Builder] = {
    "ReduceSum": _reduction(_sum),
    "ReduceMean": _reduction(_mean),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMin": _reduction(torch.amin),
    "ReduceProd": _reduction(_prod),
    "ReduceL1": of_floats(_reduction(lambda x, axes, keep: torch.sum(torch.abs(x), axes, keep))),
    "ReduceL2": of_floats(_reduction(lambda x, axes, keep: torch.sqrt(torch.sum(x * x, axes, keep)))),
    "ReduceLogicalAnd": _reduction(torch.all),
    "ReduceLogicalOr": _reduction(torch.any),
    "MVN": of_floats(_mvn),
    "BatchNormInference": of_floats(_batch_norm),
    "GroupNormalization": of_floats(_group_norm),
    "NormalizeL2": of_floats(_normalize_l2),
    "LRN": of_floats(_lrn),
}
