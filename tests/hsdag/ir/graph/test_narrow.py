"""Convolutions of one column in bf16."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir.graph.narrow import widen_columns
from tests.precisions import needs_bf16


@needs_bf16
@pytest.mark.parametrize(("width", "begin", "end"), [(1, 1, 1), (2, 1, 0), (3, 0, 0), (4, 0, 0)])
def test_a_column_is_what_the_convolution_gives_in_f32(width: int, begin: int, end: int) -> None:
    rng = np.random.default_rng(0)
    x, weights = op.parameter([1, 24, 32, width]), op.constant(rng.standard_normal((96, 24, 3, 3), np.float32))
    model = ov.Model([op.result(op.convolution(x, weights, [2, 2], [1, begin], [1, end], [1, 1]))], [x], "column")
    given = rng.standard_normal((1, 24, 32, width), np.float32)
    wanted = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(given)[0]
    assert wanted.shape[3] == 1
    widen_columns(model.get_ordered_ops())
    found = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "bf16"})(given)[0]
    np.testing.assert_allclose(found, wanted, atol=0.02 * np.abs(wanted).max())
