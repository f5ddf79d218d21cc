"""Workloads and OpenVINO models on logical torch devices: parity with NumPy and OpenVINO, evaluation for placers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray
from openvino import opset13 as ops

from hsdag.ir.errors import ExecutionError, ModelError
from hsdag.models import Workload
from hsdag.models.sharded_workloads import (
    LlamaSizes,
    chainmm,
    ffnn,
    llama_block,
    llama_layer,
)
from hsdag.models.workload_numpy import values_of
from hsdag.runtime.platforms import load_platform
from hsdag.runtime.problem.problem_file import problem_from_json, problem_to_json
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.torch import TorchExecutor, TorchGraph, build_program, logical_devices, openvino_graph
from hsdag.scoring.torch import problem_graph, random_inputs
from hsdag.sources.workload import first_devices, workload_problem

Array = NDArray[np.float64]
K = 4
LLAMA = LlamaSizes(tokens=16, width=64, heads=4, hidden=96, vocabulary=64)
WORKLOADS: dict[str, Callable[[], Workload]] = {
    "chainmm": lambda: chainmm(K, size=64),
    "ffnn": lambda: ffnn(K, batch=64, width=8, hidden=64),
    "llama-block": lambda: llama_block(K, LLAMA),
    "llama-layer": lambda: llama_layer(K, LLAMA),
}


@cache
def problem_of(name: str, *, wide: bool = True) -> ScheduleProblem:
    """A workload as it is read back from its file; ``wide`` computes in f32 what the workload computes in f16."""
    written = problem_to_json(workload_problem(WORKLOADS[name](), first_devices(load_platform("p100x4"), K)))
    problem = problem_from_json(written)
    texts = tuple(text.replace("convert:f16", "convert:f32") for text in problem.labels.expressions)
    return replace(problem, labels=replace(problem.labels, expressions=texts)) if wide else problem


def graph_of(problem: ScheduleProblem, *, wide: bool = True) -> TorchGraph:
    graph = problem_graph(problem)
    if not wide:
        return graph
    feeds = [
        node.feed and replace(node.feed, dtype=torch.promote_types(node.feed.dtype, torch.float32))
        for node in graph.nodes
    ]
    return replace(graph, nodes=tuple(replace(node, feed=feed) for node, feed in zip(graph.nodes, feeds, strict=True)))


@cache
def expected(name: str) -> dict[str, Array]:
    """By NumPy, in double precision."""
    problem, graph = problem_of(name), graph_of(problem_of(name))
    wide: Any = {
        key: x.numpy().astype(np.complex128 if x.is_complex() else np.float64)
        for key, x in random_inputs(graph).items()
    }
    sources = [[u for u, _ in node.reads] for node in graph.nodes]
    values = values_of(problem.labels.expressions, sources, problem.topological_order.tolist(), wide)
    return {key: values[v] for key, (v, _) in graph.outputs.items()}


def run_on(graph: TorchGraph, placement: Any, count: int = K, *, barrier: bool = False) -> dict[str, torch.Tensor]:
    with TorchExecutor(build_program(graph, placement, logical_devices(count)), barrier=barrier) as executor:
        return executor.infer(random_inputs(graph))


def random_placement(graph: TorchGraph, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, K, graph.num_nodes)


def assert_close(got: dict[str, torch.Tensor], wanted: dict[str, Array], relative: float) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        error = np.abs(got[name].numpy() - value).max() / np.abs(value).max()
        assert error < relative, (name, error)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_randomly_placed_workload_equals_numpy_in_double_precision(name: str, seed: int) -> None:
    graph = graph_of(problem_of(name))
    assert_close(run_on(graph, random_placement(graph, seed), barrier=seed == 2), expected(name), 1e-4)


def test_a_llama_block_in_its_own_precision_is_near() -> None:
    graph = graph_of(problem_of("llama-block", wide=False), wide=False)
    assert_close(run_on(graph, random_placement(graph, 0)), expected("llama-block"), 2e-2)


def test_an_op_without_an_expression_is_named() -> None:
    problem = problem_of("chainmm")
    bare = replace(problem, labels=replace(problem.labels, expressions=("",) * problem.num_ops))
    with pytest.raises(ModelError, match=r"op 'A\[0,0\]' of 'chainmm.*' has no expression"):
        problem_graph(bare)


def test_a_workload_that_does_not_fit_names_op_and_device() -> None:
    graph = graph_of(problem_of("chainmm"))
    program = build_program(graph, [0] * graph.num_nodes, logical_devices(2, memory_bytes=4 * 64 * 64 * 7.5))
    with TorchExecutor(program) as executor:
        executor.load(random_inputs(graph))
        with pytest.raises(ExecutionError, match=r"'[A-Z]+\[.*' on device d0 failed: out of memory"):
            executor.infer()


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
