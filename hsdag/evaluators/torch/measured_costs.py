"""Measured costs: ops of a workload and copies between torch devices, each timed alone. Legend: N ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from hsdag.evaluators.torch.workload_graph import random_inputs, workload_graph
from hsdag.ir.graph import FloatArray
from hsdag.models import Workload
from hsdag.runtime.problems.cost_model import CostModel, CostSource
from hsdag.runtime.problems.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.torch_backend import (
    Feed,
    Inputs,
    LogicalDevice,
    TorchExecutor,
    TorchGraph,
    TorchNode,
    build_program,
)
from hsdag.runtime.torch_backend.device import NO_LIMIT

RUNS = 3
SMALL_BYTES, LARGE_BYTES = 64, 1 << 22
"""Copies that are timed: the small one gives the latency of a link, the large one its bandwidth."""


def measured_problem(
    workload: Workload, devices: Sequence[LogicalDevice], inputs: Inputs | None = None, *, share: bool = False
) -> ScheduleProblem:
    """The problem of placing a workload on torch devices, with measured costs.

    Ops are timed with all of them on one device, copies on links that carry nothing else, three times after a warm-up;
    devices that differ in name alone once. Raises ExecutionError where a device cannot run the whole workload.
    """
    graph = workload.graph
    torch_graph = workload_graph(workload)
    given = random_inputs(torch_graph) if inputs is None else inputs
    plain = [replace(device, name="d", memory_bytes=NO_LIMIT) for device in devices]
    op_s = {device: _op_times_s(torch_graph, device, given) for device in dict.fromkeys(plain)}
    pairs = dict.fromkeys((a, b) for i, a in enumerate(plain) for j, b in enumerate(plain) if i != j)
    links = {pair: _link(*pair, share) for pair in pairs}
    table = np.array([[links.get((a, b), (0.0, np.inf)) for b in plain] for a in plain])
    costs = CostModel(
        time_s=np.stack([op_s[device] for device in plain], axis=1),
        launch_s=np.zeros(len(plain)),
        link_latency_s=table[..., 0].copy(),
        link_bandwidth_bytes_per_s=table[..., 1].copy(),
        source=CostSource.MEASURED,
    )
    memory_bytes = np.array([device.memory_bytes for device in devices])
    problem = ScheduleProblem.from_graph(graph, costs, tuple(device.name for device in devices), memory_bytes)
    nothing = ("",) * graph.num_ops
    labels = OpLabels(graph.op_types, nothing, workload.meta_ops, workload.roles, workload.expressions)
    return replace(problem, name=f"{graph.name} on {len(plain)} torch devices", labels=labels)


def _op_times_s(graph: TorchGraph, device: LogicalDevice, inputs: Inputs) -> FloatArray:
    """[N] seconds of each op, 0 for inputs and constants."""
    program = build_program(graph, [0] * graph.num_nodes, [device])
    runs_s = np.zeros((RUNS, graph.num_nodes))
    with TorchExecutor(program) as executor:
        executor.load(inputs)
        executor.infer()
        for run_s, run in zip(runs_s, executor.repeated(RUNS), strict=True):
            ops = run.timeline.ops
            run_s[program.node_of[ops.op]] = ops.end_s - ops.start_s
    return np.asarray(np.median(runs_s, axis=0), dtype=np.float64)


def _link(source: LogicalDevice, destination: LogicalDevice, share: bool) -> tuple[float, float]:
    """Latency in seconds and bandwidth in bytes per second."""
    small_s, large_s = (_copy_s(source, destination, size, share) for size in (SMALL_BYTES, LARGE_BYTES))
    return small_s, (LARGE_BYTES - SMALL_BYTES) / max(large_s - small_s, 1e-9)


def _copy_s(source: LogicalDevice, destination: LogicalDevice, size_bytes: int, share: bool) -> float:
    sent = TorchNode("sent", feed=Feed("sent", torch.uint8, (size_bytes,)), output_bytes=(float(size_bytes),))
    read = TorchNode("read", "Slice", ((0, 0),), lambda xs: (xs[0][:1],))
    ends = (replace(source, name="from"), replace(destination, name="to"))
    program = build_program(TorchGraph("copy", (sent, read), {"read": (1, 0)}), [0, 1], ends, share=share)
    with TorchExecutor(program) as executor:
        executor.load({"sent": np.zeros(size_bytes, dtype=np.uint8)})
        executor.infer()
        copies = [run.timeline.transfers for run in executor.repeated(RUNS)]
    return float(np.median([(transfers.end_s - transfers.start_s).sum() for transfers in copies]))
