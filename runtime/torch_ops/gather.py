"""Gather, GatherElements and GatherND: elements chosen by tensors of indices.

Negative indices count from the end, but for Gather before opset 8. An index out of range gives zeros, as Gather does
in OpenVINO; there it is undefined for the other two. So none ever reaches a kernel: on CUDA that would end the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import torch
from numpy.typing import NDArray

from hsdag.runtime.torch_ops.base import Builder, Op, Tensor, TorchOp, axis_index, static_value

Places = Callable[[Tensor], tuple[Tensor, Tensor | None]]
"""From indices to places that exist, and which of the indices are out of range; None where none can be."""

UNSIGNED_OPSETS = ("opset1", "opset7")
"""Those whose Gather takes negative indices for out of range."""


def _gather(op: Op) -> TorchOp:
    """Slices of the data along one axis, the first ``batch_dims`` axes in step with those of the indices."""
    shape, indices_shape, result = op.input_shape(), op.input_shape(1), op.output_shape()
    axis = op.known_axis(2)
    batch_dims = axis_index(int(op.node.get_attributes().get("batch_dims", 0)), len(indices_shape))
    from_end = op.opset not in UNSIGNED_OPSETS
    places = _places(static_value(op.node.input_value(1)), shape[axis], from_end)
    if batch_dims == 0:
        along = (1,) * axis + (prod(indices_shape),) + (1,) * (len(shape) - axis - 1)

        def select(xs: Sequence[Tensor]) -> tuple[Tensor]:
            where, is_outside = places(xs[1])
            return (_emptied(xs[0].index_select(axis, where.reshape(-1)), is_outside, along).reshape(result),)

        return select
    batch = prod(shape[:batch_dims])
    outer, inner = prod(shape[batch_dims:axis]), prod(shape[axis + 1 :])
    count = prod(indices_shape[batch_dims:])

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        where, is_outside = places(xs[1])
        wide = where.to(torch.int64).reshape(batch, 1, count, 1).expand(batch, outer, count, inner)
        found = xs[0].reshape(batch, outer, shape[axis], inner).gather(2, wide)
        return (_emptied(found, is_outside, (batch, 1, count, 1)).reshape(result),)

    return run


def _gather_elements(op: Op) -> TorchOp:
    shape, result = op.input_shape(), op.output_shape()
    axis = axis_index(int(op.attribute("axis")), len(shape))
    places = _places(static_value(op.node.input_value(1)), shape[axis])

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        where, is_outside = places(xs[1])
        return (_emptied(xs[0].gather(axis, where.to(torch.int64)), is_outside, result),)

    return run


def _gather_nd(op: Op) -> TorchOp:
    """The last axis of the indices holds coordinates of slices; the first ``batch_dims`` axes run in step."""
    shape, indices_shape, result = op.input_shape(), op.input_shape(1), op.output_shape()
    batch_dims = int(op.attribute("batch_dims"))
    depth, batch = indices_shape[-1], prod(shape[:batch_dims])
    sizes = shape[batch_dims : batch_dims + depth]
    inner = prod(shape[batch_dims + depth :])
    count = prod(indices_shape[batch_dims:-1])
    known = static_value(op.node.input_value(1))
    each = [_places(None if known is None else known[..., place], size) for place, size in enumerate(sizes)]

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        flat = torch.zeros((), dtype=torch.int64, device=xs[1].device)
        outsides: list[Tensor] = []
        for place, (size, places) in enumerate(zip(sizes, each, strict=True)):
            where, beyond = places(xs[1][..., place])
            flat = flat * size + where
            outsides += [] if beyond is None else [beyond]
        wide = flat.to(torch.int64).reshape(batch, count, 1).expand(batch, count, inner)
        found = xs[0].reshape(batch, prod(sizes), inner).gather(1, wide)
        is_any = reduce(torch.logical_or, outsides) if outsides else None
        return (_emptied(found, is_any, (batch, count, 1)).reshape(result),)

    return run


def _places(known: NDArray[Any] | None, size: int, from_end: bool = True) -> Places:
    """What indices mean along an axis of ``size``; ``known`` are those that come at every call, if they are."""
    if known is not None and ((known >= (-size if from_end else 0)) & (known < size)).all():
        return lambda indices: (_counted(indices, size), None)

    def places(indices: Tensor) -> tuple[Tensor, Tensor]:
        counted = _counted(indices, size if from_end else 0)
        return counted.clamp(0, size - 1), (counted < 0) | (counted >= size)

    return places


def _counted(indices: Tensor, size: int) -> Tensor:
    """Signed indices, the negative ones counted from the end of an axis of ``size``."""
    if indices.dtype not in (torch.int32, torch.int64):
        indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)


def _emptied(found: Tensor, is_outside: Tensor | None, shape: Sequence[int]) -> Tensor:
    """Zeros where indices were out of range; ``found`` is a tensor of its own, ``shape`` that of the indices in it."""
    return found if is_outside is None else found.masked_fill_(is_outside.reshape(shape), 0)


BUILDERS: dict[str, Builder] = {"Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd}
