"""Pad in all four modes, with constant widths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
import torch
from numpy.typing import NDArray
from torch.nn import functional

from hsdag.runtime.torch_ops.base import Builder, DeviceCopies, Tensor, TorchOp, choice, input_shape
from hsdag.runtime.torch_ops.static_values import static_input


def _pad(node: ov.Node) -> TorchOp:
    """Negative widths cut. Other modes than a constant pick the elements axis by axis."""
    shape = input_shape(node)
    begin, end = ([int(width) for width in static_input(node, port, "widths")] for port in (1, 2))
    mode = choice(node, "pad_mode", ("constant", "edge", "reflect", "symmetric"))
    if mode == "constant":
        value = static_input(node, 3, "a padding value").item() if node.get_input_size() > 3 else 0
        widths = [side for pair in zip(begin[::-1], end[::-1], strict=True) for side in pair]
        return lambda xs: (functional.pad(xs[0], widths, value=value),)
    picks = [
        (axis, DeviceCopies(torch.from_numpy(_picked(mode, size, first, last))))
        for axis, (size, first, last) in enumerate(zip(shape, begin, end, strict=True))
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


BUILDERS: dict[str, Builder] = {"Pad": _pad}
