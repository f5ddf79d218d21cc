"""Cut: a placed graph as convex parts, each on one device, that are compiled and run as tasks.

An op may have instances on several devices: joins such as Concat are cheaper computed where they are read than sent
there, since part of what they join is there already. Floating ops (constants, arithmetic on shapes) and Parameters
have no instance: every subgraph takes them along, or reads the model's input. Nor have Results: they name a tensor.
Nor have ops of which only the shape is read: it is known without running them. Ops that keep a variable between
inferences are one atom, which no part divides.

Legend: N ops, D devices, I instances, J edges between instances, A atoms, S subgraphs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hsdag.ir.colocation import known_ops
from hsdag.ir.graph import ComputationGraph, Csr, IntArray, inverse_of, ranked_order
from hsdag.ir.partition import Partition
from hsdag.ir.state import read_by_repeated, repeated_ops
from hsdag.runtime.cutting.instance_kernels import cheaper_again, crossings_around, homes_of
from hsdag.runtime.cutting.running_ops import RunningOps

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
    atom: IntArray  # [I] a number that instances share which stay in one part

    @cached_property
    def index(self) -> IntArray:
        """[N, D] the instance of an op on a device, -1 where it has none."""
        table = np.full((len(self.home), int(self.home.max(initial=0)) + 1), -1, dtype=np.int64)
        table[self.op, self.device] = np.arange(len(self.op))
        return table

    def read_from(self, op: IntArray, device: IntArray) -> IntArray:
        """[K] the instances of ops [K] that readers on devices [K] read."""
        here = self.index[op, device]
        return np.where(here >= 0, here, self.index[op, self.home[op]])


def instances_of(graph: ComputationGraph, device: IntArray, *, copies: bool = True) -> Instances:
    """What runs where: every op on its device, and joins where they are read, if less is sent that way.

    ``device`` is [N]. The fewest bytes that bring op v to device d are 0 on its own, else the smaller of its result
    and, for a join, what its producers cost there. O((N + E) D).
    """
    known = RunningOps.of(graph)
    num_devices = int(device.max(initial=0)) + 1
    reads, readers = known.producers, known.readers
    again = np.zeros((graph.num_ops, num_devices), dtype=np.bool_)
    if copies:
        again = cheaper_again(
            known.order, reads.indptr, reads.indices, known.is_join, known.read_bytes, device, num_devices
        )
    is_end = known.is_result | (np.diff(graph.successors.indptr) == 0)
    homes = homes_of(known.order, readers.indptr, readers.indices, is_end, again, device)
    rank, on = (np.ascontiguousarray(found) for found in np.nonzero(homes[known.order]))
    op = known.order[rank]
    reader, producer = items_of(reads, op)
    instances = Instances(op, on, reader, reader, device, known.atom[op] * num_devices + on)
    return replace(instances, edge_src=instances.read_from(producer, on[reader]))


def items_of(table: Csr, rows: IntArray) -> tuple[IntArray, IntArray]:
    """All items of some rows of a table, each behind the position of its row among ``rows``."""
    num = np.diff(table.indptr)[rows]
    at = np.repeat(np.arange(len(rows)), num)
    nth = np.arange(len(at)) - np.repeat(np.cumsum(num) - num, num)
    return at, table.indices[table.indptr[rows[at]] + nth]


def initial_parts(instances: Instances) -> Partition:
    """The coarsest convex parts that make nobody wait who need not.

    A crossing is a result together with another device that reads it. Instances of one device are together where the
    same crossings lie before them and the same after them, and edges between such instances connect them: all wait
    for the same, and none holds back what another device could have. Along an edge the crossings before never get
    fewer and those after never more, and a crossing changes both; hence no path leaves a part and comes back, and
    parts form no cycle.
    """
    atoms, src, dst = _atom_graph(instances)
    device = np.zeros(atoms.num_groups, dtype=np.int64)
    device[atoms.labels] = instances.device
    crosses = device[src] != device[dst]
    keys = src[crosses] * (int(device.max(initial=0)) + 1) + device[dst[crosses]]
    distinct, number = np.unique(keys, return_inverse=True)
    crossing = np.full(len(src), -1, dtype=np.int64)
    crossing[crosses] = number.reshape(-1)
    before = np.zeros((atoms.num_groups, -(-len(distinct) // 64)), dtype=np.uint64)
    after = np.zeros_like(before)
    crossings_around(src, dst, crossing, np.lexsort((dst, src)), before, after)
    kept = ~crosses & (before[src] == before[dst]).all(axis=1) & (after[src] == after[dst]).all(axis=1)
    return Partition.from_pairs(atoms.num_groups, src[kept], dst[kept]).refine(atoms)


def _atom_graph(instances: Instances) -> tuple[Partition, IntArray, IntArray]:
    """Atoms in an order in which they can run, and the edges [J] between them, ascending by consumer."""
    count = len(instances.op)
    if len(np.unique(instances.atom)) == count:
        return Partition.identity(count), instances.edge_src, instances.edge_dst
    atoms = Partition.from_labels(instances.atom)
    src, dst = atoms.quotient_edges(instances.edge_src, instances.edge_dst)
    rank = inverse_of(ranked_order(atoms.num_groups, src, dst, np.arange(atoms.num_groups)))
    by_consumer = np.argsort(rank[dst], kind="stable")
    return Partition(rank[atoms.labels], atoms.num_groups), rank[src[by_consumer]], rank[dst[by_consumer]]


def cut_of(graph: ComputationGraph, instances: Instances, parts: Partition) -> Cut:
    """The subgraphs of a grouping of instances, which must be convex. Raises ValueError where groups form a cycle."""
    part = running_order(instances, parts)[parts.labels].tolist()
    has_instance = RunningOps.of(graph).runs.tolist()
    incoming, index, home = read_ports(graph), instances.index.tolist(), instances.home.tolist()
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
                here = index[u][d]
                tensor = Tensor(part[here if here >= 0 else index[u][home[u]]], u, port)
                if tensor.source != s:
                    read[s][tensor] = None
                    handed[tensor.source][tensor] = None
    results = []
    for v in (v for v, kind in enumerate(graph.op_types) if kind == "Result"):
        u, port = (v, 0) if has_instance[v] else incoming[v][0]
        tensor = Tensor(part[index[u][home[u]]], u, port)
        handed[tensor.source][tensor] = None
        results.append((v, tensor))
    columns = zip(device, held, read, handed, strict=True)
    subgraphs = tuple(Subgraph(d, tuple(ops), tuple(ins), tuple(outs)) for d, ops, ins, outs in columns)
    return Cut(graph, subgraphs, tuple(results))


def read_ports(graph: ComputationGraph) -> list[list[tuple[int, int]]]:
    """[N] the same as ``incoming_ports``, and what each op reads by way of repeated ops."""
    known = known_ops(graph)
    ports = incoming_ports(graph)
    for found, edges in zip(ports, read_by_repeated(graph, repeated_ops(graph, known), known), strict=True):
        found += [(int(graph.edge_src[e]), int(graph.edge_src_port[e])) for e in edges]
    return ports


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
    first = np.full(parts.num_groups, len(instances.op))
    np.minimum.at(first, parts.labels, np.arange(len(instances.op)))
    try:
        order = ranked_order(parts.num_groups, src, dst, first)
    except ValueError as error:
        raise ValueError("parts wait for each other in a cycle") from error
    position = np.empty(parts.num_groups, dtype=np.int64)
    position[order] = np.arange(parts.num_groups)
    return position
