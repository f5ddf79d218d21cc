"""Models whose nodes have no names of their own, read again and again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset6
from openvino import opset13 as op

import hsdag
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.reader import load_model
from hsdag.placing.session import Session
from hsdag.runtime.machine.devices import DeviceSet
from hsdag.runtime.measuring.messages import WorkerSetup

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


def test_the_worker_numbers_the_ops_of_a_model_with_state_as_the_session_does() -> None:
    x = op.parameter([2, 3], np.float32, name="x")
    total, stores = x, []
    for variable in "abc":
        old = opset6.read_value(op.constant(np.zeros((2, 3), np.float32)), variable, np.float32, [2, 3])
        total = op.add(total, old)
        stores.append(opset6.assign(op.relu(total), variable))
    model = ov.Model([op.result(total)], stores, [x], "state")
    with Session(model, CPU) as session:
        setup = session.client.setup
        assert isinstance(setup, WorkerSetup)
        assert session.graph.op_names == graph_of(load_model(setup.model)).op_names
