"""What the examining process answers about devices of this machine and a model on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import DeviceError, ModelError
from hsdag.ir.graph.scenario import Scenario
from hsdag.runtime.measuring.differences import CPU_IN_SINGLE
from hsdag.runtime.measuring.messages import WorkerSetup
from hsdag.runtime.measuring.worker import DRIVER, Worker

SINGLE = DeviceSpec.parse("SINGLE=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]")
OTHER = DeviceSpec.parse("OTHER=CPU[INFERENCE_NUM_THREADS=1]")


@pytest.fixture(scope="module")
def examiner() -> Worker:
    return Worker(WorkerSetup(None))


def of_model(folder: Path, output: Any, given: Any, *scenarios: Scenario) -> Worker:
    path = folder / "model.xml"
    ov.save_model(ov.Model([opset13.result(output)], [given], "m"), path, compress_to_fp16=False)
    return Worker(WorkerSetup(path, scenarios=scenarios))


def test_devices_are_listed_all_together_and_by_plugin(examiner: Worker) -> None:
    assert "CPU" in examiner.list_devices()
    assert examiner.list_devices("CPU") == ("CPU",)


def test_a_device_says_what_it_is_and_computes_in(examiner: Worker) -> None:
    facts = examiner.device_facts(SINGLE)
    assert facts.full_name == ov.Core().get_property("CPU", "FULL_DEVICE_NAME")
    assert facts.precision == "f32"
    assert facts.plugin_version == ov.Core().get_versions("CPU")["CPU"].build_number
    assert facts.memory_bytes > 1e9  # type: ignore[operator]
    assert facts.kind in ("integrated", "discrete")


def test_an_absent_device_is_the_users_mistake(examiner: Worker) -> None:
    with pytest.raises(DeviceError, match=r"unknown device 'GPU\.7'"):
        examiner.device_facts(DeviceSpec.parse("GPU.7"))


def test_a_device_in_f32_is_not_off_and_one_in_half_precision_is(examiner: Worker) -> None:
    assert examiner.precision(SINGLE).default["max_relative"] < 1e-5  # type: ignore[operator]
    if "BF16" in examiner.device_facts(OTHER).capabilities:
        found = examiner.precision(DeviceSpec.parse("HALF=CPU[INFERENCE_PRECISION_HINT=bf16]"))
        assert found.default["max_relative"] > 1e-4 > found.single["max_relative"]  # type: ignore[operator]


def test_the_driver_is_read_from_the_head_of_a_compiled_model() -> None:
    head = b"\1\0meta=1.0;ov=2026.4.1;desc=[driver=2026.22.10.0.01_160000;ip=12.2.0;eus=2]\0"
    found = DRIVER.search(head)
    assert found is not None
    assert found[1] == b"2026.22.10.0.01_160000"


def test_two_devices_run_side_by_side_in_rounds(examiner: Worker) -> None:
    (own, rounds), (other, own_again) = examiner.contention((SINGLE, OTHER), "compute", 0.0)
    assert own == own_again == []
    assert len(rounds) == len(other) >= 4
    assert all(seconds > 0 for pair in (*rounds, *other) for seconds in pair)


def test_hetero_gives_every_op_to_the_first_device_that_runs_it(tiny_resnet: Path) -> None:
    examiner = Worker(WorkerSetup(tiny_resnet))
    assert set(examiner.choices("HETERO:CPU_SINGLE,CPU_OTHER", (SINGLE, OTHER))) == {"CPU_SINGLE"}
    assert all(examiner.choices("CPU_OTHER", (OTHER,)))


def test_outputs_of_the_model_are_compared_with_those_of_the_cpu_in_f32(tiny_resnet: Path) -> None:
    examiner = Worker(WorkerSetup(tiny_resnet))
    assert examiner.compare_outputs((SINGLE, CPU_IN_SINGLE))["max_relative"] < 1e-5  # type: ignore[operator]


def test_a_model_of_open_shapes_is_not_run(tmp_path: Path) -> None:
    given = opset13.parameter([-1, 3], np.float32, name="x")
    with pytest.raises(ModelError, match="--data-shape"):
        of_model(tmp_path, opset13.relu(given), given).compare_outputs((OTHER, CPU_IN_SINGLE))


def test_a_model_of_open_shapes_is_run_on_those_of_typical_data(tmp_path: Path) -> None:
    given = opset13.parameter([-1, 3], np.float32, name="x")
    scenarios = [Scenario(({"x": (40, 3)}, {"x": (2, 3)}))]
    examiner = of_model(tmp_path, opset13.relu(given, name="r"), given, *scenarios)
    assert examiner.compare_outputs((SINGLE, CPU_IN_SINGLE))["max_relative"] == 0.0
