"""Parity: ops, models and workloads on torch devices against OpenVINO on the CPU in f32, or NumPy in f64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsdag.commands.cuda_check.gallery import gallery, gallery_inputs
from hsdag.evaluators.torch import RunPlan, random_inputs, run_workload, workload_graph
from hsdag.ir.reader import input_name
from hsdag.models import Workload, build_model, find_model
from hsdag.models.sharded_workloads import (
    ChainSizes,
    FeedForwardSizes,
    LlamaSizes,
    RandomChain,
    TransformerSizes,
    chainmm,
    ffnn,
    llama_block,
    llama_layer,
    random_chain,
    transformer,
)
from hsdag.models.workload_numpy import execute
from hsdag.runtime.torch_backend import LogicalDevice, TorchExecutor, build_program
from hsdag.runtime.torch_backend.openvino_graph import openvino_graph
from hsdag.runtime.torch_ops.parity import op_differences, relative_difference, run_openvino

BAR = 1e-4
"""Relative difference up to which outputs in f32 count as the same."""

K, SEEDS, LIMIT_S = 4, 3, 60.0
TOKENS = LlamaSizes(tokens=16, width=64, heads=4, hidden=96, vocabulary=64)
SMALL: dict[str, Callable[[], Workload]] = {
    "chainmm": lambda: chainmm(K, ChainSizes(64)),
    "ffnn": lambda: ffnn(K, FeedForwardSizes(64, 8, 64)),
    "llama-block": lambda: llama_block(K, TOKENS),
    "llama-layer": lambda: llama_layer(K, TOKENS),
    "chain": lambda: random_chain(K, RandomChain(matrices=5, least=1, most=3)),
    "transformer": lambda: transformer(K, TransformerSizes(1, 16, 4, 8, 64)),
}
"""The workloads at sizes that take milliseconds."""


def model_inputs(name: str) -> list[NDArray[Any]]:
    """Inputs of a model of the zoo: normal numbers, and small whole ones that every table admits."""
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal(given.shape, dtype=np.float32)
        if given.element_type == "f32"
        else rng.integers(0, 2, given.shape)
        for given in find_model(name).inputs
    ]


def ops(devices: Sequence[LogicalDevice], name: str) -> str:
    """Every op of a model on each physical device, fed what OpenVINO computed before it."""
    model = gallery() if name == "gallery" else build_model(name)
    inputs = gallery_inputs() if name == "gallery" else model_inputs(name)
    worst, num, types = 0.0, 0, set[str]()
    for physical in dict.fromkeys(device.physical for device in devices):
        found = op_differences(model, inputs, physical)
        bad = [f"{op.op_type} {op.name!r} by {op.relative:.1e}" for op in found if not op.relative <= BAR]
        assert not bad, f"on {physical} {len(bad)} of {len(found)} ops differ from OpenVINO: {', '.join(bad[:3])}"
        worst, num = max(worst, *(op.relative for op in found)), len(found)
        types |= {op.op_type for op in found}
    return f"{num} ops of {len(types)} types, largest relative difference {worst:.1e}"


def model(devices: Sequence[LogicalDevice], name: str) -> str:
    """Outputs of a model whose ops are placed at random, against OpenVINO's."""
    built, arrays = build_model(name), model_inputs(name)
    graph, wanted = openvino_graph(built), run_openvino(built, arrays)
    inputs = dict(zip((input_name(port) for port in built.inputs), arrays, strict=True))
    worst, rng = 0.0, np.random.default_rng(0)
    for _ in range(SEEDS):
        placement = rng.integers(0, len(devices), graph.num_nodes)
        with TorchExecutor(build_program(graph, placement, devices)) as executor:
            got = executor.infer(inputs, limit_s=LIMIT_S)
        pairs = zip(got.values(), wanted, strict=True)
        worst = max(worst, *(relative_difference(x.cpu(), expected) for x, expected in pairs))
    assert worst <= BAR, f"outputs of a random placement differ from OpenVINO by {worst:.1e}"
    return f"{SEEDS} random placements, largest relative difference {worst:.1e}"


def workload(devices: Sequence[LogicalDevice], name: str) -> str:
    """Results of a workload whose ops are placed at random, all in f32, against NumPy in f64."""
    built = SMALL[name]()
    inputs = random_inputs(workload_graph(built, widen=True))
    wide: Any = {key: x.numpy().astype(np.complex128 if x.is_complex() else np.float64) for key, x in inputs.items()}
    wanted, worst, rng = execute(built, wide), 0.0, np.random.default_rng(0)
    for _ in range(SEEDS):
        placement = rng.integers(0, len(devices), built.graph.num_ops)
        plan = RunPlan(widen=True, warm_ups=0, limit_s=LIMIT_S)
        got = run_workload(built, placement, devices, inputs, plan=plan).outputs
        worst = max(worst, *(_apart(got[key].numpy(), x) for key, x in wanted.items()))
    assert worst <= BAR, f"results of a random placement differ from NumPy by {worst:.1e}"
    return f"{built.graph.num_ops} ops, {SEEDS} random placements, largest relative difference {worst:.1e}"


def _apart(got: NDArray[Any], wanted: NDArray[Any]) -> float:
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())
