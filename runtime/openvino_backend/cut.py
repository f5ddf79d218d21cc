"""Cut: a placed graph as convex subgraphs, each on one device, that are compiled and run as tasks.

An op may have instances on several devices: joins such as Concat are cheaper computed where they are read than sent
there, since part of what they join is there already. Floating ops (constants, arithmetic on shapes) and Parameters
have no instance: every subgraph takes them along, or reads the model's input. Nor have Results: they name a tensor.

Legend: N ops, D devices, I instances, J edges between instances, S subgraphs.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hsdag.ir.colocation import floating_ops
from hsdag.ir.graph import BoolArray, ComputationGraph, Csr, FloatArray, IntArray
from hsdag.ir.partition import Partition

JOIN_TYPES = frozenset(
    "Concat Reshape Squeeze Unsqueeze Transpose Split VariadicSplit StridedSlice Slice Pad Relu Add Convert".split()
)
"""Ops so cheap beside a transfer of their result that they may be computed once more where it is read."""

MODEL_INPUT = -1
"""The source of a tensor that the caller gives."""


@dataclass(frozen=True)
class Tensor:
    """A result as one subgraph hands it to others: output ``port`` of ``op``, made by subgraph ``source``."""

    source: int
    op: int
    port: int


@dataclass(frozen=True)
class Subgraph:
    """Ops of one device that run as one task: what it holds, reads and hands out; ops in topological order."""

    device: int
    ops: tuple[int, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Cut:
    """Subgraphs in an order in which they can run, and the tensor of every Result, as (op of the Result, tensor)."""

    graph: ComputationGraph
    subgraphs: tuple[Subgraph, ...]
    results: tuple[tuple[int, Tensor], ...]

    @cached_property
    def edges(self) -> IntArray:
        """[E, 2] subgraphs of which the first hands something to the second."""
        pairs = sorted({(t.source, s) for s, part in enumerate(self.subgraphs) for t in part.inputs if t.source >= 0})
        return np.asarray(pairs, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def device(self) -> IntArray:
        """[S] where each subgraph runs."""
        return np.asarray([part.device for part in self.subgraphs], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Instances:
    """Ops on devices, in topological order, and who reads whom; ``home`` [N] is where an op was placed."""

    op: IntArray  # [I]
    device: IntArray  # [I]
    edge_src: IntArray  # [J] instance
    edge_dst: IntArray  # [J] instance, ascending
    home: IntArray  # [N]

    @cached_property
    def index(self) -> dict[tuple[int, int], int]:
        """The instance of an op on a device, where it has one."""
        return {pair: i for i, pair in enumerate(zip(self.op.tolist(), self.device.tolist(), strict=True))}

    def read_from(self, op: int, device: int) -> int:
        """The instance of ``op`` that a reader on ``device`` reads."""
        found = self.index.get((op, device))
        return self.index[op, int(self.home[op])] if found is None else found


def instances_of(graph: ComputationGraph, device: IntArray, *, copies: bool = True) -> Instances:
    """What runs where: every op on its device, and joins where they are read, if less is sent that way.

    ``device`` is [N]. The fewest bytes that bring op v to device d are 0 on its own, else the smaller of its result
    and, for a join, what its producers cost there. O((N + E) D).
    """
    has_instance = ops_with_instances(graph)
    neighbours = _neighbours(graph, has_instance)
    again = _cheaper_again(graph, device, has_instance, neighbours[0]) if copies else None
    homes: list[list[int]] = [[] for _ in range(graph.num_ops)]
    is_result = _read_by_results(graph)
    for v in graph.topological_order[::-1].tolist():
        if has_instance[v]:
            wanted = {d for w in neighbours[1][v] for d in homes[w]}
            copied = {d for d in wanted if again is not None and again[v, d]}
            at_home = {int(device[v])} if is_result[v] or wanted - copied or not wanted else set()
            homes[v] = sorted(copied | at_home)
    index: dict[tuple[int, int], int] = {}
    for v in graph.topological_order.tolist():
        for d in homes[v]:
            index[v, d] = len(index)
    edges = [
        (index.get((u, d), index.get((u, int(device[u])), -1)), i)
        for (v, d), i in index.items()
        for u in neighbours[0][v]
    ]
    pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    keys = np.asarray(list(index), dtype=np.int64).reshape(-1, 2)
    return Instances(keys[:, 0].copy(), keys[:, 1].copy(), pairs[:, 0].copy(), pairs[:, 1].copy(), device)


def initial_parts(instances: Instances) -> Partition:
    """The coarsest convex parts that make nobody wait who need not.

    A crossing is a result together with another device that reads it. Instances of one device are together where the
    same crossings lie before them and the same after them, and edges between such instances connect them: all wait
    for the same, and none holds back what another device could have. Along an edge the crossings before never get
    fewer and those after never more, and a crossing changes both; hence no path leaves a part and comes back, and
    parts form no cycle.
    """
    count = len(instances.op)
    before, after = [0] * count, [0] * count  # sets of crossings, as bits
    device = instances.device.tolist()
    pairs = list(zip(instances.edge_src.tolist(), instances.edge_dst.tolist(), strict=True))
    crossing: dict[tuple[int, int], int] = {}
    bit = [0 if device[u] == device[v] else 1 << crossing.setdefault((u, device[v]), len(crossing)) for u, v in pairs]
    for (u, v), own in zip(pairs, bit, strict=True):
        before[v] |= before[u] | own
    for k in sorted(range(len(pairs)), key=lambda k: pairs[k], reverse=True):
        u, v = pairs[k]
        after[u] |= after[v] | bit[k]
    same = [device[u] == device[v] and before[u] == before[v] and after[u] == after[v] for u, v in pairs]
    kept = np.asarray(same, dtype=np.bool_)
    return Partition.from_pairs(count, instances.edge_src[kept], instances.edge_dst[kept])


def cut_of(graph: ComputationGraph, instances: Instances, parts: Partition) -> Cut:
    """The subgraphs of a grouping of instances, which must be convex. Raises ValueError where groups form a cycle."""
    part = running_order(instances, parts)[parts.labels].tolist()
    has_instance = ops_with_instances(graph)
    incoming = incoming_ports(graph)
    held: list[list[int]] = [[] for _ in range(parts.num_groups)]
    read: list[dict[Tensor, None]] = [{} for _ in held]
    handed: list[dict[Tensor, None]] = [{} for _ in held]
    device = [0] * parts.num_groups
    for i, (v, d) in enumerate(zip(instances.op.tolist(), instances.device.tolist(), strict=True)):
        s = part[i]
        device[s] = d
        held[s].append(v)
        for u, port in incoming[v]:
            if graph.op_types[u] == "Parameter":
                read[s][Tensor(MODEL_INPUT, u, port)] = None
            elif has_instance[u]:
                tensor = Tensor(part[instances.read_from(u, d)], u, port)
                if tensor.source != s:
                    read[s][tensor] = None
                    handed[tensor.source][tensor] = None
    results = []
    for v in (v for v, kind in enumerate(graph.op_types) if kind == "Result"):
        u, port = (v, 0) if has_instance[v] else incoming[v][0]
        tensor = Tensor(part[instances.read_from(u, int(instances.home[u]))], u, port)
        handed[tensor.source][tensor] = None
        results.append((v, tensor))
    columns = zip(device, held, read, handed, strict=True)
    subgraphs = tuple(Subgraph(d, tuple(ops), tuple(ins), tuple(outs)) for d, ops, ins, outs in columns)
    return Cut(graph, subgraphs, tuple(results))


def ops_with_instances(graph: ComputationGraph) -> BoolArray:
    """[N] ops that run: not those that float, nor Parameters, nor Results of ops that run."""
    types = np.asarray(graph.op_types)
    runs = ~floating_ops(graph) & (types != "Parameter")
    of_running = np.zeros(graph.num_ops, dtype=np.bool_)
    of_running[graph.edge_dst[runs[graph.edge_src]]] = True
    return np.asarray(runs & ~((types == "Result") & of_running), dtype=np.bool_)


def incoming_ports(graph: ComputationGraph) -> list[list[tuple[int, int]]]:
    """[N] producer and its output port for each input of each op, by input port."""
    ports: list[list[tuple[int, int, int]]] = [[] for _ in range(graph.num_ops)]
    columns = (graph.edge_src, graph.edge_src_port, graph.edge_dst, graph.edge_dst_port)
    for u, out, v, port in zip(*(column.tolist() for column in columns), strict=True):
        ports[v].append((port, u, out))
    return [[(u, out) for _, u, out in sorted(found)] for found in ports]


def running_order(instances: Instances, parts: Partition) -> IntArray:
    """[S] the position of every part in an order in which they can run; ties go by the first instance.

    Raises ValueError where parts wait for each other in a circle.
    """
    src, dst = parts.quotient_edges(instances.edge_src, instances.edge_dst)
    waits = np.bincount(dst, minlength=parts.num_groups).tolist()
    first = np.full(parts.num_groups, len(instances.op))
    np.minimum.at(first, parts.labels, np.arange(len(instances.op)))
    readers = Csr.build(parts.num_groups, src, dst)
    ready = [(int(first[p]), p) for p in range(parts.num_groups) if not waits[p]]
    heapq.heapify(ready)
    order = []
    while ready:
        p = heapq.heappop(ready)[1]
        order.append(p)
        for q in readers.of(p).tolist():
            waits[q] -= 1
            if not waits[q]:
                heapq.heappush(ready, (int(first[q]), q))
    if len(order) < parts.num_groups:
        raise ValueError("subgraphs wait for each other in a circle")
    position = np.empty(parts.num_groups, dtype=np.int64)
    position[order] = np.arange(parts.num_groups)
    return position


def _neighbours(graph: ComputationGraph, has_instance: BoolArray) -> tuple[list[list[int]], list[list[int]]]:
    """Producers and readers of each op that runs, among those that run, each once."""
    sources: list[dict[int, None]] = [{} for _ in range(graph.num_ops)]
    readers: list[dict[int, None]] = [{} for _ in range(graph.num_ops)]
    for u, v in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        if has_instance[u] and has_instance[v]:
            sources[v][u] = None
            readers[u][v] = None
    return [list(found) for found in sources], [list(found) for found in readers]


def _cheaper_again(
    graph: ComputationGraph, device: IntArray, has_instance: BoolArray, sources: list[list[int]]
) -> BoolArray:
    """[N, D] joins for which less has to be sent to a device when they are computed there once more."""
    shape = (graph.num_ops, int(device.max(initial=0)) + 1)
    sent_bytes, again = np.zeros(shape), np.zeros(shape, dtype=np.bool_)
    read_bytes = _read_bytes(graph)
    for v in graph.topological_order.tolist():
        if not has_instance[v]:
            continue
        sent_bytes[v] = read_bytes[v]
        if graph.op_types[v] in JOIN_TYPES and sources[v]:
            brought = sent_bytes[sources[v]].sum(axis=0)
            again[v] = brought < sent_bytes[v]
            sent_bytes[v] = np.minimum(sent_bytes[v], brought)
        sent_bytes[v, device[v]], again[v, device[v]] = 0.0, False
    return again


def _read_bytes(graph: ComputationGraph) -> FloatArray:
    """[N] bytes of those outputs of each op that anything reads."""
    _, once = np.unique(np.stack([graph.edge_src, graph.edge_src_port]), axis=1, return_index=True)
    read_bytes = np.bincount(graph.edge_src[once], graph.edge_bytes[once], minlength=graph.num_ops)
    return read_bytes.astype(np.float64)


def _read_by_results(graph: ComputationGraph) -> BoolArray:
    """[N] ops that a Result reads."""
    read = np.zeros(graph.num_ops, dtype=np.bool_)
    read[graph.edge_src[np.asarray(graph.op_types)[graph.edge_dst] == "Result"]] = True
    return read
