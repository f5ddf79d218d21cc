"""Generate DiviML's workloads: randomly wired networks (§V)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from hsdag.base.errors import OptionError, chosen
from hsdag.models.workload import Workload, WorkloadBuilder

LEAST_NODES = {"ws": 5, "er": 2, "ba": 6}
"""Graph families of DiviML (§V): Watts-Strogatz, Erdős-Rényi, Barabási-Albert; the least nodes per module of each."""
WS_DEGREE, WS_REWIRED, ER_PROBABILITY, BA_ATTACHED = 4, 0.75, 0.2, 5
MAX_DRAWS = 10_000
"""Give up on a size after this many graphs drawn without finding a connected one."""
DEPENDENCES = ("weak", "strong")
MAX_NODES, MAX_MODULES, MAX_CHANNELS, MAX_BATCH = 256, 100, 8, 1024
KERNEL, COLOURS, CLASSES = 9, 3, 1000
"""Elements of a 3x3 kernel, channels of an image, and classes of ImageNet."""


@dataclass(frozen=True)
class RandomWiring:
    """Parameters of a randomly wired network. Raises OptionError for a value outside its range.

    ``channels`` is the number of edges from a module to the next. ``width`` (feature maps) and ``resolution`` (rows and
    columns) are by default those of the first stage of the regular regime in Xie et al. 2019, where an op takes about
    20 million operations.
    """

    family: str = "ws"
    nodes: int = 32
    modules: int = 10
    channels: int = 1
    dependence: str = "weak"
    seed: int = 0
    batch: int = 1
    width: int = 109
    resolution: int = 28

    def __post_init__(self) -> None:
        chosen("family", self.family, LEAST_NODES)
        chosen("dependence", self.dependence, DEPENDENCES)
        limits = {"nodes": (LEAST_NODES[self.family], MAX_NODES), "modules": (1, MAX_MODULES),
                  "channels": (1, MAX_CHANNELS), "batch": (1, MAX_BATCH), "seed": (0, 2**63 - 1)}  # fmt: skip
        for name, (least, most) in limits.items():
            if not least <= getattr(self, name) <= most:
                raise OptionError(f"{name} must lie in {least}..{most}, not {getattr(self, name)}")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Return the shape [batch, width, rows, columns] of the tensor on every edge."""
        return self.batch, self.width, self.resolution, self.resolution


def random_wired(wiring: RandomWiring) -> Workload:
    """Return the network: a stem, the modules and a head, in nodes * modules + 2 * channels * modules + 2 ops.

    Each channel enters a module by an op that passes its tensor on and leaves it by an op that averages. The random
    numbers of module t depend only on the seed and t, so that adding modules does not change the earlier ones.
    """
    shape = f"{wiring.family}-{wiring.nodes}x{wiring.modules}"
    ops = WorkloadBuilder(f"random-wired-{shape}-{wiring.dependence}-{wiring.channels}ch-seed{wiring.seed}")
    size, width = prod(wiring.shape), wiring.width
    stem = ops.add("stem", "Convolution", [], wiring.shape, 2.0 * KERNEL * COLOURS * size, KERNEL * COLOURS * width)
    ends = [stem] * wiring.channels
    for t in range(wiring.modules):
        ends = _add_module(ops, wiring, t, ends)
    flops = size + 2.0 * wiring.batch * width * CLASSES
    ops.add("head", "MatMul", ends, (wiring.batch, CLASSES), flops, width * CLASSES)
    return ops.build()


def _add_module(ops: WorkloadBuilder, wiring: RandomWiring, t: int, before: Sequence[int]) -> list[int]:
    """Append module t after the ops ``before``, one per channel, and return its output ops, one per channel."""
    rng = np.random.default_rng([wiring.seed, t])
    n, size, width = wiring.nodes, prod(wiring.shape), wiring.width
    edges = _connected_graph(wiring.family, n, rng)
    readers, writers = (
        _channel_ends([v for v in range(n) if all(v != edge[end] for edge in edges)], wiring, rng) for end in (1, 0)
    )
    inputs = [ops.add(f"m{t}.in{c}", "Identity", [u], wiring.shape) for c, u in enumerate(before)]
    sources: list[list[int]] = [[inputs[c] for c in range(wiring.channels) if v in readers[c]] for v in range(n)]
    nodes: list[int] = []
    for v in range(n):
        sources[v] += [nodes[u] for u, head in edges if head == v]
        fan_in = len(sources[v])
        flops = size * (2.0 * fan_in + 1 + 2 * KERNEL + 2 * width + 2)
        weights = fan_in + KERNEL * width + width**2 + 2 * width
        nodes.append(ops.add(f"m{t}.n{v}", "Convolution", sources[v], wiring.shape, flops, weights))
    return [
        ops.add(f"m{t}.out{c}", "Add", [nodes[v] for v in sorted(ends)], wiring.shape, float(size * len(ends)))
        for c, ends in enumerate(writers)
    ]


def _connected_graph(family: str, num_nodes: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Draw graphs of the family until one is connected; return its edges, sorted, each towards the larger index (§3.3).

    Raises OptionError if MAX_DRAWS graphs were not connected.
    """
    import networkx as nx

    draws = {
        "ws": lambda: nx.watts_strogatz_graph(num_nodes, WS_DEGREE, WS_REWIRED, rng),
        "er": lambda: nx.gnp_random_graph(num_nodes, ER_PROBABILITY, rng),
        "ba": lambda: nx.barabasi_albert_graph(num_nodes, BA_ATTACHED, rng),
    }
    for _ in range(MAX_DRAWS):
        graph = draws[family]()
        if nx.is_connected(graph):
            return sorted((min(pair), max(pair)) for pair in graph.edges)
    raise OptionError(f"no connected graph of family {family} with {num_nodes} nodes was found; choose another size")


def _channel_ends(ends: Sequence[int], wiring: RandomWiring, rng: np.random.Generator) -> list[set[int]]:
    """Draw for each channel the nodes that it feeds, or that feed it (DiviML, Fig. 2).

    With strong dependence the first channel serves all of ``ends`` and each other channel a random half of them. With
    weak dependence every end draws one channel, and a channel that no end drew takes a random node of the module.

    Args:
        ends: The nodes of the module without another input, or without another output.
    """
    served = [set[int]() for _ in range(wiring.channels)]
    if wiring.dependence == "strong":
        served[0] = set(ends)
        for other in served[1:]:
            chosen = rng.permutation(len(ends))[: max(1, len(ends) // 2)]
            other.update(ends[int(i)] for i in chosen)
        return served
    for v in ends:
        served[int(rng.integers(wiring.channels))].add(v)
    for channel in served:
        if not channel:
            channel.add(int(rng.integers(wiring.nodes)))
    return served
