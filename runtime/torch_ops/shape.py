"""Ops that move, repeat, cut out or pad: reshapes, transposes, joins, splits, slices, broadcasts, Pad in all modes.

Axes, widths, begins, ends and steps are constants.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from hsdag.runtime.torch_ops.base import Builder, DeviceCopies, Op, Shape, Tensor, TorchOp, axis_index, sides


def _reshape(op: Op) -> TorchOp:
    """OpenVINO has worked out the shape already: zeros and -1 of a Reshape, the axes of a Squeeze."""
    shape = op.output_shape()
    return lambda xs: (xs[0].reshape(shape),)


def _transpose(op: Op) -> TorchOp:
    """Without an order the axes are turned round."""
    order = op.known_input(1, "an order of axes").tolist() or tuple(reversed(range(op.rank)))
    return lambda xs: (xs[0].permute(order),)


def _concat(op: Op) -> TorchOp:
    axis = int(op.attribute("axis"))
    return lambda xs: (torch.cat(tuple(xs), axis),)


def _split(op: Op) -> TorchOp:
    """Also VariadicSplit, whose lengths are those of its outputs."""
    axis = op.known_axis()
    lengths = [op.output_shape(port)[axis] for port in range(op.node.get_output_size())]
    return lambda xs: torch.split(xs[0], lengths, axis)


def _broadcast(op: Op) -> TorchOp:
    """In mode explicit, input 2 says where each axis of the data goes."""
    shape, given = op.output_shape(), op.input_shape()
    if op.choice("mode", "numpy", "bidirectional", "explicit") == "explicit":
        wide = [1] * len(shape)
        for axis, size in zip(op.known_input(2, "an axes mapping").tolist(), given, strict=True):
            wide[axis] = size
        return lambda xs: (xs[0].reshape(wide).expand(shape),)
    return lambda xs: (xs[0].expand(shape),)


def _tile(op: Op) -> TorchOp:
    repeats = op.known_input(1, "repeats").tolist()
    wide = [1] * (op.rank - len(repeats)) + repeats
    return lambda xs: (xs[0].repeat(wide),)


def _depth_to_space(op: Op) -> TorchOp:
    """Data [N, C b^S, S...] to [N, C, b S...]."""
    (batch, _, *sizes), (_, channels, *_) = op.input_shape(), op.output_shape()
    block, spatial = int(op.attribute("block_size")), len(sizes)
    blocks_first = op.choice("mode", "blocks_first", "depth_first") == "blocks_first"
    inner = (block,) * spatial
    split = (batch, *inner, channels, *sizes) if blocks_first else (batch, channels, *inner, *sizes)
    block_axes = range(1, 1 + spatial) if blocks_first else range(2, 2 + spatial)
    pairs = zip(range(2 + spatial, 2 + 2 * spatial), block_axes, strict=True)
    return _rearranged(op, split, (0, 1 + spatial if blocks_first else 1, *itertools.chain.from_iterable(pairs)))


def _space_to_depth(op: Op) -> TorchOp:
    """Data [N, C, b S...] to [N, C b^S, S...]."""
    (batch, channels, *_), (_, _, *sizes) = op.input_shape(), op.output_shape()
    block, spatial = int(op.attribute("block_size")), len(sizes)
    split = (batch, channels, *itertools.chain.from_iterable((size, block) for size in sizes))
    outer, inner = range(2, 2 + 2 * spatial, 2), range(3, 3 + 2 * spatial, 2)
    blocks_first = op.choice("mode", "blocks_first", "depth_first") == "blocks_first"
    return _rearranged(op, split, (0, *inner, 1, *outer) if blocks_first else (0, 1, *inner, *outer))


def _rearranged(op: Op, split: Shape, order: Shape) -> TorchOp:
    shape = op.output_shape()
    return lambda xs: (xs[0].reshape(split).permute(order).reshape(shape),)


def _cumsum(op: Op) -> TorchOp:
    axis = op.known_axis()
    exclusive, backwards = bool(op.attribute("exclusive")), bool(op.attribute("reverse"))

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x = xs[0].flip(axis) if backwards else xs[0]
        total = torch.cumsum(_shifted(x, axis) if exclusive else x, axis, dtype=x.dtype)
        return (total.flip(axis) if backwards else total,)

    return run


def _shifted(x: Tensor, axis: int) -> Tensor:
    """A zero in front and the last element dropped."""
    kept = x.narrow(axis, 0, max(x.shape[axis] - 1, 0))
    return torch.cat((torch.zeros_like(x.narrow(axis, 0, min(x.shape[axis], 1))), kept), axis)


def _slice(op: Op) -> TorchOp:
    starts, stops, steps = (op.known_input(port, "limits").tolist() for port in (1, 2, 3))
    axes = op.known_axes(4) if op.num_inputs > 4 else range(len(starts))
    return _cutting(op, dict(zip(axes, map(slice, starts, stops, steps), strict=True)))


def _strided_slice(op: Op) -> TorchOp:
    """New axes and shrunk ones show in the output's shape alone."""
    shape = op.input_shape()
    begin, end = (op.known_input(port, "limits").tolist() for port in (1, 2))
    steps = op.known_input(3, "steps").tolist() if op.num_inputs > 3 else [1] * len(begin)
    names = ("begin", "end", "new_axis", "shrink_axis", "ellipsis")
    marks = list(zip(*(_mask(op, name, len(begin)) for name in names), strict=True))
    num_entries = sum(not is_new and not is_dots for _, _, is_new, _, is_dots in marks)
    cuts: dict[int, slice] = {}
    axis = 0
    for first, last, step, (from_start, to_end, is_new, shrinks, is_dots) in zip(begin, end, steps, marks, strict=True):
        if is_dots:
            axis += len(shape) - num_entries
        elif not is_new:
            index = axis_index(first, shape[axis])
            ends = (None if from_start else first, None if to_end else last, step)
            cuts[axis] = slice(index, index + 1) if shrinks else slice(*ends)
            axis += 1
    return _cutting(op, cuts)


def _mask(op: Op, name: str, length: int) -> list[bool]:
    marks = [bool(mark) for mark in op.attribute(f"{name}_mask")]
    return marks[:length] + [False] * (length - len(marks))


def _cutting(op: Op, cuts: Mapping[int, slice]) -> TorchOp:
    """Cuts by axis. Python's own rules resolve a slice; torch has no negative steps: those are taken forwards."""
    shape, result = op.input_shape(), op.output_shape()
    slices, flips = [slice(None)] * len(shape), []
    for axis, cut in cuts.items():
        picked = range(*cut.indices(shape[axis]))
        if picked.step < 0:
            flips.append(axis)
            picked = picked[::-1]
        slices[axis] = slice(picked.start, picked.stop, picked.step) if picked else slice(0, 0)
    index = tuple(slices)

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x = xs[0][index]
        return ((x.flip(flips) if flips else x).reshape(result),)

    return run


def _pad(op: Op) -> TorchOp:
    """Negative widths cut. Other modes than a constant pick the elements axis by axis."""
    begin, end = (op.known_input(port, "widths").tolist() for port in (1, 2))
    mode = op.choice("pad_mode", "constant", "edge", "reflect", "symmetric")
    if mode == "constant":
        value = op.known_input(3, "a padding value").item() if op.num_inputs > 3 else 0
        widths = sides(begin, end)
        return lambda xs: (functional.pad(xs[0], widths, value=value),)
    picks = [
        (axis, DeviceCopies(torch.from_numpy(_picked(mode, size, first, last))))
        for axis, (size, first, last) in enumerate(zip(op.input_shape(), begin, end, strict=True))
        if first or last
    ]

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x = xs[0]
        for axis, indices in picks:
            x = x.index_select(axis, indices.on(x.device))
        return (x,)

    return run


def _picked(mode: str, size: int, first: int, last: int) -> NDArray[np.int64]:
    """Which element of an axis is at each position of the padded one."""
    places = np.arange(-first, size + last)
    if mode == "edge":
        return np.clip(places, 0, size - 1)
    beyond = 0 if mode == "symmetric" else 1  # symmetric repeats the border, reflect does not
    places = np.where(places < 0, -places - (1 - beyond), places)
    return np.where(places >= size, 2 * size - 1 - beyond - places, places)


BUILDERS: dict[str, Builder] = {
    "Reshape": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "VariadicSplit": _split,
    "Broadcast": _broadcast,
    "Tile": _tile,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "CumSum": _cumsum,
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "Pad": _pad,
}
