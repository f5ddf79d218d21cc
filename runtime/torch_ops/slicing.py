"""Slice and StridedSlice: constant begins, ends and steps, negative ones included."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov

from hsdag.runtime.torch_ops.base import (
    Builder,
    Shape,
    Tensor,
    TorchOp,
    attribute,
    axis_indices,
    input_shape,
    output_shape,
)
from hsdag.runtime.torch_ops.static_values import static_input

Cut = tuple[int, slice]


def _slice(node: ov.Node) -> TorchOp:
    shape = input_shape(node)
    starts, stops, steps = (static_input(node, port, "limits") for port in (1, 2, 3))
    named = node.get_input_size() > 4
    axes = axis_indices(static_input(node, 4, "axes"), len(shape)) if named else tuple(range(len(starts)))
    cuts = [
        (axis, slice(int(start), int(stop), int(step)))
        for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True)
    ]
    return _cutting(shape, cuts, output_shape(node))


def _strided_slice(node: ov.Node) -> TorchOp:
    """New axes and shrunk ones show in the output's shape alone."""
    shape = input_shape(node)
    begin, end = (static_input(node, port, "limits") for port in (1, 2))
    steps = static_input(node, 3, "steps") if node.get_input_size() > 3 else [1] * len(begin)
    marks = {name: _mask(node, name, len(begin)) for name in ("begin", "end", "new_axis", "shrink_axis", "ellipsis")}
    entries = sum(not new for new, dots in zip(marks["new_axis"], marks["ellipsis"], strict=True) if not dots)
    cuts: list[Cut] = []
    axis = 0
    for position, (first, last, step) in enumerate(zip(begin, end, steps, strict=True)):
        if marks["ellipsis"][position]:
            axis += len(shape) - entries
            continue
        if marks["new_axis"][position]:
            continue
        if marks["shrink_axis"][position]:
            index = int(first) + (shape[axis] if first < 0 else 0)
            cuts.append((axis, slice(index, index + 1, 1)))
        else:
            low = None if marks["begin"][position] else int(first)
            high = None if marks["end"][position] else int(last)
            cuts.append((axis, slice(low, high, int(step))))
        axis += 1
    return _cutting(shape, cuts, output_shape(node))


def _mask(node: ov.Node, name: str, length: int) -> list[bool]:
    marks = [bool(mark) for mark in attribute(node, f"{name}_mask")]
    return marks[:length] + [False] * (length - len(marks))


def _cutting(shape: Shape, cuts: Sequence[Cut], result: Shape) -> TorchOp:
    """Python's own rules resolve a slice; torch has no negative steps, so these are taken forwards and flipped."""
    slices, flips = [slice(None)] * len(shape), []
    for axis, cut in cuts:
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


BUILDERS: dict[str, Builder] = {"Slice": _slice, "StridedSlice": _strided_slice}
