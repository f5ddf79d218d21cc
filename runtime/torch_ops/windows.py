"""Convolutions and poolings: Convolution, GroupConvolution and their transposed forms, MaxPool, AvgPool.

Legend: N batch, C channels in, O channels out, G groups, S spatial axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

import numpy as np
import torch
from torch.nn import functional

from hsdag.runtime.torch_ops.base import Builder, DeviceCopies, Op, Shape, Tensor, TorchOp, axis_index, of_floats, sides

AUTO_PADS = ("explicit", "notset", "same_upper", "same_lower", "valid")
CONVOLUTIONS = (functional.conv1d, functional.conv2d, functional.conv3d)
TRANSPOSED = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
MAX_POOLS = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
AVG_POOLS = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)


@dataclass(frozen=True)
class Windows:
    """Where windows lie along each spatial axis. Every tuple is [S].

    ``end`` pads just as far as the last window reaches, and is negative where that is short.
    """

    kernel: Shape
    strides: Shape
    dilations: Shape
    begin: Shape
    end: Shape

    @staticmethod
    def of(op: Op, kernel: Shape) -> Windows:
        """Those of an op with strides, pads and perhaps dilations."""
        op.choice("auto_pad", *AUTO_PADS)
        strides = tuple(op.attribute("strides"))
        dilations = tuple(op.node.get_attributes().get("dilations", (1,) * len(kernel)))
        begin = tuple(op.attribute("pads_begin"))  # OpenVINO has put in what auto_pad asks for
        sizes = zip(op.input_shape()[2:], op.output_shape()[2:], kernel, strides, dilations, begin, strict=True)
        end = tuple((out - 1) * stride + (k - 1) * step + 1 - size - pad for size, out, k, stride, step, pad in sizes)
        return Windows(kernel, strides, dilations, begin, end)

    @property
    def are_even(self) -> bool:
        """Whether torch's own padding, the same on both sides, gives these windows."""
        return all(e <= b and b - e < stride for b, e, stride in zip(self.begin, self.end, self.strides, strict=True))

    @property
    def are_even_for_pools(self) -> bool:
        """The same for poolings, which torch pads at most by half a window."""
        return self.are_even and all(2 * b <= k for b, k in zip(self.begin, self.kernel, strict=True))

    def padded(self, x: Tensor, value: float = 0.0) -> Tensor:
        """The tensor with ``value`` around it, or cut where windows end before it does."""
        return functional.pad(x, sides(self.begin, self.end), value=value) if any((*self.begin, *self.end)) else x


def _groups(op: Op) -> tuple[int, Shape]:
    """How many groups, and the weights' shape as torch has it."""
    shape = op.input_shape(1)
    return (shape[0], (shape[0] * shape[1], *shape[2:])) if op.type.startswith("Group") else (1, shape)


def _convolution(op: Op) -> TorchOp:
    """Data [N, C, S...] and weights [O, C, S...], or [G, O / G, C / G, S...] of a GroupConvolution."""
    groups, weight_shape = _groups(op)
    windows = Windows.of(op, weight_shape[2:])
    convolve = op.for_axes(windows.kernel, *CONVOLUTIONS)
    even = windows.are_even
    padding = windows.begin if even else 0

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x = xs[0] if even else windows.padded(xs[0])
        weight = xs[1].reshape(weight_shape)
        result = convolve(x, weight, stride=windows.strides, padding=padding, dilation=windows.dilations, groups=groups)
        return (result,)

    return run


def _transposed(op: Op) -> TorchOp:
    """Data [N, C, S...] and weights [C, O, S...], or [G, C / G, O / G, S...]: the whole result, cut to its pads."""
    op.choice("auto_pad", *AUTO_PADS)
    groups, weight_shape = _groups(op)
    strides, dilations = tuple(op.attribute("strides")), tuple(op.attribute("dilations"))
    convolve = op.for_axes(strides, *TRANSPOSED)
    sizes = zip(op.input_shape()[2:], weight_shape[2:], strides, dilations, strict=True)
    whole = [(size - 1) * stride + (k - 1) * step + 1 for size, k, stride, step in sizes]
    begin = [int(pad) for pad in op.attribute("pads_begin")]
    end = [pad + kept - size for pad, kept, size in zip(begin, op.output_shape()[2:], whole, strict=True)]
    pads = sides([-pad for pad in begin], end)

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x = convolve(xs[0], xs[1].reshape(weight_shape), stride=strides, dilation=dilations, groups=groups)
        return (functional.pad(x, pads) if any(pads) else x,)

    return run


def _max_pool(op: Op) -> TorchOp:
    """Values [N, C, S...] and, from opset 8 on, where they lay in the input flattened from ``axis`` on."""
    windows = _pool_windows(op)
    pool = op.for_axes(windows.kernel, *MAX_POOLS)
    gives_indices = op.node.get_output_size() == 2
    if gives_indices and op.node.output(1).get_target_inputs():
        return _max_pool_with_indices(op, windows)
    even = windows.are_even_for_pools
    padding = windows.begin if even else 0
    unread = op.output_type(1) if gives_indices else None

    def run(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x = xs[0] if even else windows.padded(xs[0], -torch.inf)
        values = pool(x, windows.kernel, windows.strides, padding, windows.dilations)
        return (values,) if unread is None else (values, torch.empty(0, dtype=unread, device=x.device))

    return run


def _max_pool_with_indices(op: Op, windows: Windows) -> TorchOp:
    pool = op.for_axes(windows.kernel, *MAX_POOLS)
    axis = axis_index(int(op.attribute("axis")), op.rank)
    ahead = DeviceCopies(torch.from_numpy(_counted_ahead(op.input_shape(), axis)))
    shape = op.input_shape()[2:]
    wide = [b + size + e for b, size, e in zip(windows.begin, shape, windows.end, strict=True)]
    dtype = op.output_type(1)

    def run(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x = windows.padded(xs[0], -torch.inf)
        values, where = pool(x, windows.kernel, windows.strides, 0, windows.dilations, return_indices=True)
        indices, inner = torch.zeros_like(where), 1
        counted = list(zip(shape, wide, windows.begin, strict=True))[max(axis - 2, 0) :]
        for size, padded, begin in reversed(counted):
            indices = indices + (where % padded - begin) * inner
            where, inner = where.div(padded, rounding_mode="floor"), inner * size
        return values, (indices + ahead.on(x.device)).to(dtype)

    return run


def _counted_ahead(shape: Shape, axis: int) -> np.ndarray:
    """Elements before each channel's plane, [N, C, 1...], of those counted from ``axis`` on."""
    plane = prod(shape[2:])
    batch = np.arange(shape[0])[:, None] * (shape[1] * plane if axis < 1 else 0)
    channel = np.arange(shape[1])[None, :] * (plane if axis < 2 else 0)
    return np.asarray((batch + channel).reshape(*shape[:2], *(1,) * (len(shape) - 2)))


def _avg_pool(op: Op) -> TorchOp:
    """The mean over each window [N, C, S...]; padding counts as zeros, or not at all with exclude-pad."""
    windows = _pool_windows(op)
    pool = op.for_axes(windows.kernel, *AVG_POOLS)
    is_same = op.choice("auto_pad", *AUTO_PADS).startswith("same")
    is_padded = any((*op.attribute("pads_begin"), *op.attribute("pads_end"), is_same))
    exclude = bool(op.attribute("exclude-pad")) or not is_padded  # as OpenVINO: what lies beyond is no padding
    if set(windows.dilations) != {1}:
        raise op.unsupported(f"dilations {windows.dilations}", "AvgPool without dilations")
    if windows.are_even_for_pools:
        return lambda xs: (pool(xs[0], windows.kernel, windows.strides, windows.begin, False, not exclude),)
    if not exclude:  # OpenVINO divides by the whole window even where it reaches beyond the padding
        return lambda xs: (pool(windows.padded(xs[0]), windows.kernel, windows.strides),)
    scale = DeviceCopies(torch.from_numpy(_corrections(op, windows)).to(op.output_type()))

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x = pool(windows.padded(xs[0]), windows.kernel, windows.strides)
        return (x * scale.on(x.device),)

    return run


def _corrections(op: Op, windows: Windows) -> np.ndarray:
    """The window's size over the number of its elements that are not padding, [S...]."""
    per_axis = []
    for axis, (size, out) in enumerate(zip(op.input_shape()[2:], op.output_shape()[2:], strict=True)):
        first = np.arange(out) * windows.strides[axis] - windows.begin[axis]
        counted = np.minimum(first + windows.kernel[axis], size) - np.maximum(first, 0)
        per_axis.append(windows.kernel[axis] / np.maximum(counted, 1))
    return np.asarray(reduce(np.multiply.outer, per_axis))


def _pool_windows(op: Op) -> Windows:
    op.choice("rounding_type", "floor", "ceil", "ceil_torch")
    return Windows.of(op, tuple(op.attribute("kernel")))


BUILDERS: dict[str, Builder] = {
    "Convolution": of_floats(_convolution),
    "GroupConvolution": of_floats(_convolution),
    "ConvolutionBackpropData": of_floats(_transposed),
    "GroupConvolutionBackpropData": of_floats(_transposed),
    "MaxPool": of_floats(_max_pool),
    "AvgPool": of_floats(_avg_pool),
}
