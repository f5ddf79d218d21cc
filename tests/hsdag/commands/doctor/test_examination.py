"""Examinations of this machine: what they find, and that no plugin that fails ends one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from hsdag.commands.doctor import findings
from hsdag.commands.doctor.examination import Examination, examine
from hsdag.commands.doctor.findings import Severity
from hsdag.models import save_model_files

pytestmark = pytest.mark.slow

TWO = "A=CPU[INFERENCE_NUM_THREADS=1],B=CPU[INFERENCE_NUM_THREADS=1]"


def faulty(*faults: str) -> tuple[str, ...]:
    return sys.executable, "-m", "tests.hsdag.commands.doctor.faulty_examiner", *faults


def texts(found: Examination, severity: Severity) -> list[str]:
    return [f"{each.about}: {each.text}" for each in found.findings if each.severity is severity]


@pytest.fixture(scope="module")
def found(tiny_resnet: Path) -> Examination:
    return examine(tiny_resnet, TWO)


def test_every_question_about_a_sound_machine_is_answered(found: Examination, tiny_resnet: Path) -> None:
    assert texts(found, Severity.DANGER) == []
    assert all(device.facts is not None and device.outputs_of_a_small_network is not None for device in found.devices)
    (pair,) = found.pairs
    assert pair.names == ("A", "B")
    assert set(pair.gains) == {"compute", "memory"}
    assert all(gain > 0 for gain in pair.gains.values())
    assert found.next == (f"hsdag place {tiny_resnet} --devices '{TWO}'",)
    document = found.model_dump(mode="json")
    assert document["openvino"] == ov.get_version()
    assert [device["name"] for device in document["devices"]] == ["A", "B"]
    assert document["model"]["unsupported"] == {"A": [], "B": []}


def test_plugins_that_crash_hang_or_are_absent_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "ANSWER_S", 1.0)
    command = faulty("crash device_facts 'A'", "hang device_facts 'B'")
    found = examine(None, f"{TWO},GPU.7", command=command)
    crashed, hung, absent = texts(found, Severity.DANGER)
    assert crashed.startswith("A: loading failed: the worker was ended by SIGSEGV")
    assert hung == "B: loading failed: the worker gave no answer within 1 s and was killed"
    assert absent.startswith("GPU.7: loading failed: unknown device 'GPU.7'")
    assert [device.facts for device in found.devices] == [None, None, None]
    assert found.next == ()


def test_where_openvino_crashes_over_its_devices_each_plugin_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compiles is given up with the budget, and is not said to hang."""
    monkeypatch.setattr(findings, "LEAST_S", 1.0)
    found = examine(budget=1e-3, command=faulty("crash list_devices args=()", "hang precision 'CPU'"))
    (text,) = texts(found, Severity.DANGER)
    assert text.startswith("OpenVINO: listing devices failed: the worker was ended by SIGSEGV")
    (text,) = texts(found, Severity.WARNING)
    assert text.startswith("CPU: a small network was not finished in the 1 s that were left")
    (device,) = found.devices
    assert (device.name, device.outputs_of_a_small_network) == ("CPU", None)
    assert device.facts is not None


@pytest.mark.parametrize("is_faulty", [True, False])
def test_outputs_that_are_wrong_once_inputs_shrink_are_a_danger(is_faulty: bool) -> None:
    given = opset13.parameter([-1], np.float32, name="x")
    node = opset13.convert(given, "f32") if is_faulty else opset13.tanh(given)
    model = ov.Model([opset13.result(node, name="y")], [given], "m")
    found = examine(model, "CPU", data_shape="x[72]")
    wrong = [text for text in texts(found, Severity.DANGER) if "once its inputs shrink" in text]
    assert len(wrong) == is_faulty


def test_of_a_folder_whose_network_generates_it_is_said_what_genai_can_do(tmp_path: Path) -> None:
    save_model_files("tiny_stateful_llama_fp16", tmp_path / "openvino_model.xml")
    found = examine(tmp_path, "CPU", budget=1e-3)
    assert found.genai["chat"] == "a placement needs two devices: partition_cpu 2 makes two of the CPU"
    assert examine(tmp_path / "openvino_model.xml", "CPU", budget=1e-3).genai == {}
