"""Reductions over constant axes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import openvino as ov
import torch

from hsdag.runtime.torch_ops.base import (
    Builder,
    Shape,
    Tensor,
    TorchOp,
    attribute,
    axis_indices,
    input_shape,
    of_floats,
)
from hsdag.runtime.torch_ops.static_values import static_input

Reduction = Callable[[Tensor, Shape, bool], Tensor]


def _reduction(function: Reduction) -> Builder:
    def build(node: ov.Node) -> TorchOp:
        axes = axis_indices(static_input(node, 1, "axes"), len(input_shape(node)))
        keep = bool(attribute(node, "keep_dims"))
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
}
