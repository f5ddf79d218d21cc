"""Sessions: which physical CPU has the threads of the devices that are placed on."""

from __future__ import annotations

import pytest

from hsdag.commands.place import session
from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.runtime.machine.devices import CpuTopology, DeviceSet

CPU = DeviceSpec("CPU", "CPU")


@pytest.mark.parametrize(
    ("devices", "whole_devices"),
    [
        ("A=CPU[INFERENCE_NUM_THREADS=2],B=CPU[INFERENCE_NUM_THREADS=2]", (CPU,)),
        ("A=CPU[INFERENCE_NUM_THREADS=2],B=CPU[INFERENCE_NUM_THREADS=1]", ()),  # the whole may gain more than both
        ("A=CPU[INFERENCE_NUM_THREADS=2],B=CPU", ()),
    ],
)
def test_a_whole_cpu_shows_what_parts_gain_together_where_they_have_all_its_threads(
    devices: str, whole_devices: tuple[DeviceSpec, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "cpu_topology", lambda: CpuTopology(4, 0))
    assert session.whole_cpus(DeviceSet(parse_devices(devices), (CPU,))) == whole_devices
