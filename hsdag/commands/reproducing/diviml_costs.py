"""Simulated costs of DiviML's randomly wired networks on a CPU, a T4 and an A100, for the tables of section V.

DiviML measures every node of a PyTorch FX graph on every device and publishes only means. Here a node of the wiring is
as many ops as its FX nodes: a product for each input, their sum, ReLU, two convolutions, batch norm. An op takes

    launch + operations / rate + bytes / bandwidth,

each constant of its device (CPU, T4, A100), times a factor drawn for each op and device (lognormal); a result moves
between devices in a latency plus its bytes over the bandwidth of a copy from PyTorch.

Constants were fitted by random search to the columns best device, MET, Greedy and HEFT of Table I and to the ratios of
Table II, over all seven kinds with 10 modules of 10 nodes and seed 0; so was the resolution, among 28, 56 and 112. The
columns of the evolutionary search, annealing, MILP, MILP-SPLIT and LBound had no part in it: what is found for them is
no fit. Searched were ranges that the hardware allows (a copy at 3 to 12 GB/s and 10 to 200 us, launches of up to
0.5 ms, a spread of 0.03 and more); the GPUs' memory bandwidths are 0.8 of their data sheets'. Ends of a range that the
fit came to: copy bandwidth, spread, depthwise factor. One op for a weighted sum, in place of products and a sum, fitted
worse in the same ranges, and a little better in wider ones with copies at 32 to 43 GB/s. The factors drawn here are
others than those of the fit, which moves its shares by up to 0.02. These times are no measurements of any device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hsdag.ir.graph import ComputationGraph, FloatArray
from hsdag.models.diviml import KERNEL, RandomWiring, random_wired
from hsdag.runtime.problems.schedule_problem import ScheduleProblem

KINDS = ("1-chan", "sdep-2", "sdep-3", "sdep-4", "wdep-2", "wdep-3", "wdep-4")
DEVICES = ("CPU", "T4", "A100")
NODES = 10
"""Nodes of a module."""
CHAIN = ("relu", "depthwise", "pointwise", "norm")
"""What a node does with the weighted sum of its inputs (Xie et al. 2019, section 3.1)."""
WHOLE = {"Convolution": "pointwise", "MatMul": "head", "Identity": "copy", "Add": "sum"}
"""What ops that stay whole are counted as: the stem, the head, inputs and outputs of modules."""


@dataclass(frozen=True)
class Costs:
    """Constants of the model; those of devices in the order of DEVICES."""

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


@dataclass(frozen=True, eq=False)
class Ops:
    """The FX nodes of a network: what each is, how many inputs it has [N], and edges [E, 2]."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    fan_in: np.ndarray
    edges: np.ndarray


def network(kind: str, modules: int, seed: int, nodes: int = NODES, costs: Costs | None = None) -> ScheduleProblem:
    """A randomly wired network of one of KINDS, ER(0.2), with simulated costs on CPU, T4 and A100."""
    costs = costs or Costs()
    channels = 1 if kind == "1-chan" else int(kind[-1])
    wiring = RandomWiring("er", nodes, modules, channels, "strong" if kind.startswith("s") else "weak", seed)
    graph = random_wired(wiring).graph
    ops = fx_ops(graph)
    rng = np.random.default_rng([seed, len(ops.names)])
    factor = np.exp(costs.spread * rng.standard_normal((len(ops.names), len(DEVICES))) - costs.spread**2 / 2)
    return ScheduleProblem.from_arrays(
        times_s(ops, costs) * factor,
        ops.edges,
        output_bytes=4.0 * costs.width * costs.resolution**2,
        link_latency_s=costs.copy_latency_s,
        link_bandwidth_bytes_per_s=costs.copy_bytes_per_s,
        name=f"{graph.name}-fx",
        op_names=ops.names,
        device_names=DEVICES,
    )


def fx_ops(graph: ComputationGraph) -> Ops:
    """The nodes of a randomly wired network taken apart; stem, head, and ends of modules stay one op."""
    ops = _Growing()
    last: list[int] = []
    sources: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for u, v in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        sources[v].append(u)
    for name, op_type, inputs in zip(graph.op_names, graph.op_types, sources, strict=True):
        before = [last[u] for u in inputs]
        if op_type == "Convolution" and before:
            last.append(ops.node(name, before))
        else:
            last.append(ops.add(f"{name}.{WHOLE[op_type]}", WHOLE[op_type], before))
    return Ops(tuple(ops.names), tuple(ops.types), np.array(ops.fan_in), np.array(ops.edges))


@dataclass
class _Growing:
    """Ops under way."""

    names: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    fan_in: list[int] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    def add(self, name: str, op_type: str, sources: list[int]) -> int:
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


def times_s(ops: Ops, costs: Costs) -> FloatArray:
    """[N, D] seconds of every op on every device, without its factor."""
    size = float(costs.width * costs.resolution**2)
    flops = {"pointwise": 2.0 * costs.width * size, "depthwise": 2.0 * KERNEL * size * costs.depthwise_factor}
    operations = np.array([flops.get(op_type, 0.0) for op_type in ops.types])
    tensors = np.where(np.array(ops.types) == "head", 1, 1 + np.where(np.array(ops.types) == "sum", ops.fan_in, 1))
    moved_bytes = 4.0 * size * tensors
    rate, bandwidth = np.array(costs.flops_per_s), np.array(costs.bytes_per_s)
    return np.asarray(np.array(costs.launch_s) + operations[:, None] / rate + moved_bytes[:, None] / bandwidth)
