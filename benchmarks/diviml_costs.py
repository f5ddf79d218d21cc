"""Simulated costs of DiviML's randomly wired networks on a CPU, a T4 and an A100; they measure no device.

DiviML publishes means alone. A node of the wiring is as many ops here as its nodes in PyTorch FX: a product for each
input, their sum, ReLU, two convolutions, batch norm. An op takes

    launch + operations / rate + bytes / bandwidth,

each constant of its device (CPU, T4, A100), times a factor drawn for each op and device (lognormal); a result moves
between devices in a latency plus its bytes over the bandwidth of a copy from PyTorch. Constants were fitted by random
search to the columns best device, MET, Greedy and HEFT of Table I and to the ratios of Table II, over all seven kinds
with 10 modules of 10 nodes and seed 0; so was the resolution, among 28, 56 and 112. The columns of the evolutionary
search, annealing, MILP, MILP-SPLIT and LBound had no part in it. Searched were ranges that the hardware allows (a copy
at 3 to 12 GB/s and 10 to 200 us, launches of up to 0.5 ms, a spread of 0.03 and more); the GPUs' memory bandwidths are
0.8 of their data sheets'. The fit came to an end of its range for copy bandwidth, spread and depthwise factor. Factors
drawn here are others than those of the fit, which moves its shares by up to 0.02.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray
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


@dataclass
class FxOps:
    """The FX nodes of a network: what each is, how many inputs it has, and the edges between them."""

    names: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    fan_in: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    @staticmethod
    def of(graph: ComputationGraph) -> FxOps:
        """The nodes of a randomly wired network taken apart; stem, head, and ends of modules stay one op."""
        ops, last = FxOps(), list[int]()
        sources: list[list[int]] = [[] for _ in range(graph.num_ops)]
        for u, v in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
            sources[v].append(u)
        for name, op_type, inputs in zip(graph.op_names, graph.op_types, sources, strict=True):
            before = [last[u] for u in inputs]
            if op_type == "Convolution" and before:
                last.append(ops.node(name, before))
            else:
                last.append(ops.add(f"{name}.{WHOLE[op_type]}", WHOLE[op_type], before))
        return ops

    def add(self, name: str, op_type: str, sources: list[int]) -> int:
        """One more op; its index."""
        self.edges += [(u, len(self.names)) for u in sources]
        self.names.append(name)
        self.types.append(op_type)
        self.fan_in.append(max(len(sources), 1))
        return len(self.names) - 1

    def node(self, name: str, sources: list[int]) -> int:
        """A node of the wiring: every input times its weight, their sum, and the chain behind it."""
        weighted = [self.add(f"{name}.weigh{k}", "weigh", [u]) for k, u in enumerate(sources)]
        last = self.add(f"{name}.sum", "sum", weighted) if len(weighted) > 1 else weighted[0]
        for op_type in CHAIN:
            last = self.add(f"{name}.{op_type}", op_type, [last])
        return last

    def times_s(self, costs: Costs) -> FloatArray:
        """[N, D] seconds of every op on every device, without its factor."""
        size, types = float(costs.width * costs.resolution**2), np.array(self.types)
        flops = {"pointwise": 2.0 * costs.width * size, "depthwise": 2.0 * KERNEL * size * costs.depthwise_factor}
        operations = np.array([flops.get(op_type, 0.0) for op_type in self.types])
        tensors = np.where(types == "head", 1, 1 + np.where(types == "sum", np.array(self.fan_in), 1))
        moved_bytes = 4.0 * size * tensors
        rate, bandwidth = np.array(costs.flops_per_s), np.array(costs.bytes_per_s)
        return np.asarray(np.array(costs.launch_s) + operations[:, None] / rate + moved_bytes[:, None] / bandwidth)


def network(kind: str, modules: int = MODULES, seed: int = SEED) -> ScheduleProblem:
    """A randomly wired network, ER(0.2), with simulated costs; ``kind`` is a row of Table I, such as sdep-2."""
    costs, channels = Costs(), 1 if kind == "1-chan" else int(kind[-1])
    wiring = RandomWiring("er", NODES, modules, channels, "strong" if kind.startswith("s") else "weak", seed)
    graph = random_wired(wiring).graph
    ops = FxOps.of(graph)
    rng = np.random.default_rng([seed, len(ops.names)])
    factor = np.exp(costs.spread * rng.standard_normal((len(ops.names), len(DEVICES))) - costs.spread**2 / 2)
    return ScheduleProblem.from_arrays(
        ops.times_s(costs) * factor,
        np.array(ops.edges),
        output_bytes=4.0 * costs.width * costs.resolution**2,
        link_latency_s=costs.copy_latency_s,
        link_bandwidth_bytes_per_s=costs.copy_bytes_per_s,
        name=f"{graph.name}-fx",
        op_names=tuple(ops.names),
        device_names=DEVICES,
    )
