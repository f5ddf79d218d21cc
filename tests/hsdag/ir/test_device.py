"""Devices: the forms they are written in, and their registration with a real OpenVINO."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import openvino as ov
import pytest

from hsdag.base.errors import DeviceError
from hsdag.ir.device import DeviceIndex, DeviceSpec, hetero_properties, parse_devices, plugin_library

INDEPENDENT = {"ENABLE_CPU_PINNING": "NO", "EXCLUSIVE_ASYNC_REQUESTS": "NO"}
"""What added CPU devices have by default."""


@pytest.mark.parametrize(
    ("text", "name", "openvino_name", "properties"),
    [
        (" GPU.1 ", "GPU.1", "GPU.1", {}),
        ("GPU.1[INFERENCE_PRECISION_HINT=f32]", "GPU.1", "GPU.1", {"INFERENCE_PRECISION_HINT": "f32"}),
        ("FAST=CPU", "FAST", "CPU_FAST", INDEPENDENT),
        ("CPU_0=CPU[INFERENCE_NUM_THREADS=1; ENABLE_CPU_PINNING=YES]", "CPU_0", "CPU_0",
         {**INDEPENDENT, "INFERENCE_NUM_THREADS": "1", "ENABLE_CPU_PINNING": "YES"}),
        ("A=GPU.1", "A", "GPU_A.1", {}),
        ("MYGPU=GPU.0", "MYGPU", "MYGPU.0", {}),
    ],
)  # fmt: skip
def test_a_device_has_its_name_openvinos_name_and_its_properties(
    text: str, name: str, openvino_name: str, properties: dict[str, str]
) -> None:
    spec = DeviceSpec.parse(text)
    found = (spec.name, spec.openvino_name, spec.is_added, dict(spec.properties))
    assert found == (name, openvino_name, "=CPU" in text or "=GPU" in text, properties)


def test_an_index_converts_positions_of_devices_to_both_kinds_of_names_and_back() -> None:
    index = DeviceIndex.of(parse_devices("GPU,FAST=CPU,A=GPU.1"))
    assert (index.names, index.openvino_names) == (("GPU", "FAST", "A"), ("GPU", "CPU_FAST", "GPU_A.1"))
    positions = [2, 0, 1, 2]
    assert index.positions(index.named(positions)) == positions
    assert index.openvino_positions(index.openvino_named(positions)) == positions
    assert index.openvino_positions(["", "GPU", "A"]) == [-1, 0, -1]
    with pytest.raises(KeyError, match="CPU_FAST"):
        index.positions(["CPU_FAST"])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "neither a name"),
        ("1CPU", "neither a name"),
        ("A=CPU[X=1", "neither a name"),
        ("A=TPU", "no device can be added over 'TPU'; plugins are CPU, GPU, NPU"),
        ("A=CPU[THREADS]", "property 'THREADS' is not of the form KEY=VALUE"),
        ("A=CPU[=1]", "not of the form KEY=VALUE"),
        ("A=CPU[X=]", "not of the form KEY=VALUE"),
    ],
)
def test_other_forms_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(DeviceError, match=complaint):
        DeviceSpec.parse(text)


def test_a_list_is_split_at_commas_outside_brackets() -> None:
    specs = parse_devices("CPU, A=CPU[X=1,2;Y=3],GPU.0")
    assert [(spec.name, spec.properties.get("X")) for spec in specs] == [("CPU", None), ("A", "1,2"), ("GPU.0", None)]


@pytest.mark.parametrize("text", ["CPU,CPU", "A=CPU,A=CPU[X=1]", "A=CPU,CPU_A=CPU", "A=CPU,A=GPU", " , "])
def test_a_device_given_twice_or_none_is_refused(text: str) -> None:
    with pytest.raises(DeviceError, match=r"occurs twice|no device given"):
        parse_devices(text)


def test_an_added_cpu_device_is_real_and_has_the_properties_of_its_last_spec_alone() -> None:
    core, names = ov.Core(), ("INFERENCE_NUM_THREADS", "INFERENCE_PRECISION_HINT", "PERF_COUNT", "FULL_DEVICE_NAME")
    DeviceSpec.parse("ONE=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32;PERF_COUNT=YES]").register(core)
    plain = {name: core.get_property("CPU", name) for name in names}
    added = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": ov.Type.f32, "PERF_COUNT": True}
    assert plain["INFERENCE_NUM_THREADS"] == 0
    assert {name: core.get_property("CPU_ONE", name) for name in names} == {**plain, **added}
    DeviceSpec.parse("ONE=CPU[INFERENCE_PRECISION_HINT=f32]").register(core)
    expected = {**plain, "INFERENCE_PRECISION_HINT": ov.Type.f32}
    assert {name: core.get_property("CPU_ONE", name) for name in names} == expected


def test_a_callers_device_properties_are_merged_with_the_devices_own() -> None:
    specs = (DeviceSpec.parse("ONE=CPU[INFERENCE_NUM_THREADS=1]"), DeviceSpec("GPU", "GPU"))
    given = {"DEVICE_PROPERTIES": {"CPU_ONE": {"PERF_COUNT": "YES"}, "GPU": {"PERF_COUNT": "NO"}}, "CACHE_DIR": "c"}
    assert hetero_properties(specs, given) == {
        "CACHE_DIR": "c",
        "DEVICE_PROPERTIES": {
            "CPU_ONE": {**specs[0].properties, "PERF_COUNT": "YES"},
            "GPU": {"PERF_COUNT": "NO"},
        },
    }
    assert hetero_properties((), None) == {}


@pytest.mark.parametrize("body", ["INFERENCE_NUM_THREADS=many", "NO_SUCH_KEY=1"])
def test_a_refused_property_is_one_clear_line(body: str) -> None:
    with pytest.raises(DeviceError, match=r"device 'BAD' \(CPU\) fails to load: .+") as caught:
        DeviceSpec.parse(f"BAD=CPU[{body}]").register(ov.Core())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("plugin", ["./evil.so", "/tmp/libopenvino_intel_cpu_plugin.so", "CPU,./evil.so"])
def test_a_plugin_in_a_file_names_no_library(plugin: str) -> None:
    with pytest.raises(DeviceError, match=rf"device 'A': no device can be added over '{plugin}'"):
        DeviceSpec("A", plugin).register(ov.Core())


def test_a_library_is_not_taken_from_the_current_folder_where_openvino_has_none_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ov, "__file__", str(tmp_path / "openvino" / "__init__.py"))
    assert plugin_library("openvino_intel_cpu_plugin") == "openvino_intel_cpu_plugin"  # which the system looks for
    (tmp_path / "libopenvino_intel_cpu_plugin.so").touch()
    with pytest.raises(DeviceError, match="OpenVINO would load openvino_intel_cpu_plugin from the current folder"):
        plugin_library("openvino_intel_cpu_plugin")


PROGRAM = """
import signal, openvino as ov
from hsdag.ir.device import DeviceSpec
from hsdag.runtime.machine.devices import make_core
core = ov.Core()
for name in ("SLOW", "FAST"):
    DeviceSpec.parse(f"{name}=CPU").register(core)
del core
first = make_core((DeviceSpec.parse("CPU"),))
second = make_core((DeviceSpec.parse("CPU"),))
del first
del second
signal.signal(signal.SIGINT, lambda *_: print("handled"))
signal.raise_signal(signal.SIGINT)
"""
"""Two devices of one core, and two cores."""


def test_ctrl_c_after_plugins_are_gone_reaches_its_handler() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "handled\n", "")
