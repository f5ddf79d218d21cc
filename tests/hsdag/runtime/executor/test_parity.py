"""Parity: placed models give what the plain CPU gives."""

from __future__ import annotations

import numpy as np
import openvino as ov
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openvino import opset13 as op

import hsdag
from tests.hsdag.ir.shards.random_shards import inputs_of, outputs_of
from tests.hsdag.runtime.executor.placing import drawn

RELATIVE = 1e-4
"""Of the largest value of each output, what it may be off."""


def hard_to_cut() -> ov.Model:
    """Shared weights, joins, an op with two outputs, shapes that are read, and one that the data decides."""
    x, y = (op.parameter([1, 4, 6, 6], np.float32, name=name) for name in "xy")
    values = np.random.default_rng(0).standard_normal((4, 4, 3, 3)) / 6
    weights = op.convert(op.constant(values.astype(np.float16)), "f32")
    near, far = (op.convolution(z, weights, *([[1, 1]] * 4)) for z in (x, y))
    left, right = op.split(op.concat([near, op.tanh(far)], 1), op.constant(1), 2).outputs()
    first, second = op.constant([0]), op.constant([1])
    batch = op.gather(op.shape_of(right), first, op.constant(0))
    flat = op.reshape(op.multiply(left, left), op.concat([batch, op.constant([-1])], 0), special_zero=False)
    back = op.reshape(op.relu(flat), op.shape_of(right), special_zero=False)
    best = op.topk(op.tanh(x), op.constant(6), 3, "max", "value")
    count = op.gather(op.shape_of(op.non_zero(op.relu(y))), second, op.constant(0))
    counted = op.add(op.convert(best.output(1), "f32"), op.convert(count, "f32"))
    shifted = op.matmul(back, op.constant(np.eye(6, k=1, dtype=np.float32)), False, False)
    ends = [op.constant(np.arange(3, dtype=np.float32)), best.output(0), counted, shifted, back, back, x]
    return ov.Model([op.result(end) for end in ends], [x, y], "hard")


def assert_parity(core: ov.Core, model: ov.Model, seed: int, num_devices: int) -> None:
    """Of a drawn placement, which is inferred twice."""
    inputs = inputs_of(model, np.random.default_rng(seed))
    expected = outputs_of(model, inputs)
    with hsdag.compile_work_conserving(model, drawn(model, seed, num_devices), core) as compiled:
        for _ in range(2):
            for one, other in zip(compiled(inputs).to_tuple(), expected, strict=True):
                assert (one.shape, one.dtype) == (other.shape, other.dtype)
                assert np.abs(one - other).max(initial=0) <= RELATIVE * np.abs(other).max(initial=1e-3)


@settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 9999), num_devices=st.integers(2, 4))
def test_random_placements_of_a_model_that_is_hard_to_cut_agree(core: ov.Core, seed: int, num_devices: int) -> None:
    assert_parity(core, hard_to_cut(), seed, num_devices)
