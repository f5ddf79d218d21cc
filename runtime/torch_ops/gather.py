"""Gather, GatherElements and GatherND: elements chosen by tensors of indices; negative ones count from the end."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import openvino as ov
import torch

from hsdag.runtime.torch_ops.base import (
    Builder,
    Tensor,
    TorchOp,
    attribute,
    axis_index,
    input_shape,
    output_shape,
)
from hsdag.runtime.torch_ops.static_values import static_input


def _gather(node: ov.Node) -> TorchOp:
    """Slices of the data along one axis, the first ``batch_dims`` axes in step with those of the indices."""
    shape, indices_shape, result = input_shape(node), input_shape(node, 1), output_shape(node)
    axis = axis_index(int(static_input(node, 2, "an axis").item()), len(shape))
    batch_dims = axis_index(int(node.get_attributes().get("batch_dims", 0)), len(indices_shape))
    size = shape[axis]
    if batch_dims == 0:
        return lambda xs: (xs[0].index_select(axis, _wrapped(xs[1], size).reshape(-1)).reshape(result),)
    batch = prod(shape[:batch_dims])
    outer, inner = prod(shape[batch_dims:axis]), prod(shape[axis + 1 :])
    count = prod(indices_shape[batch_dims:])

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        indices = _wrapped(xs[1], size).to(torch.int64).reshape(batch, 1, count, 1)
        data = xs[0].reshape(batch, outer, size, inner)
        return (data.gather(2, indices.expand(batch, outer, count, inner)).reshape(result),)

    return run


def _gather_elements(node: ov.Node) -> TorchOp:
    shape = input_shape(node)
    axis = axis_index(int(attribute(node, "axis")), len(shape))
    size = shape[axis]
    return lambda xs: (xs[0].gather(axis, _wrapped(xs[1], size).to(torch.int64)),)


def _gather_nd(node: ov.Node) -> TorchOp:
    """The last axis of the indices holds coordinates of slices; the first ``batch_dims`` axes run in step."""
    shape, indices_shape, result = input_shape(node), input_shape(node, 1), output_shape(node)
    batch_dims = int(attribute(node, "batch_dims"))
    depth, batch = indices_shape[-1], prod(shape[:batch_dims])
    sizes = shape[batch_dims : batch_dims + depth]
    inner = prod(shape[batch_dims + depth :])
    count = prod(indices_shape[batch_dims:-1])

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        flat = torch.zeros((), dtype=torch.int64, device=xs[1].device)
        for place, size in enumerate(sizes):
            flat = flat * size + _wrapped(xs[1][..., place], size)
        where = flat.to(torch.int64).reshape(batch, count, 1).expand(batch, count, inner)
        return (xs[0].reshape(batch, prod(sizes), inner).gather(1, where).reshape(result),)

    return run


def _wrapped(indices: Tensor, size: int) -> Tensor:
    if indices.dtype not in (torch.int32, torch.int64):
        indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)


BUILDERS: dict[str, Builder] = {"Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd}
