"""Ops that move or repeat elements without choosing among them: reshapes, transposes, joins, cuts, broadcasts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import openvino as ov
import torch

from hsdag.runtime.torch_ops.base import (
    Builder,
    Tensor,
    TorchOp,
    attribute,
    axis_index,
    choice,
    input_shape,
    output_shape,
)
from hsdag.runtime.torch_ops.static_values import static_input


def _reshape(node: ov.Node) -> TorchOp:
    """OpenVINO has worked out the shape already: zeros and -1 of a Reshape, the axes of a Squeeze."""
    shape = output_shape(node)
    return lambda xs: (xs[0].reshape(shape),)


def _transpose(node: ov.Node) -> TorchOp:
    """Without an order the axes are turned round."""
    order = tuple(int(axis) for axis in static_input(node, 1, "an order of axes")) or tuple(
        reversed(range(len(input_shape(node))))
    )
    return lambda xs: (xs[0].permute(order),)


def _concat(node: ov.Node) -> TorchOp:
    axis = int(attribute(node, "axis"))
    return lambda xs: (torch.cat(tuple(xs), axis),)


def _split(node: ov.Node) -> TorchOp:
    """Also VariadicSplit, whose lengths are those of its outputs."""
    axis = axis_index(int(static_input(node, 1, "an axis").item()), len(input_shape(node)))
    lengths = [output_shape(node, port)[axis] for port in range(node.get_output_size())]
    return lambda xs: torch.split(xs[0], lengths, axis)


def _broadcast(node: ov.Node) -> TorchOp:
    """In mode explicit, input 2 says where each axis of the data goes."""
    shape, given = output_shape(node), input_shape(node)
    if choice(node, "mode", ("numpy", "bidirectional", "explicit")) == "explicit":
        mapping = [int(axis) for axis in static_input(node, 2, "an axes mapping")]
        wide = [1] * len(shape)
        for axis, size in zip(mapping, given, strict=True):
            wide[axis] = size
        return lambda xs: (xs[0].reshape(wide).expand(shape),)
    return lambda xs: (xs[0].expand(shape),)


def _tile(node: ov.Node) -> TorchOp:
    repeats = tuple(int(count) for count in static_input(node, 1, "repeats"))
    rank = len(input_shape(node))
    repeats = (1,) * (rank - len(repeats)) + repeats
    return lambda xs: (xs[0].repeat(repeats),)


def _depth_to_space(node: ov.Node) -> TorchOp:
    """Data [N, C b^S, S...] to [N, C, b S...]."""
    (batch, _, *sizes), (_, channels, *_) = input_shape(node), output_shape(node)
    block, spatial = int(attribute(node, "block_size")), len(sizes)
    blocks_first = choice(node, "mode", ("blocks_first", "depth_first")) == "blocks_first"
    inner = (block,) * spatial
    split = (batch, *inner, channels, *sizes) if blocks_first else (batch, channels, *inner, *sizes)
    block_axes = range(1, 1 + spatial) if blocks_first else range(2, 2 + spatial)
    pairs = zip(range(2 + spatial, 2 + 2 * spatial), block_axes, strict=True)
    order = (0, 1 + spatial if blocks_first else 1, *itertools.chain.from_iterable(pairs))
    shape = output_shape(node)
    return lambda xs: (xs[0].reshape(split).permute(order).reshape(shape),)


def _space_to_depth(node: ov.Node) -> TorchOp:
    """Data [N, C, b S...] to [N, C b^S, S...]."""
    (batch, channels, *_), (_, _, *sizes) = input_shape(node), output_shape(node)
    block, spatial = int(attribute(node, "block_size")), len(sizes)
    blocks_first = choice(node, "mode", ("blocks_first", "depth_first")) == "blocks_first"
    split = (batch, channels, *itertools.chain.from_iterable((size, block) for size in sizes))
    outer, inner = range(2, 2 + 2 * spatial, 2), range(3, 3 + 2 * spatial, 2)
    order = (0, *inner, 1, *outer) if blocks_first else (0, 1, *inner, *outer)
    shape = output_shape(node)
    return lambda xs: (xs[0].reshape(split).permute(order).reshape(shape),)


def _cumsum(node: ov.Node) -> TorchOp:
    axis = axis_index(int(static_input(node, 1, "an axis").item()), len(input_shape(node)))
    exclusive, backwards = bool(attribute(node, "exclusive")), bool(attribute(node, "reverse"))

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        x = xs[0].flip(axis) if backwards else xs[0]
        total = torch.cumsum(_shifted(x, axis) if exclusive else x, axis, dtype=x.dtype)
        return (total.flip(axis) if backwards else total,)

    return run


def _shifted(x: Tensor, axis: int) -> Tensor:
    """A zero in front and the last element dropped."""
    kept = x.narrow(axis, 0, max(x.shape[axis] - 1, 0))
    return torch.cat((torch.zeros_like(x.narrow(axis, 0, min(x.shape[axis], 1))), kept), axis)


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
}
