"""The submodels that HETERO makes of a placement, and what crosses between them; no device is asked.

HETERO joins neighbouring ops of one device to a submodel and cuts submodels again where they would wait for each
other; ``rules`` has the rules. A submodel costs a launch, and every tensor that leaves one, also to another
on the same device, costs a conversion.

Legend: N ops of the graph, M nodes of the placed model, K edges between nodes, D devices, B placements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np

from hsdag.ir.colocation import SHAPE_OF_TYPES, floating_ops, kept_compressed
from hsdag.ir.graph import BoolArray, ComputationGraph, Csr, FloatArray, IntArray
from hsdag.ir.submodels.parts import Net
from hsdag.ir.submodels.rules import split


@dataclass(frozen=True, eq=False)
class Crossings:
    """What placements make HETERO do.

    A tensor crosses once to every other device that reads it, and, on the diagonal, once to other submodels on its
    own device if it goes nowhere else: to leave a submodel is what costs, as measured on CPU devices.
    """

    launches: IntArray  # [B, D] submodels on each device
    num: IntArray  # [B, D, D]
    size_bytes: FloatArray  # [B, D, D]


class SubmodelCollector:
    """Splits placements of one graph as HETERO does.

    What HETERO gets is the clone that ``ir.prepared`` makes: an op that runs on data has constants and decompressions
    of its own. They do not join submodels, but they count where HETERO chooses what to cut.
    """

    def __init__(self, graph: ComputationGraph) -> None:
        self.num_ops = graph.num_ops
        self._nodes = _expanded(graph)
        net, edge = self._nodes.net, self._nodes.edge
        self._own = np.flatnonzero(~net.floats)
        on_data = np.flatnonzero(~net.floats[net.src])
        by_tensor = on_data[np.lexsort((graph.edge_src_port[edge[on_data]], net.src[on_data]))]
        tensors = np.stack((net.src[by_tensor], graph.edge_src_port[edge[by_tensor]]))
        first = np.ones(len(by_tensor), dtype=np.bool_)
        first[1:] = (tensors[:, 1:] != tensors[:, :-1]).any(axis=0)
        start = np.append(np.flatnonzero(first), len(by_tensor)).astype(np.int64)
        self._tensors = _Tensors(start, by_tensor.astype(np.int64), graph.edge_bytes[edge].astype(np.float64))

    def submodel_of(self, devices: IntArray) -> IntArray:
        """[N] submodel of every op under the placement [N] of ops; -1 for ops that float.

        Submodels are numbered by their first op in topological order.
        """
        label = split(self._nodes.net, devices[self._nodes.home])[self._own]
        submodels = np.full(self.num_ops, -1, dtype=np.int64)
        submodels[self._nodes.op[self._own]] = np.unique(label, return_inverse=True)[1].reshape(-1)
        return submodels

    def crossings(self, devices: IntArray, num_devices: int) -> Crossings:
        """Launches and crossings of placements [B, N] of ops."""
        found = Crossings(
            np.zeros((len(devices), num_devices), dtype=np.int64),
            np.zeros((len(devices), num_devices, num_devices), dtype=np.int64),
            np.zeros((len(devices), num_devices, num_devices)),
        )
        table = np.ascontiguousarray(devices, dtype=np.int64)
        net, home = self._nodes.net, self._nodes.home
        _count_all(net, self._tensors, self._own, home, table, found.launches, found.num, found.size_bytes)
        return found


class _Tensors(NamedTuple):
    """Edges by the tensor that they carry: those of tensor t are ``edge[start[t]:start[t + 1]]``."""

    start: IntArray
    edge: IntArray
    size_bytes: FloatArray  # [K]


@numba.njit(cache=True, nogil=True)
def _count_all(
    net: Net,
    tensors: _Tensors,
    own: IntArray,
    home: IntArray,
    placements: IntArray,
    launches: IntArray,
    num: IntArray,
    size_bytes: FloatArray,
) -> None:
    """Fill the tables of ``Crossings`` for placements [B, N]; ``own`` are the nodes that do not float."""
    counted = np.full(len(home), -1)  # the last placement whose launches a submodel was counted in
    for b in range(len(placements)):
        device = placements[b][home]
        label = split(net, device)
        for v in own:
            if counted[label[v]] != b:
                counted[label[v]] = b
                launches[b, device[v]] += 1
        _cross(net, tensors, device, label, num[b], size_bytes[b])


@numba.njit(cache=True, nogil=True)
def _cross(
    net: Net, tensors: _Tensors, device: IntArray, label: IntArray, count: IntArray, size_bytes: FloatArray
) -> None:
    """Fill the last two tables [D, D] with what crosses between submodels."""
    reached = np.full(len(count), -1, dtype=np.int64)  # the last tensor that crossed to a device
    for t in range(len(tensors.start) - 1):
        edges = tensors.edge[tensors.start[t] : tensors.start[t + 1]]
        home, stays, goes = device[net.src[edges[0]]], False, False
        for e in edges:
            away = device[net.dst[e]]
            if away == home:
                stays = stays or label[net.dst[e]] != label[net.src[e]]
            elif reached[away] != t:
                reached[away] = t
                goes = True
                count[home, away] += 1
                size_bytes[home, away] += tensors.size_bytes[e]
        if stays and not goes:
            count[home, home] += 1
            size_bytes[home, home] += tensors.size_bytes[edges[0]]


class _Nodes(NamedTuple):
    """The nodes of a placed model, floating ops copied for every reader."""

    net: Net
    op: IntArray  # [M] the op that each node is, or is a copy of
    home: IntArray  # [M] the op whose device it is on
    edge: IntArray  # [K] the edge of the graph that each edge is, or is a copy of


def _expanded(graph: ComputationGraph) -> _Nodes:
    """Ops in topological order, each after the copies that it reads."""
    floats, kept, sources = floating_ops(graph), kept_compressed(graph), graph.predecessors
    is_known = np.isin(graph.op_types, ["Constant", *SHAPE_OF_TYPES]) & floats
    node_of: dict[int, int] = {}  # the latest node of an op
    op: list[int] = []
    home: list[int] = []
    is_input: list[bool] = []
    edges: list[tuple[int, int, int]] = []  # the node that is read, the one that reads, the edge of the graph
    for v in graph.topological_order[~floats[graph.topological_order]].tolist():
        read = [u for u in sources.of(v).tolist() if floats[u]]
        known = {u for u in read if not kept[u]}
        copied = _with_what_they_read(read, sources, known, is_known)
        for u in [*sorted(copied, key=graph.position.__getitem__), v]:
            is_input.append(u in known or bool(is_known[u]) or graph.op_types[u] == "Parameter")
            into = slice(sources.indptr[u], sources.indptr[u] if is_input[-1] else sources.indptr[u + 1])
            pairs = zip(sources.indices[into].tolist(), sources.edges[into].tolist(), strict=True)
            edges += [(node_of[w], len(op), e) for w, e in pairs]
            node_of[u] = len(op)
            op.append(u)
            home.append(v)
    table, ops = np.array(edges, dtype=np.int64).reshape(-1, 3), np.array(op, dtype=np.int64)
    is_result = np.isin(graph.op_types, ["Result"])[ops]
    ends = (table[:, 0].copy(), table[:, 1].copy(), graph.edge_src_port[table[:, 2]])
    net = _net(*ends, floats[ops], np.array(is_input, dtype=np.bool_), is_result)
    return _Nodes(net, ops, np.array(home, dtype=np.int64), table[:, 2].copy())


def _with_what_they_read(ops: list[int], sources: Csr, known: set[int], is_known: BoolArray) -> set[int]:
    """Floating ops and everything they are computed from, except what is folded to a constant."""
    found: set[int] = set()
    to_do = list(ops)
    while to_do:
        u = to_do.pop()
        if u not in found:
            found.add(u)
            if u not in known and not is_known[u]:
                to_do += sources.of(u).tolist()
    return found


def _net(
    src: IntArray, dst: IntArray, src_port: IntArray, floats: BoolArray, is_input: BoolArray, is_result: BoolArray
) -> Net:
    """Nodes [M] with the edges [K] between them, in the order of ``dst``."""
    count = len(floats)
    tensor = np.unique(np.stack((src, src_port)), axis=1, return_inverse=True)[1].reshape(-1)
    num_readers = np.bincount(src[~is_result[dst]], minlength=count)
    return Net(
        first=np.searchsorted(dst, np.arange(count + 1)).astype(np.int64),
        src=src,
        dst=dst,
        out_first=np.searchsorted(np.sort(src), np.arange(count + 1)).astype(np.int64),
        out_edge=np.argsort(src, kind="stable").astype(np.int64),
        floats=floats,
        is_input=is_input,
        is_alone=np.bincount(tensor)[tensor] == 1,
        num_readers=num_readers.astype(np.int64),
        is_leaf=~is_input & (num_readers == 1) & (np.bincount(dst[~is_input[src]], minlength=count) == 0),
    )
