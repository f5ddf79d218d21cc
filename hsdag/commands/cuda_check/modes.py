"""Modes: the work-conserving loop against bulk-synchronous runs and captured graphs, and what a launch costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

import numpy as np
import torch

from hsdag.commands.cuda_check.checks import Untestable
from hsdag.commands.cuda_check.parity import BAR
from hsdag.evaluators.torch import random_inputs, workload_graph
from hsdag.models.sharded_workloads import ChainSizes, chainmm
from hsdag.runtime.torch_backend import (
    CapturedProgram,
    Feed,
    LogicalDevice,
    Program,
    TorchExecutor,
    TorchGraph,
    TorchNode,
    build_program,
)

RUNS, LIMIT_S = 7, 60.0
SIZE_ON_GPU, SIZE_ON_CPU = 4096, 256
LAUNCHES = 1000


def size_on(devices: Sequence[LogicalDevice]) -> int:
    """Rows of matrices that keep the devices busy for milliseconds."""
    return SIZE_ON_GPU if any(device.is_cuda for device in devices) else SIZE_ON_CPU


def chain_program(devices: Sequence[LogicalDevice], size: int | None = None) -> tuple[Program, dict[str, torch.Tensor]]:
    """A chain of sharded matrix products with its shards dealt to the devices in turn, and inputs for it."""
    workload = chainmm(4, ChainSizes(size or size_on(devices)))
    graph = workload_graph(workload)
    placement = np.arange(graph.num_nodes) % len(devices)
    return build_program(graph, placement, devices), random_inputs(graph)


def barrier(devices: Sequence[LogicalDevice]) -> str:
    """The same program in both modes: the same bits, and the ratio of their medians."""
    program, inputs = chain_program(devices)
    results, medians_s = [], []
    for by_level in (False, True):
        with TorchExecutor(program, barrier=by_level) as executor:
            executor.load(inputs)
            results.append({name: x.cpu() for name, x in executor.infer(limit_s=LIMIT_S).items()})
            medians_s.append(float(np.median([run.makespan_s for run in executor.repeated(RUNS, limit_s=LIMIT_S)])))
    assert all(torch.equal(x, results[1][name]) for name, x in results[0].items()), "the two modes differ in results"
    work, level = medians_s
    return f"same results; {1e3 * work:.3g} ms against {1e3 * level:.3g} ms, ratio {work / level:.2f}"


def captured(devices: Sequence[LogicalDevice]) -> str:
    """A program captured as one CUDA graph: the results of the dynamic loop, also with new inputs, and their times."""
    first = next((device for device in devices if device.is_cuda), None)
    if first is None:
        raise Untestable("CUDA graphs need a GPU")
    pair = [LogicalDevice("c0", first.torch_device), LogicalDevice("c1", first.torch_device)]
    program, inputs = chain_program(pair)
    others = {name: x.flip(0) for name, x in inputs.items()}
    with TorchExecutor(program) as executor, closing(CapturedProgram(program, inputs)) as graph:
        for given in (inputs, others):
            executor.load(given)
            wanted, got = executor.infer(limit_s=LIMIT_S), graph.infer(given)
            scale = max(float(x.abs().max()) for x in wanted.values())
            worst = max(float((got[name] - x).abs().max()) for name, x in wanted.items()) / scale
            assert worst <= BAR, f"the captured graph differs from the dynamic loop by {worst:.1e}"
        dynamic_s = float(np.median([run.makespan_s for run in executor.repeated(RUNS, limit_s=LIMIT_S)]))
        times_s = []
        for _ in range(RUNS):
            begin_s = time.perf_counter()
            graph.replay()
            times_s.append(time.perf_counter() - begin_s)
    replay_s = float(np.median(times_s))
    return f"same results; captured {1e3 * replay_s:.3g} ms, dynamic {1e3 * dynamic_s:.3g} ms"


def launch_cost(devices: Sequence[LogicalDevice]) -> str:
    """What the loop adds to an op that does nothing, device by device, in a chain that stays on one of them."""
    nodes = [TorchNode("x", feed=Feed("x", torch.float32, (1,)))]
    nodes += [TorchNode(f"op{i}", "Relu", ((i, 0),), lambda xs: (torch.relu(xs[0]),)) for i in range(LAUNCHES)]
    graph, found = TorchGraph("launches", tuple(nodes), {"y": (LAUNCHES, 0)}), []
    for device in devices:
        with TorchExecutor(build_program(graph, [0] * graph.num_nodes, [device])) as executor:
            executor.load({"x": np.ones(1, dtype=np.float32)})
            times_s = [run.makespan_s for run in executor.repeated(3, limit_s=LIMIT_S)]
        found.append(f"{device.name} {1e6 * min(times_s) / LAUNCHES:.1f}")
    return f"microseconds for each of {LAUNCHES} ops on one element: {', '.join(found)}"
