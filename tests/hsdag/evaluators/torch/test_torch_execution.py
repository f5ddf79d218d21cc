"""Workloads and OpenVINO models on logical torch devices: parity with NumPy and OpenVINO, evaluation for placers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray
from openvino import opset13 as ops

from hsdag.commands.workload import first_devices, workload_problem
from hsdag.evaluators.torch import problem_graph, random_inputs, run_workload, workload_graph
from hsdag.ir.errors import ExecutionError, ModelError, OptionError
from hsdag.ir.graph import graph_from_edges
from hsdag.models import Workload
from hsdag.models.sharded_workloads import (
    ChainSizes,
    FeedForwardSizes,
    LlamaSizes,
    chainmm,
    ffnn,
    llama_block,
    llama_layer,
)
from hsdag.models.workload_numpy import execute as execute_in_double
from hsdag.runtime.platforms import load_platform
from hsdag.runtime.problems.problem_file import problem_from_json, problem_to_json
from hsdag.runtime.torch import TorchExecutor, build_program, logical_devices, openvino_graph

Array = NDArray[np.float64]
K = 4
LLAMA = LlamaSizes(tokens=16, width=64, heads=4, hidden=96, vocabulary=64)
WORKLOADS: dict[str, Callable[[], Workload]] = {
    "chainmm": lambda: chainmm(K, ChainSizes(size=64)),
    "ffnn": lambda: ffnn(K, FeedForwardSizes(batch=64, width=8, hidden=64)),
    "llama-block": lambda: llama_block(K, LLAMA),
    "llama-layer": lambda: llama_layer(K, LLAMA),
}


@cache
def expected(name: str) -> tuple[Workload, dict[str, Array]]:
    workload = WORKLOADS[name]()
    given = random_inputs(workload_graph(workload, widen=True))
    wide: Any = {key: x.numpy().astype(np.complex128 if x.is_complex() else np.float64) for key, x in given.items()}
    return workload, execute_in_double(workload, wide)


def random_placement(workload: Workload, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, K, workload.graph.num_ops)


def assert_close(got: dict[str, torch.Tensor], wanted: dict[str, Array], relative: float) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        error = np.abs(got[name].numpy() - value).max() / np.abs(value).max()
        assert error < relative, (name, error)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_randomly_placed_workload_equals_numpy_in_double_precision(name: str, seed: int) -> None:
    workload, wanted = expected(name)
    placement = random_placement(workload, seed)
    run = run_workload(workload, placement, logical_devices(K), widen=True, barrier=seed == 2)
    assert_close(dict(run.outputs), wanted, 1e-4)


def test_a_llama_block_in_its_own_precision_is_near() -> None:
    workload, wanted = expected("llama-block")
    run = run_workload(workload, random_placement(workload, 0), logical_devices(K))
    assert_close(dict(run.outputs), wanted, 2e-2)


def test_a_placement_by_names_is_the_one_by_indices() -> None:
    workload, _ = expected("chainmm")
    placement = random_placement(workload, 0)
    names = {op: f"d{d}" for op, d in zip(workload.graph.op_names, placement.tolist(), strict=True)}
    run = run_workload(workload, names, logical_devices(K), runs=2)
    ran_on = dict(zip(run.timeline.ops.op.tolist(), run.timeline.ops.device.tolist(), strict=True))
    assert {run.timeline.op_names[v]: f"d{d}" for v, d in ran_on.items()}.items() <= names.items()
    assert len(run.times_s) == 2


def test_a_problem_file_runs_as_the_workload_it_was_written_from() -> None:
    workload, _ = expected("llama-layer")
    written = problem_to_json(workload_problem(workload, first_devices(load_platform("p100x4"), K)))
    graph, same = problem_graph(problem_from_json(written)), workload_graph(workload)
    assert [node.feed for node in graph.nodes] == [node.feed for node in same.nodes]
    assert [node.reads for node in graph.nodes] == [node.reads for node in same.nodes]
    results = []
    for g in (graph, same):
        with TorchExecutor(build_program(g, [0] * g.num_nodes, logical_devices(1))) as executor:
            results.append(executor.infer(random_inputs(same)))
    common = results[0].keys() & results[1].keys()
    assert common
    assert all(torch.equal(results[0][name], results[1][name]) for name in common)


def test_an_op_without_an_expression_is_named() -> None:
    graph = graph_from_edges(["A", "B"], [(0, 1)], op_names=["first", "second"])
    bare = Workload(graph, ("", ""), ("", ""), ("", ""))
    with pytest.raises(ModelError, match="op 'first' of 'graph' has no expression"):
        workload_graph(bare)


def test_an_op_on_an_unknown_device_is_named() -> None:
    workload, _ = expected("chainmm")
    with pytest.raises(OptionError, match=r"op 'A\[0,0\]' must be on one of d0, d1, not on None"):
        run_workload(workload, {}, logical_devices(2))


def test_a_workload_that_does_not_fit_names_op_and_device() -> None:
    workload, _ = expected("chainmm")
    small = logical_devices(2, memory_bytes=4 * 64 * 64 * 7.5)
    with pytest.raises(ExecutionError, match=r"'[A-Z]+\[.*' on device d0 failed: out of memory"):
        run_workload(workload, [0] * workload.graph.num_ops, small)


@pytest.mark.parametrize("model", ["tiny_resnet", "tiny_bert"])
def test_a_randomly_placed_openvino_model_equals_openvino(model: str, request: pytest.FixtureRequest) -> None:
    ir = ov.Core().read_model(request.getfixturevalue(model))
    graph = openvino_graph(ir)
    rng = np.random.default_rng(0)
    inputs = {}
    for port in ir.inputs:
        shape = tuple(port.shape)
        is_real = port.get_element_type().is_real()
        inputs[port.any_name] = rng.standard_normal(shape) if is_real else rng.integers(0, 2, shape)
    compiled = ov.Core().compile_model(ir, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    wanted = {port.any_name: value for port, value in compiled(inputs).items()}
    placement = rng.integers(0, 3, graph.num_nodes)
    with TorchExecutor(build_program(graph, placement, logical_devices(3))) as executor:
        assert_close(executor.infer(inputs), wanted, 1e-4)


@pytest.mark.parametrize("kind", ["i8", "u8", "i4", "u4"])
def test_a_model_of_quantised_weights_equals_openvino_all_in_torch(kind: str) -> None:
    rng, low = np.random.default_rng(0), 0 if kind.startswith("u") else -8
    x = ops.parameter([2, 8], np.float32)
    weights = ov.op.Constant(getattr(ov.Type, kind), ov.Shape([8, 6]), rng.integers(low, low + 16, 48).tolist())
    wide = ops.multiply(ops.subtract(ops.convert(weights, "f32"), np.float32(low + 8)), np.float32(0.1))
    levels = (np.float32(-2), np.float32(2))
    y = ops.matmul(ops.fake_quantize(x, *levels, *levels, 256), wide, False, False)
    model, given = ov.Model([ops.result(y)], [x], "quantised"), rng.standard_normal((2, 8), dtype=np.float32)
    graph = openvino_graph(model)
    wanted = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([given])[0]
    assert all(node.in_torch for node in graph.nodes)
    with TorchExecutor(build_program(graph, np.arange(graph.num_nodes) % 2, logical_devices(2))) as executor:
        (got,) = executor.infer({graph.inputs[0]: given}).values()
    assert np.abs(got.numpy() - wanted).max() <= 2e-2  # a level may differ by rounding
