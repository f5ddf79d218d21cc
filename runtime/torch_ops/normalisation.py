"""Normalisations: MVN, BatchNormInference, GroupNormalization, NormalizeL2, LRN.

Legend: N batch, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import openvino as ov
import torch
from torch.nn import functional

from hsdag.runtime.torch_ops.base import (
    Builder,
    Shape,
    Tensor,
    TorchOp,
    attribute,
    axis_indices,
    choice,
    input_shape,
    of_floats,
    unsupported,
)
from hsdag.runtime.torch_ops.static_values import static_input


def _mvn(node: ov.Node) -> TorchOp:
    """Less the mean; over the deviation too where the op says so. Trailing axes go to one kernel."""
    shape, eps = input_shape(node), float(attribute(node, "eps"))
    axes, inside = _mvn_axes(node, shape)
    normalise = bool(attribute(node, "normalize_variance"))
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


def _mvn_axes(node: ov.Node, shape: Shape) -> tuple[Shape, bool]:
    """The axes to normalise over, and whether epsilon lies inside the root."""
    if node.get_input_size() == 1:  # opset 2
        return tuple(int(axis) for axis in attribute(node, "reduction_axes")), True
    inside = choice(node, "eps_mode", ("inside_sqrt", "outside_sqrt")) == "inside_sqrt"
    return axis_indices(static_input(node, 1, "axes"), len(shape)), inside


def _batch_norm(node: ov.Node) -> TorchOp:
    """Data [N, C, ...]; scale, shift, mean and variance [C]. Opset 1 has the data third."""
    eps = float(attribute(node, "epsilon"))
    data = 2 if node.get_type_info().version_id == "opset1" else 0

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        scale, shift, mean, variance = (x for port, x in enumerate(xs) if port != data)
        return (functional.batch_norm(xs[data], mean, variance, scale, shift, eps=eps),)

    return run


def _group_norm(node: ov.Node) -> TorchOp:
    """Data [N, C, ...]; scale and shift [C]."""
    groups, eps = int(attribute(node, "num_groups")), float(attribute(node, "epsilon"))
    return lambda xs: (functional.group_norm(xs[0], groups, xs[1], xs[2], eps),)


def _normalize_l2(node: ov.Node) -> TorchOp:
    axes = axis_indices(static_input(node, 1, "axes"), len(input_shape(node)))
    eps, adds = float(attribute(node, "eps")), choice(node, "eps_mode", ("add", "max")) == "add"

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        squares = xs[0] * xs[0]
        total = torch.sum(squares, axes, keepdim=True) if axes else squares
        return (xs[0] / torch.sqrt(total + eps if adds else torch.clamp(total, min=eps)),)

    return run


def _lrn(node: ov.Node) -> TorchOp:
    """x / (bias + alpha / size^axes * sum of squares)^beta, over (size - 1) // 2 neighbours on each side of an axis."""
    shape = input_shape(node)
    axes = axis_indices(static_input(node, 1, "axes"), len(shape))
    if not 1 <= len(axes) <= 3:
        raise unsupported(node, f"{len(axes)} axes", "one to three")
    alpha, beta, bias = (float(attribute(node, name)) for name in ("alpha", "beta", "bias"))
    size = int(attribute(node, "size"))
    half = (size - 1) // 2
    factor = alpha * ((2 * half + 1) / size) ** len(axes)  # an even size has a smaller window, of size - 1
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    order = (*kept, *axes)
    back = tuple(order.index(axis) for axis in range(len(shape)))
    planes = (prod(shape[axis] for axis in kept), 1, *(shape[axis] for axis in axes))
    pool = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[len(axes) - 1]
    pads = [half, half] * len(axes)

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        squares = (xs[0] * xs[0]).permute(order)
        mean = pool(functional.pad(squares.reshape(planes), pads), (2 * half + 1,) * len(axes), 1)
        return (xs[0] / (bias + factor * mean.reshape(squares.shape).permute(back)) ** beta,)

    return run


BUILDERS: dict[str, Builder] = {
    "MVN": of_floats(_mvn),
    "BatchNormInference": of_floats(_batch_norm),
    "GroupNormalization": of_floats(_group_norm),
    "NormalizeL2": of_floats(_normalize_l2),
    "LRN": of_floats(_lrn),
}
