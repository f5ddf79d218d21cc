"""Interpolate without antialiasing: each axis is resampled by itself, with weights worked out beforehand.

Legend: T taps of a resampling (elements that make up one), O size of the axis afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.runtime.torch_ops.base import Builder, DeviceCopies, Op, Shape, Tensor, TorchOp, of_floats

Floats = NDArray[np.float32]
Taps = tuple[NDArray[np.int64], Floats]

HALF = np.float32(0.5)
COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn", "align_corners")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple")


def _interpolate(op: Op) -> TorchOp:
    """Taps lie as [T, O] for each axis whose size or scale changes."""
    if op.opset not in ("opset4", "opset11"):
        raise op.unsupported("another opset", "Interpolate of opsets 4 and 11")
    if op.attribute("antialias") or any((*op.attribute("pads_begin"), *op.attribute("pads_end"))):
        raise op.unsupported("antialiasing or pads", "Interpolate without either")
    mode = op.choice("mode", "nearest", "linear", "linear_onnx", "cubic")
    axes, scales = _axes_and_scales(op)
    axis_taps = []
    for axis, scale in zip(axes, scales, strict=True):
        index, weight = _taps(op, mode, scale, op.input_shape()[axis], op.output_shape()[axis])
        axis_taps.append((axis, DeviceCopies(torch.from_numpy(index)), DeviceCopies(torch.from_numpy(weight))))

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x = xs[0]
        for axis, index, weight in axis_taps:
            x = _resampled(x, axis, index.on(x.device), weight.on(x.device))
        return (x,)

    return run


def _axes_and_scales(op: Op) -> tuple[Shape, list[np.float32]]:
    """Scales as given, or the ratios of the sizes."""
    shape, result = op.input_shape(), op.output_shape()
    version4 = op.opset == "opset4"
    port = 3 if version4 else 2
    axes = op.known_axes(port) if op.num_inputs > port else tuple(range(len(shape)))
    if op.choice("shape_calculation_mode", "sizes", "scales") == "scales":
        return axes, [np.float32(scale) for scale in op.known_input(2 if version4 else 1, "scales")]
    return axes, [np.float32(result[axis]) / np.float32(shape[axis]) for axis in axes]


def _taps(op: Op, mode: str, scale: np.float32, size: int, out: int) -> Taps:
    x = _coordinates(op.choice("coordinate_transformation_mode", *COORDINATES), scale, size, out)
    if mode == "nearest":
        nearest = _rounded(x, op.choice("nearest_mode", *NEAREST), bool(scale < 1))
        return _clipped(nearest[None], size), np.ones((1, out), np.float32)
    if mode == "cubic":
        return _cubic(x, size, np.float32(op.attribute("cube_coeff")))
    x = np.clip(x, 0, size - 1)
    low = np.floor(x)
    share = x - low
    return _clipped(np.stack([low, low + 1]), size), np.stack([1 - share, share])


def _coordinates(mode: str, scale: np.float32, size: int, out: int) -> Floats:
    """Where each of the [O] elements lies on the axis as it was."""
    x: Floats = np.arange(out, dtype=np.float32)
    if mode == "align_corners":
        return np.asarray(x * np.float32(size - 1) / np.float32(max(out - 1, 1)))
    if mode == "asymmetric":
        return x / scale
    if mode == "tf_half_pixel_for_nn":
        return (x + HALF) / scale
    if mode == "pytorch_half_pixel" and out == 1:
        return 0 * x
    return (x + HALF) / scale - HALF


def _rounded(x: Floats, mode: str, shrinks: bool) -> Floats:
    if mode == "round_prefer_floor":
        return np.asarray(np.ceil(x - HALF))
    if mode == "round_prefer_ceil":
        return np.asarray(np.floor(x + HALF))
    if mode == "ceil" or (mode == "simple" and shrinks):
        return np.ceil(x)
    return np.floor(x) if mode == "floor" else np.trunc(x)


def _cubic(x: Floats, size: int, a: np.float32) -> Taps:
    """The cubic convolution of Keys 1981 with its parameter ``a`` free: four taps around x."""
    low = np.floor(x)
    t = x - low
    weights = np.stack([
        ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1,
        ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a,
    ])  # fmt: skip
    return _clipped(np.stack([low - 1, low, low + 1, low + 2]), size), weights.astype(np.float32)


def _clipped(places: Floats, size: int) -> NDArray[np.int64]:
    return np.clip(places, 0, size - 1).astype(np.int64)


def _resampled(x: Tensor, axis: int, index: Tensor, weight: Tensor) -> Tensor:
    if len(index) == 1:
        return x.index_select(axis, index[0])
    shape = [1] * x.dim()
    shape[axis] = -1
    weight = weight.to(x.dtype)
    total = x.index_select(axis, index[0]) * weight[0].reshape(shape)
    for place in range(1, len(index)):
        total = total + x.index_select(axis, index[place]) * weight[place].reshape(shape)
    return total


BUILDERS: dict[str, Builder] = {"Interpolate": of_floats(_interpolate)}
