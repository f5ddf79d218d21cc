"""Random graphs with random placements, and plain readings of what a cut of them has to be."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import ComputationGraph, IntArray, graph_from_edges
from hsdag.ir.graph.partition import Partition
from hsdag.runtime.executor.cut import Instances, initial_parts, instances_of

MOST_OPS = 12
INNER_TYPES = ("MatMul", "Concat", "Add", "Relu", "MatMul", "ShapeOf")


@dataclass(frozen=True)
class Placed:
    """A graph whose ends are all Results, and the device of every op."""

    graph: ComputationGraph
    device: IntArray  # [N]
    num_devices: int

    def instances(self) -> Instances:
        return instances_of(self.graph, self.device)

    def initial(self) -> tuple[Instances, Partition]:
        instances = self.instances()
        return instances, initial_parts(instances)


def build(pairs: list[tuple[int, int]], types: list[int], sizes: list[int], devices: list[int]) -> Placed:
    n = len(types)
    edges = [(min(a % n, b % n), max(a % n, b % n)) for a, b in pairs if a % n != b % n]
    reads = {v for _, v in edges}
    names = [
        INNER_TYPES[k % len(INNER_TYPES)] if v in reads else ("Parameter", "Constant")[k % 2]
        for v, k in enumerate(types)
    ]
    ends = sorted(set(range(n)) - {u for u, _ in edges}) + [v for v in range(n) if types[v] % 5 == 0 and v in reads]
    edges += [(u, n + k) for k, u in enumerate(ends)]
    total = n + len(ends)
    num_devices = 1 + max(devices) if devices else 1
    graph = graph_from_edges(
        names + ["Result"] * len(ends),
        edges,
        flops=[1e7 * (sizes[v % n] % 7) for v in range(total)],
        output_bytes=[1000 * (1 + sizes[v % n]) for v in range(total)],
    )
    return Placed(graph, np.asarray([devices[v % len(devices)] for v in range(total)], dtype=np.int64), num_devices)


_node, _size = st.integers(0, MOST_OPS - 1), st.integers(0, 99)
_types = st.lists(st.integers(0, 29), min_size=1, max_size=MOST_OPS)
placed_graphs: st.SearchStrategy[Placed] = st.builds(
    build,
    st.lists(st.tuples(_node, _node), max_size=26),
    _types,
    st.lists(_size, min_size=MOST_OPS, max_size=MOST_OPS),
    st.lists(st.integers(0, 3), min_size=1, max_size=2 * MOST_OPS),
)
"""Placements on up to four devices: convex or not, with cyclic quotients among them."""


def instance_graph(instances: Instances) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(instances.op)))
    graph.add_edges_from(zip(instances.edge_src.tolist(), instances.edge_dst.tolist(), strict=True))
    return graph


def crossings(instances: Instances, graph: nx.DiGraph) -> list[tuple[frozenset[object], frozenset[object]]]:
    """For each instance the crossings (result, other device that reads it) on the ways to it, and from it on."""
    device = instances.device.tolist()
    around: list[tuple[frozenset[object], frozenset[object]]] = []
    for i in graph:
        before, after = nx.ancestors(graph, i) | {i}, nx.descendants(graph, i) | {i}
        sets = (
            frozenset((u, device[v]) for u, v in graph.edges if device[u] != device[v] and v in before),
            frozenset((u, device[v]) for u, v in graph.edges if device[u] != device[v] and u in after),
        )
        around.append(sets)
    return around


def assert_convex(instances: Instances, parts: Partition) -> None:
    """Every part lies on one device, and no path leaves it and comes back; parts form no cycle."""
    graph, label = instance_graph(instances), parts.labels.tolist()
    quotient = nx.DiGraph((label[u], label[v]) for u, v in graph.edges if label[u] != label[v])
    assert nx.is_directed_acyclic_graph(quotient)
    for p in range(parts.num_groups):
        members = {i for i in graph if label[i] == p}
        assert len({int(instances.device[i]) for i in members}) == 1
        for out in {v for u in members for v in graph.successors(u)} - members:
            assert not (nx.descendants(graph, out) & members)
