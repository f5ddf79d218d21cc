"""Parity: placed models give what the plain CPU gives, and bit for bit what their subgraphs give in order."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hsdag
from hsdag.models import build_model
from tests.runtime.executor.in_order import run_in_order
from tests.runtime.executor.placing import Arrays, RecordingCore, drawn, plain, random_inputs
from tests.runtime.executor.random_models import models

RELATIVE = 1e-4


def assert_near(found: Arrays, expected: Arrays) -> None:
    """Within 1e-4 of the largest value of each output."""
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert np.abs(one - other).max(initial=0) <= RELATIVE * np.abs(other).max(initial=1e-3)


def assert_parity(core: ov.Core, model: ov.Model, seeds: list[int], num_devices: int) -> None:
    """Of one placement for each seed; every placement is inferred twice."""
    inputs = random_inputs(model, seeds[0])
    on_cpu = plain(core, model, inputs)
    for seed in seeds:
        recording = RecordingCore(core)
        with hsdag.compile_work_conserving(model, drawn(model, seed, num_devices), recording) as compiled:
            found = [list(compiled(inputs).to_tuple()) for _ in range(2)]
            expected = run_in_order(compiled.cut, recording.compiled, model, inputs)
        for outputs in found:
            assert [one.tobytes() for one in outputs] == [other.tobytes() for other in expected]
        assert_near(expected, on_cpu)


@settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
@given(model=models, seed=st.integers(0, 99), num_devices=st.integers(2, 4))
def test_random_placements_of_random_models_agree(core: ov.Core, model: ov.Model, seed: int, num_devices: int) -> None:
    assert_parity(core, model, [seed], num_devices)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_inception", "tiny_bert"])
def test_a_random_placement_of_a_small_network_agrees(core: ov.Core, name: str) -> None:
    assert_parity(core, build_model(name), [1], 2)
