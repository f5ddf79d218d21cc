"""Devices of this machine, partitions of a CPU, and what users get wrong about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from hsdag.base.errors import DeviceError, OptionError
from hsdag.ir.device import DeviceSpec
from hsdag.runtime.machine import devices
from hsdag.runtime.machine.devices import (
    PRECISION,
    CpuTopology,
    canonical,
    cpu_topology,
    execution_devices,
    in_bf16,
    list_devices,
    partition_cpu,
    reason_of,
    reduced_precision,
    resolve_devices,
    with_precision,
)


@pytest.mark.parametrize(
    ("core", "atom", "usable", "expected"),
    [
        ("0-7", "8-11", range(12), (8, 4)),
        ("0-1,3", "2,4-5", range(6), (3, 3)),
        ("0-7", "8-11", (1, 2, 9), (2, 1)),
        ("0-7", "8-11", (8, 9), (2, 0)),
        ("0-7", "8-11", (0,), (1, 0)),
        ("0-3", None, range(4), (4, 0)),
        (None, "0-3", range(6), (6, 0)),
        (None, None, range(3), (3, 0)),
    ],
)
def test_cores_of_both_kinds_are_counted_as_linux_lists_them(
    core: str | None,
    atom: str | None,
    usable: Sequence[int],
    expected: tuple[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind, text in (("cpu_core", core), ("cpu_atom", atom)):
        if text is not None:
            (tmp_path / kind).mkdir()
            (tmp_path / kind / "cpus").write_text(f"{text}\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(usable))
    monkeypatch.setattr(devices, "CPU_LISTS", tmp_path)
    assert cpu_topology() == CpuTopology(*expected)


@pytest.mark.parametrize(
    ("parts", "cores", "performance", "efficiency"),
    [
        (2, (8, 4), [8], [4]),
        (3, (8, 4), [4, 4], [4]),
        (6, (8, 4), [2, 2, 2, 2], [2, 2]),
        (5, (7, 8), [4, 3], [3, 3, 2]),
        (3, (1, 8), [1], [4, 4]),
        (9, (8, 1), [1] * 8, [1]),
        (4, (2, 9), [2], [3, 3, 3]),
        (3, (3, 0), [1, 1, 1], []),
        (3, (8, 0), [3, 3, 2], []),
    ],
)
def test_parts_are_dealt_to_kinds_of_cores_by_their_threads(
    parts: int, cores: tuple[int, int], performance: list[int], efficiency: list[int]
) -> None:
    found: dict[str, list[int]] = {"PCORE_ONLY": [], "ECORE_ONLY": []}
    for number, spec in enumerate(partition_cpu(parts, CpuTopology(*cores))):
        assert spec.name == f"CPU_{number}"
        assert ("SCHEDULING_CORE_TYPE" in spec.properties) is (cores[1] > 0)
        found[spec.properties.get("SCHEDULING_CORE_TYPE", "PCORE_ONLY")].append(
            int(spec.properties["INFERENCE_NUM_THREADS"])
        )
    assert found == {"PCORE_ONLY": performance, "ECORE_ONLY": efficiency}
    with pytest.raises(DeviceError, match=f"only {sum(cores)} threads"):
        partition_cpu(sum(cores) + 1, CpuTopology(*cores))


@pytest.mark.parametrize(
    ("text", "known", "name", "plugin"),
    [
        ("GPU", "CPU GPU.0 GPU.1", "GPU.0", "GPU.0"),
        ("GPU.1", "CPU GPU.0 GPU.1", "GPU.1", "GPU.1"),
        ("GPU.0", "CPU GPU", "GPU", "GPU"),
        ("A=GPU[INFERENCE_PRECISION_HINT=f32]", "CPU GPU.0 GPU.1", "A", "GPU.0"),
        ("TPU", "CPU GPU", "TPU", "TPU"),
    ],
)
def test_a_device_has_the_name_that_openvino_lists(text: str, known: str, name: str, plugin: str) -> None:
    given = DeviceSpec.parse(text)
    assert canonical(given, known.split()) == DeviceSpec(name, plugin, given.properties)


ONE = "CPU[INFERENCE_NUM_THREADS=1]"


@pytest.mark.parametrize(
    ("devices", "parts", "placed", "rivals"),
    [
        ("CPU", 2, ["CPU_0", "CPU_1"], ["CPU"]),
        (f"FAST={ONE},SLOW={ONE}", None, ["FAST", "SLOW"], ["CPU"]),
        (f"CPU,OTHER={ONE}", None, ["CPU", "OTHER"], []),
        (None, None, [info.name for info in list_devices() if info.failure is None], []),
    ],
)
def test_parts_of_a_device_compete_with_the_whole_one(
    devices: str | None, parts: int | None, placed: list[str], rivals: list[str]
) -> None:
    found = resolve_devices(devices, parts)
    assert [spec.name for spec in found.placed] == placed
    assert [spec.name for spec in found.rivals] == rivals


@pytest.mark.parametrize(
    ("devices", "parts", "complaint"),
    [
        ("CPU,TPU", None, "unknown device 'TPU': OpenVINO finds CPU"),
        ("CPU,G=GPU[]", None, r"'G' \(GPU\) fails to load"),
        ("CPU,CPU.0", None, r"occurs twice in 'CPU,CPU\.0'"),
        (f"CPU_0={ONE}", 2, "give it another name"),
        ("CPU", 1, "at least 2"),
    ],
)
def test_devices_that_cannot_be_are_refused(devices: str, parts: int | None, complaint: str) -> None:
    with pytest.raises(DeviceError, match=complaint):
        resolve_devices(devices, parts)


def test_a_precision_is_for_every_device_and_contradicts_none() -> None:
    devices = (DeviceSpec.parse(f"A=CPU[{PRECISION}=f32]"), DeviceSpec("CPU", "CPU"))
    assert [spec.properties[PRECISION] for spec in with_precision(devices, "f32")] == ["f32", "f32"]
    with pytest.raises(OptionError, match=r"has INFERENCE_PRECISION_HINT=f32 among its properties, and .* says bf16"):
        with_precision(devices, "bf16")
    assert not reduced_precision(devices[:1])


def test_cpus_compute_in_bf16_as_told_or_as_they_say_and_on_another_machine_unless_told_otherwise() -> None:
    specs = [DeviceSpec.parse(each) for each in ("CPU", f"A=CPU[{PRECISION}=bf16]", f"B=CPU[{PRECISION}=f32]", "GPU")]
    for own, found in (("bf16", {0, 1}), ("f32", {1})):
        said = {"CPU": own, "CPU_A": "bf16", "CPU_B": "f32", "GPU": "bf16"}
        core = SimpleNamespace(get_property=lambda name, _, said=said: said[name])
        assert [in_bf16(specs, hint, core) for hint in (None, "bf16", "f32")] == [found, {0, 1, 2}, set()]
    assert in_bf16(specs) == {0, 1}


@pytest.mark.parametrize(
    ("told", "names"),
    [(["CPU", "(GPU)", "GPU.1"], ("CPU", "GPU_A.0", "GPU.1")), (["GPU.0", "GPU.0"], ("GPU_A.0",)), (["NPU"], ("NPU",))],
)
def test_a_gpu_has_the_names_that_it_was_asked_for_by(told: list[str], names: tuple[str, ...]) -> None:
    compiled = SimpleNamespace(get_property=lambda _: told)
    assert execution_devices(compiled, [DeviceSpec("A", "GPU.0", {}), DeviceSpec("CPU", "CPU")]) == names


def test_the_reason_of_an_error_leaves_out_where_it_passed() -> None:
    lines = "Exception from src/a.cpp:1:\n\nCaught exception: Exception from b:2\nno such op\n too large\nAt:\n  x.py"
    assert reason_of(RuntimeError(lines)) == "no such op: too large"
    assert reason_of(ValueError()) == "ValueError"
