"""Batches: inferences of many rows, divided over copies of a model, with their outputs joined.

Legend: N rows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hsdag.ir.elements import array_of
from hsdag.ir.graph.build import graph_of
from hsdag.ir.ports import CompiledModel, Outputs, named_inputs, port_index
from hsdag.ir.shards.regions import OpShapes
from hsdag.ir.shards.rewrite import shapes_of
from hsdag.ir.shards.rules import Span

TRIALS, PIECES = 3, 2
"""Batches of one size that run both whole and divided before the faster way is chosen; and pieces per copy of a divided
batch, so that a faster copy can take more of them.
"""

ROUNDING = 1e-2
"""Largest difference of outputs, as a share of an output's largest value, that counts as rounding; with more, batches
stay whole.
"""

OPEN = -1
"""Number of rows of a model that takes any number of them."""


def batch_rows(ports: Sequence[Any]) -> int:
    """Return the number of rows that all inputs and outputs have, OPEN if any; 0 where they differ."""
    shapes = [port.get_partial_shape() for port in ports]
    if any(shape.rank.is_dynamic or not len(shape) for shape in shapes):
        return 0
    counts = {OPEN if shape[0].is_dynamic else shape[0].get_length() for shape in shapes}
    return counts.pop() if len(counts) == 1 else 0


def is_by_rows(model: ov.Model) -> bool:
    """Return whether a model takes any number of rows, and computes each from the same row of its inputs alone.

    The rules for dividing ops decide that, for two rows (docs/shards.md, ``rows``).
    """
    if batch_rows([*model.inputs, *model.outputs]) != OPEN:
        return False
    clone = model.clone()
    clone.reshape({port: ov.PartialShape([2, *list(port.get_partial_shape())[1:]]) for port in clone.inputs})
    graph = graph_of(clone)
    shapes = shapes_of(clone, graph)
    ends = [shapes.producer(v, 0) for v, kind in enumerate(graph.op_types) if kind == "Result"]
    return all(_is_row(shapes, v, row) for v in ends for row in range(2))


def _is_row(shapes: OpShapes, last: int, row: int) -> bool:
    """Return whether a row of op ``last`` needs only that row of the model's inputs, and known values as a whole."""
    region = shapes.region("rows", last, 0) if shapes.runs[last] else None
    pieces = region and shapes.pieces(replace(region, shares={row: (row, row + 1)}), row)
    for v, (_, piece) in (pieces or {}).items():
        for port, need in enumerate(piece.inputs):
            u = shapes.producer(v, port)
            if u not in (pieces or {}) and need != (None if u < 0 else Span(0, row, row + 1)):
                return False
    return bool(pieces)


class Batches:
    """The inferences of one caller at a time, divided over the copies of a model."""

    def __init__(self, model: CompiledModel, num_copies: int, *, is_by_rows: bool) -> None:
        self._model = model
        self._num_copies = num_copies
        self._is_by_rows = is_by_rows
        self._rows = batch_rows([*model.inputs, *model.outputs])
        self.tried: dict[int, list[tuple[float, float]]] = {}  # by N: seconds whole (0: outputs differ), divided

    def infer(self, inputs: Any, whole: Any, *, is_busy: bool) -> Outputs | None:
        """Return the joined outputs of N rows; None where they are better inferred whole, on the request ``whole``.

        If the model has a fixed number of rows, a multiple of it is split into that many inferences. If it takes any
        number, the first batches of a size are inferred both ways, and none is divided while a copy ``is_busy``.
        """
        if self._rows <= 0 and not self._is_by_rows:
            return None
        model = self._model
        values = {port_index(model.inputs, key, "input"): value for key, value in named_inputs(inputs, model.inputs)}
        arrays = {
            k: array_of(value) if isinstance(value, ov.Tensor) else np.asarray(value) for k, value in values.items()
        }
        counts = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
        if len(arrays) < len(model.inputs) or len(counts) != 1:
            return None
        (count,) = counts
        if self._rows > 0:
            return self._joined(arrays, count, self._rows) if count > self._rows and count % self._rows == 0 else None
        if count < self._num_copies or is_busy:
            return None
        tried = self.tried.setdefault(count, [])
        rows_each = -(-count // (PIECES * self._num_copies))
        if len(tried) >= TRIALS:
            whole_s, divided_s = np.min(tried, axis=0).tolist()
            return self._joined(arrays, count, rows_each) if divided_s < whole_s else None
        begin_s = time.perf_counter()
        expected: Outputs = whole.infer(arrays)
        middle_s = time.perf_counter()
        outputs = self._joined(arrays, count, rows_each)
        is_same = all(map(_is_same, outputs.to_tuple(), expected.to_tuple()))
        tried.append((middle_s - begin_s if is_same else 0.0, time.perf_counter() - middle_s))
        return expected

    def _joined(self, arrays: dict[int, NDArray[Any]], count: int, rows_each: int) -> Outputs:
        """Return the outputs of ``count`` rows, inferred ``rows_each`` at a time on copies expected to end first."""
        requests = []
        for first in range(0, count, rows_each):
            requests.append(self._model.create_infer_request())
            requests[-1].start_async({k: array[first : first + rows_each] for k, array in arrays.items()})
        for request in requests:
            request.wait()
        outputs = zip(*(request.results.to_tuple() for request in requests), strict=True)
        return Outputs(zip(self._model.outputs, map(np.concatenate, outputs), strict=True))


def _is_same(actual: NDArray[Any], expected: NDArray[Any]) -> bool:
    if actual.dtype.kind != "f":
        return np.array_equal(actual, expected)
    return bool(np.abs(actual - expected).max(initial=0.0) <= ROUNDING * np.abs(expected).max(initial=0.0))
