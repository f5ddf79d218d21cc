"""Simulated costs of DiviML's randomly wired networks on a CPU, a T4 and an A100; they measure no device.

DiviML publishes means alone. A node of the wiring is as many ops here as its nodes in PyTorch FX: a product for each
input, their sum, ReLU, two convolutions, batch norm. An op takes launch + operations / rate + bytes / bandwidth, each
constant of its device, times a factor drawn for each op and device (lognormal); a result moves between devices in a
latency plus its bytes over the bandwidth of a copy from PyTorch. Constants were fitted by random search to the columns
best device, MET, Greedy and HEFT of Table I and to the ratios of Table II, over all seven kinds with 10 modules of 10
nodes and seed 0; so was the resolution, among 28, 56 and 112. The columns of the evolutionary search, annealing, MILP,
MILP-SPLIT and LBound had no part in it. Searched were ranges that the hardware allows (a copy at 3 to 12 GB/s and 10 to
200 us, launches of up to 0.5 ms, a spread of 0.03 and more); the GPUs' memory bandwidths are 0.8 of their data sheets'.
The fit came to an end of its range for copy bandwidth, spread and depthwise factor. Factors drawn here are others than
those of the fit, which moves its shares by up to 0.02.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.models.diviml import KERNEL, RandomWiring, random_wired
from hsdag.runtime.problem.schedule_problem import ScheduleProblem

DEVICES = ("CPU", "T4", "A100")
MODULES, NODES, SEED = 10, 10, 0
CHAIN = ("relu", "depthwise", "pointwise", "norm")
"""What a node does with the weighted sum of its inputs (Xie et al. 2019, section 3.1)."""
WHOLE = {"Convolution": "pointwise", "MatMul": "head", "Identity": "copy", "Add": "sum"}
"""What ops that stay whole are counted as: the stem, the head, inputs and outputs of modules."""


@dataclass(frozen=True)
class Costs:
    """Constants of the simulated costs; those of devices in the order of DEVICES."""

    launch_s: tuple[float, float, float] = (18e-6, 372e-6, 318e-6)
    flops_per_s: tuple[float, float, float] = (14e9, 0.52e12, 1.01e12)
    bytes_per_s: tuple[float, float, float] = (8.2e9, 250e9, 1250e9)
    depthwise_factor: float = 20.0
    """How much longer an operation of a depthwise convolution takes than one of a pointwise convolution."""
    spread: float = 0.03
    """Standard deviation of the logarithm of an op's factor."""
    copy_latency_s: float = 12e-6
    copy_bytes_per_s: float = 12e9
    width: int = 109
    resolution: int = 56


def fx_ops(graph: ComputationGraph) -> tuple[list[str], list[tuple[int, int]]]:
    """Types and edges of a randomly wired network whose nodes are taken apart.

    A node is a product of every input and its weight, their sum, and the chain behind it. Stem, head, and ends of
    modules stay one op.
    """
    types, edges, last = list[str](), list[tuple[int, int]](), list[int]()

    def add(op_type: str, sources: Iterable[int]) -> int:
        edges.extend((u, len(types)) for u in sources)
        types.append(op_type)
        return len(types) - 1

    for v, op_type in enumerate(graph.op_types):
        before = [last[u] for u in graph.edge_src[graph.edge_dst == v].tolist()]
        if op_type == "Convolution" and before:
            weighted = [add("weigh", [u]) for u in before]
            end = add("sum", weighted) if len(weighted) > 1 else weighted[0]
            for each in CHAIN:
                end = add(each, [end])
            last.append(end)
        else:
            last.append(add(WHOLE[op_type], before))
    return types, edges


def network(kind: str, modules: int = MODULES, seed: int = SEED) -> ScheduleProblem:
    """A randomly wired network, ER(0.2), with simulated costs; ``kind`` is a row of Table I, such as sdep-2."""
    costs, channels = Costs(), 1 if kind == "1-chan" else int(kind[-1])
    wiring = RandomWiring("er", NODES, modules, channels, "strong" if kind.startswith("s") else "weak", seed)
    graph = random_wired(wiring).graph
    types, edges = fx_ops(graph)
    num, size, rng = len(types), float(costs.width * costs.resolution**2), np.random.default_rng([seed, len(types)])
    factor = np.exp(costs.spread * rng.standard_normal((num, len(DEVICES))) - costs.spread**2 / 2)
    flops = {"pointwise": 2.0 * costs.width * size, "depthwise": 2.0 * KERNEL * size * costs.depthwise_factor}
    operations = np.array([flops.get(op_type, 0.0) for op_type in types])
    fan_in = np.bincount([v for _, v in edges], minlength=num)
    tensors = np.array([{"head": 1, "sum": 1 + fan_in[v]}.get(op_type, 2) for v, op_type in enumerate(types)])
    compute_s = operations[:, None] / np.array(costs.flops_per_s)
    moving_s = 4.0 * size * tensors[:, None] / np.array(costs.bytes_per_s)
    return ScheduleProblem.from_arrays(
        (np.array(costs.launch_s) + compute_s + moving_s) * factor,
        np.array(edges),
        output_bytes=4.0 * size,
        link_latency_s=costs.copy_latency_s,
        link_bandwidth_bytes_per_s=costs.copy_bytes_per_s,
        name=f"{graph.name}-fx",
        device_names=DEVICES,
    )
