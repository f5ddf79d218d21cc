"""Sessions: which physical CPU has the threads of the devices that are placed on, and what is read and made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from hsdag.commands.place import loaded_model, session
from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.runtime.machine.devices import CpuTopology, DeviceSet, resolve_devices

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


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_model_is_read_once_and_its_units_and_shapes_are_made_once_for_what_asks_for_the_same(
    in_memory: bool, tiny_resnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, made = list[Any](), list[Any]()
    source = ov.Core().read_model(tiny_resnet) if in_memory else tiny_resnet
    read_model = ov.Core.read_model
    monkeypatch.setattr(ov.Core, "read_model", lambda *given: read.append(given) or read_model(*given))
    units = loaded_model.placement_units
    monkeypatch.setattr(loaded_model, "placement_units", lambda *given, **how: made.append(how) or units(*given, **how))
    with session.Session(source, resolve_devices(None, 2)) as found:
        monkeypatch.setattr(found, "unsupported_ops", lambda _: np.zeros(0, dtype=np.int64))
        again, coarse = (found.problem(is_free=free, max_share=share) for free, share in ((True, None), (False, 1.0)))
        assert found.problem().units is again.units
        assert found.problem(max_share=1.0).units is coarse.units
        assert found.shapes is found.shapes
        alone = [each.placement for each in again.alone]
        by_op = [again.expand(each) for each in alone]
        by_op[1][found.graph.flops < found.graph.flops.max()] = -1  # the heaviest op alone does not say it of all units
        assert [found.of_units(again, each) is None for each in (*by_op, [])] == [False, True, True]
    assert (len(read), [each["max_share"] for each in made]) == (1, [1 / 16, 1.0])
