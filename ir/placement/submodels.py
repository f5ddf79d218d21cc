"""The submodels that HETERO makes of a placed model, and the tensors that cross between them, without any device.

HETERO joins neighbouring ops of one device to a submodel and cuts submodels again where they would wait for each
other; ``hetero_rules`` has the rules. A submodel costs a launch, and every tensor that leaves one, also to another
on the same device, costs a conversion.

Legend: N ops of the graph, M nodes of the placed model that run on data, K edges into them, T tensors that they read,
D devices, B placements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hsdag.base.kernels import bare, run_kernel
from hsdag.ir.graph.colocation import kept_compressed, known_ops, read_by_repeated, repeated_ops
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, Csr, FloatArray, IntArray, inverse_of
from hsdag.ir.graph.state import SHAPE_OF_TYPES
from hsdag.ir.placement.hetero_rules import Net, Workspace, split


@dataclass(frozen=True, eq=False)
class Crossings:
    """The launches and crossings of placements under HETERO.

    A tensor crosses once to every other device that reads it, and, on the diagonal, once to other submodels on its
    own device if it crosses to no other device: leaving a submodel is what costs, as measured on CPU devices.
    """

    launches: IntArray  # [B, D] submodels on each device
    num: IntArray  # [B, D, D]
    size_bytes: FloatArray  # [B, D, D]


class SubmodelCollector:
    """A collector that splits placements of one graph as HETERO does.

    It works on the clone that ``ir.placement.prepared`` makes: an op that runs on data has its own constants and
    decompressions. They do not join submodels, but they count where HETERO chooses what to cut. Ops that every device
    repeats are left out: their readers read the inputs of these instead. If the graph ``is_placed``, its ops include
    the copies already.
    """

    def __init__(self, graph: ComputationGraph, *, is_placed: bool = False) -> None:
        self.num_ops = graph.num_ops
        self.nodes = _expanded(graph, is_placed)

    def submodel_of(self, devices: IntArray) -> IntArray:
        """Return [N] the submodel of every op under a placement [N] of ops; -1 for floating ops.

        Submodels are numbered by their first op in topological order.
        """
        submodels = np.full(self.num_ops, -1, dtype=np.int64)
        label = self._label(devices[self.nodes.op], Workspace.of(self.nodes.net))
        submodels[self.nodes.op] = np.unique(label, return_inverse=True)[1].reshape(-1)
        return submodels

    def crossings(self, devices: IntArray, num_devices: int) -> Crossings:
        """Count launches and crossings of placements [B, N] of ops."""
        work = Workspace.of(self.nodes.net)
        scratch = np.zeros(num_devices, dtype=np.int64)
        links = (len(devices), num_devices, num_devices)
        crossed = Crossings(np.zeros(links[:2], np.int64), np.zeros(links, np.int64), np.zeros(links))
        for b, device in enumerate(np.ascontiguousarray(devices[:, self.nodes.op], dtype=np.int64)):
            label = self._label(device, work)
            crossed.launches[b] = np.bincount(device[label == np.arange(len(label))], minlength=num_devices)
            run_kernel(
                count_crossings, self._steps, self.nodes, device, label, scratch, crossed.num[b], crossed.size_bytes[b]
            )
        return crossed

    @property
    def _steps(self) -> float:
        return float(len(self.nodes.op) + len(self.nodes.net.src))

    def _label(self, device: IntArray, work: Workspace) -> IntArray:
        """Return [M] the first node of each node's submodel; the array belongs to the workspace."""
        run_kernel(split, self._steps, self.nodes.net, work, device)
        return work.parts.label


class Tensors(NamedTuple):
    """The tensors that nodes read, in the order of the nodes that give them.

    Node v gives the tensors ``of_node[v]:of_node[v + 1]``; edges ``edge[start[t]:start[t + 1]]`` carry tensor t.
    """

    of_node: IntArray  # [M + 1]
    start: IntArray  # [T + 1]
    edge: IntArray  # [K]
    size_bytes: FloatArray  # [T]


class Nodes(NamedTuple):
    """The nodes of a placed model that run on data."""

    net: Net
    tensors: Tensors
    op: IntArray  # [M] the op of each node


@bare
def count_crossings(
    nodes: Nodes, device: IntArray, label: IntArray, reached: IntArray, count: IntArray, size_bytes: FloatArray
) -> None:
    """Add the crossings between submodels to the last two tables [D, D]; ``reached`` [D] is scratch."""
    tensors = nodes.tensors
    reached[:] = -1  # the last tensor that crossed to a device
    for v in range(len(device)):
        home = device[v]
        for t in range(tensors.of_node[v], tensors.of_node[v + 1]):
            stays, goes = False, False
            for e in tensors.edge[tensors.start[t] : tensors.start[t + 1]]:
                u = nodes.net.dst[e]
                away = device[u]
                if away == home:
                    stays = stays or label[u] != label[v]
                elif reached[away] != t:
                    reached[away] = t
                    goes = True
                    count[home, away] += 1
                    size_bytes[home, away] += tensors.size_bytes[t]
            if stays and not goes:
                count[home, home] += 1
                size_bytes[home, home] += tensors.size_bytes[t]


def _expanded(graph: ComputationGraph, is_placed: bool) -> Nodes:
    """Return the nodes of the placed model: ops in topological order, then the copies of floating ops they read."""
    is_known, kept = known_ops(graph), kept_compressed(graph)
    sources = graph.predecessors
    repeated = np.zeros(graph.num_ops, np.bool_) if is_placed else repeated_ops(graph)
    by_repeated = [[]] * graph.num_ops if is_placed else read_by_repeated(graph)
    is_constant = np.isin(graph.op_types, ["Constant", *SHAPE_OF_TYPES]) & is_known
    node_of: dict[int, int] = {}  # the latest node of an op
    op: list[int] = []
    is_input: list[bool] = []
    edges: list[tuple[int, int, int]] = []  # producer, consumer, edge of the graph
    for v in graph.topological_order[~(is_known | repeated)[graph.topological_order]].tolist():
        read = [u for u in sources.of(v).tolist() if is_known[u]]
        folded = {u for u in read if not kept[u]}
        copied = _with_what_they_read(read, sources, folded, is_constant)
        for u in [*sorted(copied, key=graph.position.__getitem__), v]:
            is_input.append(u in folded or bool(is_constant[u]) or graph.op_types[u] == "Parameter")
            into = slice(sources.indptr[u], sources.indptr[u] if is_input[-1] else sources.indptr[u + 1])
            pairs = list(zip(sources.indices[into].tolist(), sources.edges[into].tolist(), strict=True))
            pairs += [(int(graph.edge_src[e]), e) for e in by_repeated[u]]
            edges += [(node_of[w], len(op), e) for w, e in pairs if not repeated[w]]
            node_of[u] = len(op)
            op.append(u)
    ops, table = np.array(op, dtype=np.int64), np.array(edges, dtype=np.int64).reshape(-1, 3)
    order = np.argsort(is_known[ops], kind="stable")
    ends = inverse_of(order)[table[:, :2]]
    num_on_data = int(np.sum(~is_known[ops]))
    is_result = np.isin(graph.op_types, ["Result"])[ops[order]]
    net, edge = _net(
        ends, table[:, 2], graph.edge_src_port, num_on_data, np.array(is_input, np.bool_)[order], is_result
    )
    return Nodes(net, _tensors(net, edge, graph), ops[order[:num_on_data]])


def _with_what_they_read(ops: list[int], sources: Csr, folded: set[int], is_constant: BoolArray) -> set[int]:
    """Return floating ops and everything from which they are computed, except the inputs of folded ops."""
    reached: set[int] = set()
    to_do = list(ops)
    while to_do:
        u = to_do.pop()
        if u not in reached:
            reached.add(u)
            if u not in folded and not is_constant[u]:
                to_do += sources.of(u).tolist()
    return reached


def _net(
    ends: IntArray, edge: IntArray, ports: IntArray, num_on_data: int, is_input: BoolArray, is_result: BoolArray
) -> tuple[Net, IntArray]:
    """Return the net of nodes, of which the first ``num_on_data`` run on data, and the graph's edge of each net edge.

    Args:
        ends: [edges, 2] producer and consumer of all edges between nodes.
        edge: The graph's edge of each of these.
        ports: [E] the output port by edge of the graph.
        is_input: Whether a node is a Parameter or Constant, by node.
        is_result: Whether a node is a Result, by node.
    """
    count = len(is_input)
    src, dst = ends.T
    tensor = np.unique(np.stack((src, ports[edge])), axis=1, return_inverse=True)[1].reshape(-1)
    is_alone = np.bincount(tensor)[tensor] == 1
    num_readers = np.bincount(src[~is_result[dst]], minlength=count).astype(np.int64)
    num_read = np.bincount(dst[~is_input[src]], minlength=count)
    kept = np.lexsort((src >= num_on_data, dst))
    kept = kept[dst[kept] < num_on_data]
    src, dst = src[kept].copy(), dst[kept].copy()
    on_data = np.flatnonzero(src < num_on_data)
    first = np.searchsorted(dst, np.arange(num_on_data + 1)).astype(np.int64)
    constant = first[:-1] + np.bincount(dst[on_data], minlength=num_on_data)
    net = Net(
        first=first,
        constant=constant,
        src=src,
        dst=dst,
        out_first=np.searchsorted(np.sort(src[on_data]), np.arange(num_on_data + 1)).astype(np.int64),
        out_edge=on_data[np.argsort(src[on_data], kind="stable")].astype(np.int64),
        is_alone=is_alone[kept],
        is_input=is_input,
        num_readers=num_readers,
        is_leaf=~is_input & (num_readers == 1) & (num_read == 0),
        is_source=(constant == first[:-1]) & (is_input[:num_on_data] | (first[:-1] < first[1:])),
    )
    return net, edge[kept]


def _tensors(net: Net, edge: IntArray, graph: ComputationGraph) -> Tensors:
    """Return the tensors carried by the edges between nodes; ``edge`` are the graph's edges of the net's edges."""
    src, port = net.src[net.out_edge], graph.edge_src_port[edge[net.out_edge]]
    by_tensor = np.lexsort((port, src))
    src, port, edges = src[by_tensor], port[by_tensor], net.out_edge[by_tensor]
    is_first = np.append(True, (src[1:] != src[:-1]) | (port[1:] != port[:-1]))[: len(src)]
    start = np.flatnonzero(is_first)
    return Tensors(
        np.searchsorted(src[start], np.arange(len(net.constant) + 1)).astype(np.int64),
        np.append(start, len(src)).astype(np.int64),
        edges,
        graph.edge_bytes[edge[edges[start]]].astype(np.float64),
    )
