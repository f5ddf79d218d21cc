"""The zoo in torch beside OpenVINO's CPU device: every op on OpenVINO's inputs, and whole models."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from hsdag.models import ModelSpec, build_model, find_model
from hsdag.runtime.torch_ops.parity import op_differences, relative_difference, run_model, run_openvino

NAMES = ("tiny_resnet", "tiny_inception", "tiny_bert", "llama-decoder")
BAR = 1e-4


def _inputs(spec: ModelSpec) -> list[NDArray[Any]]:
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal(given.shape, dtype=np.float32)
        if given.element_type == "f32"
        else rng.integers(0, 100 if given.name == "input_ids" else 2, given.shape)
        for given in spec.inputs
    ]


@pytest.fixture(scope="module", params=NAMES)
def built(request: pytest.FixtureRequest) -> tuple[ov.Model, list[NDArray[Any]]]:
    """A model of the zoo and inputs for it."""
    return build_model(request.param), _inputs(find_model(request.param))


@pytest.mark.slow
def test_every_op_agrees_with_openvino(built: tuple[ov.Model, list[NDArray[Any]]]) -> None:
    found = op_differences(*built)
    skipped = {"Constant", "Parameter", "Result"}
    assert len(found) == sum(node.get_type_name() not in skipped for node in built[0].get_ops())
    assert not [op for op in found if op.relative > BAR]


def test_outputs_of_the_whole_model_agree(built: tuple[ov.Model, list[NDArray[Any]]]) -> None:
    for got, wanted in zip(run_model(*built), run_openvino(*built), strict=True):
        assert relative_difference(got, wanted) <= BAR
