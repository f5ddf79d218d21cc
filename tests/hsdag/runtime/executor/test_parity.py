"""Parity: placed models give what the plain CPU gives."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hsdag
from hsdag.models import build_model
from tests.hsdag.runtime.executor.placing import drawn, plain, random_inputs
from tests.hsdag.runtime.executor.random_models import models

RELATIVE = 1e-4
"""Of the largest value of each output, what it may be off."""


def assert_parity(core: ov.Core, model: ov.Model, seed: int, num_devices: int) -> None:
    """Of a drawn placement, which is inferred twice."""
    inputs = random_inputs(model, seed)
    expected = plain(core, model, inputs)
    with hsdag.compile_work_conserving(model, drawn(model, seed, num_devices), core) as compiled:
        for _ in range(2):
            for one, other in zip(compiled(inputs).to_tuple(), expected, strict=True):
                assert (one.shape, one.dtype) == (other.shape, other.dtype)
                assert np.abs(one - other).max(initial=0) <= RELATIVE * np.abs(other).max(initial=1e-3)


@settings(max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.too_slow])
@given(model=models, seed=st.integers(0, 99), num_devices=st.integers(2, 4))
def test_random_placements_of_random_models_agree(core: ov.Core, model: ov.Model, seed: int, num_devices: int) -> None:
    assert_parity(core, model, seed, num_devices)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_bert"])
def test_a_random_placement_of_a_small_network_agrees(core: ov.Core, name: str) -> None:
    assert_parity(core, build_model(name), 1, 2)
