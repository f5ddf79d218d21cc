"""Every format takes every model that the graph can hold: with shapes that depend on data, and with a cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir import Placement
from hsdag.ir.export import export_formats, export_placement
from hsdag.runtime.executor.placed_parts import placed_parts

Place = Callable[[ov.Model, Callable[[int], str]], Placement]
SUFFIX = {
    "json": ".json", "csv": ".csv", "dot": ".dot", "ir": ".xml", "python": ".py", "cpp": ".cpp",
    "affinity": ".json", "parts": "", "ovms": "",
}  # fmt: skip


def detector() -> ov.Model:
    """As many boxes as the data has: their shape is read by constants' arithmetic, and a static one beside it."""
    scores = op.parameter([1, 2, 16], np.float32, name="scores")
    boxes = op.parameter([1, 16, 4], np.float32, name="boxes")
    kept = op.non_max_suppression(boxes, scores, op.constant(8), *(op.constant(np.float32(v)) for v in (0.5, 0.0)))
    found = op.gather(kept.output(0), op.constant([2]), op.constant(1))
    count = op.gather(op.shape_of(found), op.constant([0]), op.constant(0))
    size = op.gather(op.shape_of(boxes), op.constant([2]), op.constant(0))
    rows = op.gather(op.squeeze(boxes, op.constant([0])), op.squeeze(found, op.constant([1])), op.constant(0))
    flat = op.reshape(op.relu(rows), op.concat([count, size], 0), special_zero=False)
    return ov.Model([op.result(op.tanh(flat)), op.result(kept.output(2))], [scores, boxes], "detector")


def with_cache() -> ov.Model:
    """An attention step that appends to past keys, and takes shapes of the past and of their sum."""
    x = op.parameter([1, 1, 8], np.float32, name="x")
    past = op.parameter([1, 2, 4, 4], np.float32, name="past")
    heads = op.reshape(x, op.constant([1, 1, 2, 4]), special_zero=False)
    keys = op.concat([past, op.transpose(heads, op.constant([0, 2, 1, 3]))], 2)
    length = op.gather(op.shape_of(keys), op.constant([2]), op.constant(0))
    before = op.gather(op.shape_of(past), op.constant([2]), op.constant(0))
    last = op.slice(keys, before, length, op.constant([1]), op.constant([2]))
    flat = op.reshape(op.relu(last), op.shape_of(x), special_zero=False)
    return ov.Model([op.result(flat), op.result(keys)], [x, past], "with_cache")


@pytest.mark.parametrize("name", list(SUFFIX))
@pytest.mark.parametrize("build", [detector, with_cache])
def test_every_format_is_written_for_every_kind_of_model(
    tmp_path: Path, place: Place, build: Callable[[], ov.Model], name: str
) -> None:
    model = build()
    placement = place(model, lambda s: ("FAST", "SLOW")[s % 2])
    files = export_placement(placement, name, tmp_path / f"m{SUFFIX[name]}", model, cut=placed_parts)
    assert all(path.stat().st_size for path in files)


def test_no_format_is_left_out() -> None:
    assert {*SUFFIX, "ort"} == set(export_formats())  # which takes ONNX alone
