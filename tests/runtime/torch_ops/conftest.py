"""Fixtures for tests of the torch op library: one op beside OpenVINO's CPU device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino import opset13

from hsdag.runtime.torch_ops.parity import op_differences

BAR = 1e-4


def model_of(build: Callable[..., ov.Node], *arrays: NDArray[Any]) -> ov.Model:
    """A model of one op, or of a few, with a parameter for each array and a result for each output."""
    parameters = [opset13.parameter(list(x.shape), x.dtype) for x in arrays]
    node = build(*parameters)
    return ov.Model([opset13.result(port) for port in node.outputs()], parameters, "one op")


def assert_agrees(build: Callable[..., ov.Node], *arrays: NDArray[Any]) -> None:
    """Every op that ``build`` makes of parameters like ``arrays`` computes what OpenVINO computes."""
    found = op_differences(model_of(build, *arrays), arrays)
    assert found
    assert not [op for op in found if op.relative > BAR]


@pytest.fixture(scope="session")
def make_model() -> Callable[..., ov.Model]:
    """``model_of``, for tests."""
    return model_of


@pytest.fixture(scope="session")
def agrees() -> Callable[..., None]:
    """``assert_agrees``, for tests."""
    return assert_agrees


@pytest.fixture(scope="session")
def numbers() -> Callable[..., NDArray[np.float32]]:
    """Normal numbers of a shape, always the same, times a scale."""

    def draw(*shape: int, scale: float = 1.0, seed: int = 0) -> NDArray[np.float32]:
        return scale * np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)

    return draw
