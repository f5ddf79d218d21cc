"""Gated layers: the same numbers, and none for the kernel that needs two threads, wherever a device has one."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.gates import keep_gates_apart
from hsdag.ir.placement.prepared import prepare
from hsdag.runtime.executor.compiling import compile_placed
from tests.placements import by_hand

RNG = np.random.default_rng(0)
WIDTH, INNER = 64, 96
X = RNG.standard_normal((2, 8, WIDTH), np.float32)
GATE, UP, DOWN = (
    (RNG.standard_normal(shape, np.float32) / 8).astype(np.float16) for shape in [(INNER, WIDTH)] * 2 + [(WIDTH, INNER)]
)
ONE, TWO = (DeviceSpec.parse(f"{name}=CPU[INFERENCE_NUM_THREADS={n}]") for name, n in (("ONE", 1), ("TWO", 2)))


def gated(num: int = 1) -> ov.Model:
    """Layers one after another, each a residual."""
    x = value = op.parameter([-1, -1, WIDTH], name="x")
    for n in range(num):
        gate, up, down = (op.convert(op.constant(each), "f32") for each in (GATE, UP, DOWN))
        first = op.matmul(value, gate, False, True)
        seen = op.multiply(op.multiply(first, op.sigmoid(first)), op.matmul(value, up, False, True))
        value = op.add(value, op.matmul(seen, down, False, True), name=f"out{n}")
    return ov.Model([op.result(value)], [x], "gated")


def wanted(num: int = 1) -> Any:
    """The same by NumPy, in double precision."""
    x, (gate, up, down) = X.astype(np.float64), (each.astype(np.float64) for each in (GATE, UP, DOWN))
    for _ in range(num):
        first = x @ gate.T
        x = x + first / (1 + np.exp(-first)) * (x @ up.T) @ down.T
    return x


def kernels(model: ov.Model) -> list[str]:
    given = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": "2"}
    made = ov.compile_model(model, "CPU", given).get_runtime_model().get_ordered_ops()
    return [node.get_rt_info()["layerType"].astype(str) for node in made]


def test_the_numbers_are_the_same_and_none_is_left_for_the_kernel_of_gated_layers() -> None:
    model = gated()
    has_kernel = "LLMMLP" in kernels(model)
    keep_gates_apart(model.get_ordered_ops())
    found = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([X])[0]
    np.testing.assert_allclose(found, wanted(), atol=1e-4)
    if not has_kernel:
        pytest.skip("this CPU has no AMX, and OpenVINO no such kernel")
    assert "LLMMLP" not in kernels(model)


def test_a_scale_of_a_norm_is_left_as_it_is() -> None:
    x = op.parameter([-1, 4, WIDTH])
    scale = op.multiply(x, op.convert(op.constant(GATE[0]), "f32"))
    model = ov.Model([op.matmul(scale, op.constant(GATE.astype(np.float32)), False, True)], [x], "norm")
    before = [node.get_name() for node in model.get_ordered_ops()]
    keep_gates_apart(model.get_ordered_ops())
    assert [node.get_name() for node in model.get_ordered_ops()] == before


def test_hetero_writes_those_otherwise_that_run_in_one_thread() -> None:
    model = gated(2)
    graph = graph_of(model)
    first = graph.index_of["out0"]
    names = [(ONE if v <= first else TWO).openvino_name for v in range(graph.num_ops)]
    prepared = prepare(model, graph)
    made = [node for node in prepared.place(names, (ONE, TWO)).get_ordered_ops() if node.get_type_name() == "Negative"]
    assert [node.get_rt_info()["affinity"].astype(str) for node in made] == [ONE.openvino_name] * 2
    again = prepared.place([TWO.openvino_name] * graph.num_ops, (ONE, TWO))
    assert "Negative" not in [node.get_type_name() for node in again.get_ordered_ops()]


@pytest.mark.parametrize("executor", ["alone", "hetero", "work-conserving"])
def test_placements_on_devices_of_one_thread_run(executor: str) -> None:
    model, specs = gated(2), [ONE, DeviceSpec("OTHER", "CPU", ONE.properties)]
    graph = graph_of(model)
    second = 0 if executor == "alone" else 1
    names = [specs[0 if v <= graph.index_of["out0"] else second].name for v in range(graph.num_ops)]
    if executor == "work-conserving":
        with closing(compile_placed(model, by_hand(graph, specs, names, executor="work-conserving"))) as compiled:
            found = np.array(compiled([X])[0])
    else:
        found = by_hand(graph, specs, names).compile(ov.Core(), model)([X])[0]
    np.testing.assert_allclose(found, wanted(2), atol=0.03 * np.abs(wanted(2)).max())
