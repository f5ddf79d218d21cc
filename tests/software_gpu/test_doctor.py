"""``hsdag doctor`` on the software GPUs: what it says of them, and of what HETERO does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15

from hsdag.commands.doctor.examination import Examination, examine
from hsdag.commands.doctor.findings import Severity
from hsdag.models import save_model_files


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Examination:
    path = save_model_files("tiny_resnet", tmp_path_factory.mktemp("zoo") / "tiny_resnet.xml")
    return examine(path, "GPU.0,GPU.1", budget=300.0)


def test_a_gpu_tells_its_driver_memory_and_precision(found: Examination) -> None:
    for device in found.devices:
        assert device.facts is not None
        assert device.facts.precision == "f16"
        assert device.facts.memory_bytes is not None
        precision = device.outputs_of_a_small_network
        assert precision is not None
        assert precision.driver
        by_default, in_f32 = precision.default["max_relative"], precision.single["max_relative"]
        assert by_default is not None
        assert in_f32 is not None
        assert in_f32 < 1e-5 < by_default < 1e-2


def test_the_second_gpu_gets_nothing_because_the_first_runs_the_model(found: Examination) -> None:
    assert [finding.text for finding in found.findings if finding.severity is Severity.DANGER] == []
    assert any(finding.text == "GPU.1 will get nothing: GPU.0 runs every op" for finding in found.findings)


def test_hetero_says_which_device_runs_what_the_gpus_do_not(tmp_path: Path) -> None:
    x = opset15.parameter([4, 4], np.float32)
    model = ov.Model([opset15.result(opset15.inverse(opset15.relu(x), False))], [x], "inverse")
    ov.save_model(model, tmp_path / "inverse.xml", compress_to_fp16=False)
    found = examine(tmp_path / "inverse.xml", "GPU.0,CPU", budget=300.0).model
    assert found is not None
    (inverse,) = found.unsupported["GPU.0"]
    for choice in found.hetero:
        assert {each.name: each.ops for each in choice.devices} == {"GPU.0": 2, "CPU": 2}, (choice, inverse)


def test_a_gpu_whose_outputs_leave_the_range_of_f16_is_to_compute_in_f32(tmp_path: Path) -> None:
    x = opset15.parameter([1, 64], np.float32, name="x")
    large = opset15.multiply(opset15.matmul(x, np.ones((64, 64), np.float32), False, False), np.float32(6e4))
    ov.save_model(ov.Model([opset15.result(large)], [x], "large"), tmp_path / "large.xml", compress_to_fp16=False)
    found = examine(tmp_path / "large.xml", "GPU.0", budget=300.0)
    assert found.model is not None
    assert found.model.imprecise == ("GPU.0",)
    assert [each.about for each in found.findings if "not finite" in each.text] == ["GPU.0"]
    assert "INFERENCE_PRECISION_HINT=f32" in found.next[0]
