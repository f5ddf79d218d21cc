"""Sessions: which physical CPU has the threads of the devices that are placed on, and what is read and made once."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import openvino as ov
import pytest

from hsdag.commands.place import session
from hsdag.commands.place.loaded_model import PlacedModel
from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.ir.graph.coarsen import placement_units
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
    source = ov.Core().read_model(tiny_resnet) if in_memory else tiny_resnet
    units = patch(f"{PlacedModel.__module__}.placement_units", wraps=placement_units)
    reading = patch.object(ov.Core, "read_model", autospec=True, side_effect=ov.Core.read_model)
    with units as made, reading as read, session.Session(source, resolve_devices(None, 2)) as found:
        monkeypatch.setattr(found, "unsupported_ops", lambda _: np.zeros(0, dtype=np.int64))
        again, coarse = found.problem(is_free=True), found.problem(max_share=1.0)
        assert found.problem().units is again.units
        assert found.problem(max_share=1.0).units is coarse.units
        assert found.loaded.op_shapes(found.graph) is found.loaded.op_shapes(found.graph)
    assert (read.call_count, made.call_count) == (1, 2)


def test_the_heaviest_op_of_a_unit_whose_device_is_known_decides_for_it(
    tiny_resnet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session.Session(tiny_resnet, resolve_devices(None, 2)) as found:
        monkeypatch.setattr(found, "unsupported_ops", lambda _: np.zeros(0, dtype=np.int64))
        problem = found.problem()
        wanted = np.arange(problem.num_units) % 2
        devices = problem.expand(wanted)
        heaviest = np.zeros(problem.num_units, dtype=np.int64)
        rising = np.argsort(found.graph.flops, kind="stable")
        heaviest[problem.units.partition.labels[rising]] = rising
        lighter = np.setdiff1d(np.arange(found.graph.num_ops), heaviest)
        for changed in (devices[lighter], 1 - devices[lighter], np.full(len(lighter), -1)):
            devices[lighter] = changed
            units = found.model.of_units(problem, devices)
            assert units is not None
            assert units.tolist() == wanted.tolist()
        assert found.model.of_units(problem, np.where(problem.units.partition.labels, devices, -1)) is None
        assert found.model.of_units(problem, ()) is None
