"""The splitting rules of HETERO once more, with sets instead of bits: slow, plain, and sharing nothing with ours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import networkx as nx
import openvino as ov

Edge = tuple[int, int]  # node and input port
T = TypeVar("T")


@dataclass(frozen=True)
class Nodes:
    """Nodes in topological order; node v reads (node, output port) at ``inputs[v][port]``."""

    inputs: list[list[tuple[int, int]]]
    is_input: list[bool]
    is_result: list[bool]

    @staticmethod
    def of(model: ov.Model) -> Nodes:
        nodes = model.get_ordered_ops()
        index = {node.get_name(): v for v, node in enumerate(nodes)}
        sources = [[port.get_source_output() for port in node.inputs()] for node in nodes]
        types = [node.get_type_name() for node in nodes]
        return Nodes(
            [[(index[s.get_node().get_name()], s.get_index()) for s in row] for row in sources],
            [t in ("Parameter", "Constant") for t in types],
            [t == "Result" for t in types],
        )

    @property
    def edges(self) -> list[tuple[Edge, int]]:
        return [((v, k), u) for v, row in enumerate(self.inputs) for k, (u, _) in enumerate(row)]

    def num_readers(self, u: int) -> int:
        return sum(w == u and not self.is_result[v] for (v, _), w in self.edges)

    def num_uses(self, tensor: tuple[int, int]) -> int:
        return sum(row.count(tensor) for row in self.inputs)


def hetero_split(nodes: Nodes, devices: list[int]) -> list[int]:
    """The first node of every node's submodel."""
    boundary = {edge for edge, u in nodes.edges if devices[u] != devices[edge[0]]}
    while new := _returns(nodes, boundary, _joined(nodes, boundary)) - boundary:
        boundary |= new
    while new := _isolated(nodes, boundary, _joined(nodes, boundary)):
        boundary |= new
    return _joined(nodes, boundary)


def _joined(nodes: Nodes, boundary: set[Edge]) -> list[int]:
    graph = nx.Graph((u, edge[0]) for edge, u in nodes.edges if edge not in boundary)
    graph.add_nodes_from(range(len(nodes.inputs)))
    label = {v: min(group) for group in nx.connected_components(graph) for v in group}
    return [label[v] for v in range(len(nodes.inputs))]


def _returns(nodes: Nodes, boundary: set[Edge], label: list[int]) -> set[Edge]:
    """Boundaries of one round. An entrance is a boundary, or (v, -1) for a graph input v."""
    depends: list[set[Edge]] = []
    for v, row in enumerate(nodes.inputs):
        direct = {(v, k) for k in range(len(row)) if (v, k) in boundary} | ({(v, -1)} if nodes.is_input[v] else set())
        depends.append(direct.union(*(depends[u] for u, _ in row)))
    sender = dict(nodes.edges)
    into = [{e for e in depends[v] if label[e[0]] == label[v]} for v in range(len(label))]
    left = [{e for e in depends[v] if e in sender and label[sender[e]] == label[v]} for v in range(len(label))]
    found = set()
    for v, row in enumerate(nodes.inputs):
        back = [e for e in into[v] if e in sender and label[sender[e]] != label[v]]
        known = _union(into[sender[e]] for e in left[v]) | _union(into[e[0]] for e in back)
        for k, (u, port) in enumerate(row):
            plain = not left[u] and all(e not in sender or nodes.is_input[sender[e]] for e in into[u])
            spared = nodes.num_uses((u, port)) == 1 and not nodes.is_input[u] and plain
            if left[v] and not left[v] & left[u] and known & into[u] and not spared:
                found.add((v, k))
    return found


def _isolated(nodes: Nodes, boundary: set[Edge], label: list[int]) -> set[Edge]:
    """What the node on a ring of submodels that HETERO takes next reads inside its submodel; empty without a ring."""
    rings = nx.DiGraph((label[u], label[e[0]]) for e, u in nodes.edges if label[u] != label[e[0]])
    on_ring = _union(ring for ring in nx.strongly_connected_components(rings) if len(ring) > 1)
    ranks = []
    for v, row in enumerate(nodes.inputs):
        inside = [u for k, (u, _) in enumerate(row) if (v, k) not in boundary]
        outside = [u for k, (u, _) in enumerate(row) if (v, k) in boundary and label[u] != label[v]]
        if label[v] in on_ring and inside:
            link = len(inside) == 1 and nodes.num_readers(v) <= 1
            entered, shared = any(label[u] in on_ring for u in outside), any(nodes.num_readers(u) > 1 for u in inside)
            ranks.append((not entered, not shared, any(_is_leaf(nodes, u) for u in inside), link, len(inside), v))
    return {(min(ranks)[-1], k) for k in range(len(nodes.inputs[min(ranks)[-1]]))} if ranks else set()


def _is_leaf(nodes: Nodes, u: int) -> bool:
    reads_inputs = all(nodes.is_input[w] for w, _ in nodes.inputs[u])
    return not nodes.is_input[u] and nodes.num_readers(u) == 1 and reads_inputs


def _union(sets: Iterable[set[T]]) -> set[T]:
    return {item for each in sets for item in each}
