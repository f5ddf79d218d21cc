"""Models whose nodes have no names of their own, read again and again."""

from __future__ import annotations

from pathlib import Path

import openvino as ov

import hsdag
from hsdag.ir.device import DeviceSpec
from hsdag.placing.session import Session
from hsdag.runtime.machine.devices import DeviceSet

CPU = DeviceSet((DeviceSpec("CPU", "CPU"),), ())
SHAPE = {"x": (2, 3, 8, 8)}


def test_what_place_returns_compiles_on_a_model_that_is_read_afterwards(onnx_file: Path) -> None:
    placement = hsdag.place(onnx_file, partition_cpu=2, method="best-device", budget="1s", shape=SHAPE)
    core = ov.Core()
    compiled = placement.compile(core, core.read_model(onnx_file))
    assert [tuple(port.get_shape()) for port in compiled.inputs] == [SHAPE["x"]]


def test_searches_and_profiles_know_a_model_again(onnx_file: Path) -> None:
    with Session(onnx_file, CPU, shapes=SHAPE) as first, Session(onnx_file, CPU, shapes=SHAPE) as second:
        assert first.graph.op_names != second.graph.op_names
        assert first.model_record == second.model_record
        assert first._digest == second._digest
