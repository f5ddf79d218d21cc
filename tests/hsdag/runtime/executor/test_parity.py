"""Parity: placed models give what the plain CPU gives, and bit for bit what their subgraphs give in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hsdag
from hsdag.models import build_model
from hsdag.runtime.executor.cut import Cut, Tensor
from tests.hsdag.runtime.executor.placing import Arrays, RecordingCore, drawn, plain, random_inputs
from tests.hsdag.runtime.executor.random_models import models

RELATIVE = 1e-4
"""Of the largest value of each output, what it may be off."""


def run_in_order(cut: Cut, compiled: Sequence[Any], model: ov.Model, inputs: Arrays) -> Arrays:
    """Outputs by OpenVINO's own calls alone: parts were compiled in the order of the cut; tensors are copied."""
    given = {port.get_node().get_friendly_name(): array for port, array in zip(model.inputs, inputs, strict=True)}
    made: dict[Tensor, Any] = {}
    for part, each in zip(cut.subgraphs, compiled, strict=True):
        read = {f"{cut.graph.op_names[t.op]}:{t.port}": t for t in part.inputs}
        request = each.create_infer_request()
        for k, port in enumerate(each.inputs):
            tensor = read[port.get_node().get_friendly_name()]
            array = given[cut.graph.op_names[tensor.op]] if tensor.source < 0 else made[tensor]
            request.set_input_tensor(k, ov.Tensor(np.array(array, order="C")))
        request.start_async()
        request.wait()
        for k, tensor in enumerate(part.outputs):
            made[tensor] = np.array(request.get_output_tensor(k).data)
    of_result = {cut.graph.op_names[v]: made[tensor] for v, tensor in cut.results}
    return [of_result[port.get_node().get_friendly_name()] for port in model.outputs]


def assert_parity(core: ov.Core, model: ov.Model, seed: int, num_devices: int) -> None:
    """Of a drawn placement, which is inferred twice."""
    inputs, recording = random_inputs(model, seed), RecordingCore(core)
    with hsdag.compile_work_conserving(model, drawn(model, seed, num_devices), recording) as compiled:
        found = [list(compiled(inputs).to_tuple()) for _ in range(2)]
        expected = run_in_order(compiled.cut, recording.compiled, model, inputs)
    for outputs in found:
        assert [one.tobytes() for one in outputs] == [other.tobytes() for other in expected]
    for one, other in zip(expected, plain(core, model, inputs), strict=True):
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
