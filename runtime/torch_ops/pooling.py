"""MaxPool and AvgPool.

Legend: N batch, C channels, S spatial axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod

import numpy as np
import openvino as ov
import torch
from torch.nn import functional

from hsdag.runtime.torch_ops.base import (
    Builder,
    DeviceCopies,
    Shape,
    Tensor,
    TorchOp,
    attribute,
    axis_index,
    choice,
    input_shape,
    of_floats,
    output_shape,
    output_type,
    unsupported,
)
from hsdag.runtime.torch_ops.windows import AUTO_PADS, Windows, windows_of

MAX_POOLS: tuple[Callable[..., Tensor], ...] = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
AVG_POOLS: tuple[Callable[..., Tensor], ...] = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)
ROUNDINGS = ("floor", "ceil", "ceil_torch")


def _max_pool(node: ov.Node) -> TorchOp:
    """Values [N, C, S...] and, from opset 8 on, where they lay in the input flattened from ``axis`` on."""
    windows = _pool_windows(node)
    pool = MAX_POOLS[len(windows.kernel) - 1]
    if node.get_output_size() == 2 and node.output(1).get_target_inputs():
        return _max_pool_with_indices(node, windows)
    even = _torch_pads_suffice(windows)
    padding = windows.begin if even else 0
    unread = output_type(node, 1) if node.get_output_size() == 2 else None

    def run(xs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        x = xs[0] if even else windows.padded(xs[0], -torch.inf)
        values = pool(x, windows.kernel, windows.strides, padding, windows.dilations)
        return (values,) if unread is None else (values, torch.empty(0, dtype=unread, device=x.device))

    return run


def _max_pool_with_indices(node: ov.Node, windows: Windows) -> TorchOp:
    pool = MAX_POOLS[len(windows.kernel) - 1]
    axis = axis_index(int(attribute(node, "axis")), len(input_shape(node)))
    ahead = DeviceCopies(torch.from_numpy(_counted_ahead(input_shape(node), axis)))
    shape = input_shape(node)[2:]
    wide = [b + size + e for b, size, e in zip(windows.begin, shape, windows.end, strict=True)]
    dtype = output_type(node, 1)

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


def _avg_pool(node: ov.Node) -> TorchOp:
    """The mean over each window [N, C, S...]; padding counts as zeros, or not at all with exclude-pad."""
    windows = _pool_windows(node)
    pool = AVG_POOLS[len(windows.kernel) - 1]
    auto = choice(node, "auto_pad", AUTO_PADS)
    is_padded = any((*attribute(node, "pads_begin"), *attribute(node, "pads_end"), auto.startswith("same")))
    exclude = bool(attribute(node, "exclude-pad")) or not is_padded  # as OpenVINO: what lies beyond is no padding
    if set(windows.dilations) != {1}:
        raise unsupported(node, f"dilations {windows.dilations}", "AvgPool without dilations")
    if _torch_pads_suffice(windows):
        return lambda xs: (pool(xs[0], windows.kernel, windows.strides, windows.begin, False, not exclude),)
    if not exclude:  # OpenVINO divides by the whole window even where it reaches beyond the padding
        return lambda xs: (pool(windows.padded(xs[0]), windows.kernel, windows.strides),)
    scale = DeviceCopies(torch.from_numpy(_corrections(node, windows)).to(output_type(node)))

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x = pool(windows.padded(xs[0]), windows.kernel, windows.strides)
        return (x * scale.on(x.device),)

    return run


def _corrections(node: ov.Node, windows: Windows) -> np.ndarray:
    """The window's size over the number of its elements that are not padding, [S...]."""
    per_axis = []
    for axis, (size, out) in enumerate(zip(input_shape(node)[2:], output_shape(node)[2:], strict=True)):
        first = np.arange(out) * windows.strides[axis] - windows.begin[axis]
        last = first + windows.kernel[axis]
        counted = np.minimum(last, size) - np.maximum(first, 0)
        per_axis.append(windows.kernel[axis] / np.maximum(counted, 1))
    return np.asarray(reduce(np.multiply.outer, per_axis))


def _pool_windows(node: ov.Node) -> Windows:
    choice(node, "rounding_type", ROUNDINGS)
    return windows_of(node, tuple(attribute(node, "kernel")))


def _torch_pads_suffice(windows: Windows) -> bool:
    """Torch pads both sides equally, and at most by half a window."""
    return windows.are_even and all(2 * b <= k for b, k in zip(windows.begin, windows.kernel, strict=True))


BUILDERS: dict[str, Builder] = {"MaxPool": of_floats(_max_pool), "AvgPool": of_floats(_avg_pool)}
