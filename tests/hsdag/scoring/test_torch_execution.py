"""Workloads and quantised models on logical torch devices: parity with NumPy and OpenVINO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from hsdag.ir.errors import ModelError
from hsdag.models import Workload
from hsdag.models.sharded_workloads import (
    LlamaSizes,
    chainmm,
    ffnn,
    llama_block,
    llama_layer,
)
from hsdag.runtime.platforms.reader import load_platform
from hsdag.runtime.problem.problem_file import problem_from_json, problem_to_json
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.torch.devices import logical_devices
from hsdag.runtime.torch.executor import TorchExecutor
from hsdag.runtime.torch.program import build_program
from hsdag.scoring.workload_graph import double_values, problem_graph, random_inputs
from hsdag.sources import first_devices, workload_problem

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
def problem_of(name: str) -> ScheduleProblem:
    """A workload as it is read back from its file, in f32 where the workload computes in f16."""
    written = problem_to_json(workload_problem(WORKLOADS[name](), first_devices(load_platform("p100x4"), K)))
    problem = problem_from_json(written)
    texts = tuple(text.replace("convert:f16", "convert:f32") for text in problem.labels.expressions)
    return replace(problem, labels=replace(problem.labels, expressions=texts))


@cache
def expected(name: str) -> dict[str, Array]:
    """In double precision, op by op."""
    problem, graph = problem_of(name), problem_graph(problem_of(name))
    sources, order = [[u for u, _ in node.reads] for node in graph.nodes], problem.topological_order.tolist()
    values = double_values(problem.labels.expressions, sources, order, random_inputs(graph))
    return {key: values[v].numpy() for key, (v, _) in graph.outputs.items()}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_randomly_placed_workload_equals_what_its_ops_give_in_double_precision(name: str, seed: int) -> None:
    graph = problem_graph(problem_of(name))
    placement = np.random.default_rng(seed).integers(0, K, graph.num_nodes)
    with TorchExecutor(build_program(graph, placement, logical_devices(K))) as executor:
        got = executor.infer(random_inputs(graph))
    assert got.keys() == expected(name).keys()
    for key, value in expected(name).items():
        assert np.abs(got[key].numpy() - value).max() < 1e-4 * np.abs(value).max()


def test_an_op_without_an_expression_is_named() -> None:
    problem = problem_of("chainmm")
    bare = replace(problem, labels=replace(problem.labels, expressions=("",) * problem.num_ops))
    with pytest.raises(ModelError, match=r"op 'A\[0,0\]' of 'chainmm.*' has no expression"):
        problem_graph(bare)
