"""Cutting a placed graph into convex parts, each on one device, which are compiled and run as tasks.

An op may have instances on several devices: joins such as Concat are cheaper computed where they are read than sent
there, since part of their inputs is there already. Floating ops (constants, arithmetic on shapes) and Parameters
have no instance: every subgraph contains copies of them, or reads the model's input. Results have none: they name a
tensor. Nor have ops of which only the shape is read: it is known without running them. Ops that keep a variable
between inferences are one atom, which no part divides.

Legend: N ops, R ops that run, D devices, I instances, J edges between instances, E edges, C edges that are read through
repeated ops, A atoms, S subgraphs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hsdag.base.kernels import bare, run_kernel
from hsdag.ir.graph.colocation import (
    carried_by_repeated,
    colocate,
    floating_ops,
    read_by_repeated,
)
from hsdag.ir.graph.computation_graph import (
    BoolArray,
    ComputationGraph,
    Csr,
    FloatArray,
    IntArray,
    fact_of_graph,
    inverse_of,
    ranked_order,
)
from hsdag.ir.graph.partition import Partition
from hsdag.ir.graph.state import variable_of

JOIN_TYPES = frozenset(
    "Concat Reshape Squeeze Unsqueeze Transpose Split VariadicSplit StridedSlice Slice Pad Relu Add Convert".split()
)
"""Op types so cheap compared with a transfer of their result that they may be computed again where it is read."""


@dataclass(frozen=True, eq=False)
class RunningOps:
    """The ops that run, their readers among themselves, and the bytes of each that are read.

    Repeated ops do not run: a reader of a repeated op reads its inputs instead.
    """

    runs: BoolArray  # [N]
    order: IntArray  # [R] in topological order
    producers: Csr  # of every op, each once, by first input port
    readers: Csr  # of every op, each once
    is_join: BoolArray  # [N] joins that read an op that runs
    is_result: BoolArray  # [N] whether a Result reads it
    read_bytes: FloatArray  # [N] of the outputs that anything reads
    edge: IntArray  # [E + C] edges that are read, those through repeated ops at the end
    reader: IntArray  # [E + C] the op that reads it
    atom: IntArray  # [N] a number shared by ops that must stay in one part, as they keep a variable


@fact_of_graph
def running_ops(graph: ComputationGraph) -> RunningOps:
    """Return the running ops of a graph, in O(N + E)."""
    n, types = graph.num_ops, np.asarray(graph.op_types)
    runs = ~floating_ops(graph) & (types != "Parameter")
    of_running = np.zeros(n, dtype=np.bool_)
    of_running[graph.edge_dst[runs[graph.edge_src]]] = True
    runs &= ~((types == "Result") & of_running)
    carried, carried_to = carried_by_repeated(graph)
    edge, reader = np.append(np.arange(len(graph.edge_src)), carried), np.append(graph.edge_dst, carried_to)
    source = graph.edge_src[edge]
    both = np.flatnonzero(runs[source] & runs[reader])
    _, first = np.unique(np.ravel_multi_index((source[both], reader[both]), (n, n)), return_index=True)
    in_order = both[np.sort(first)]
    src, dst = source[in_order], reader[in_order]
    atom = np.arange(n) if variable_of(graph) is None else colocate(graph).sets.labels
    is_alone = np.bincount(atom[runs], minlength=n)[atom] == 1
    producers = Csr.build(n, dst, src)
    is_result = np.zeros(n, dtype=np.bool_)
    is_result[graph.edge_src[types[graph.edge_dst] == "Result"]] = True
    _, once = np.unique(np.stack([graph.edge_src, graph.edge_src_port]), axis=1, return_index=True)
    return RunningOps(
        runs=runs,
        order=graph.topological_order[runs[graph.topological_order]],
        producers=producers,
        readers=Csr.build(n, src, dst),
        is_join=np.isin(types, list(JOIN_TYPES)) & (np.diff(producers.indptr) > 0) & is_alone,
        is_result=is_result,
        read_bytes=np.bincount(graph.edge_src[once], graph.edge_bytes[once], minlength=n).astype(np.float64),
        edge=edge,
        reader=reader,
        atom=atom,
    )


MODEL_INPUT = -1
"""Source of a tensor that the caller gives."""


@dataclass(frozen=True)
class Tensor:
    """A result that a subgraph hands to others: output ``port`` of ``op``, made by subgraph ``source``."""

    source: int
    op: int
    port: int


@dataclass(frozen=True)
class Subgraph:
    """Ops of one device that run as one task, in topological order, with the tensors that it reads and hands out."""

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
        """Return [E, 2] pairs of subgraphs whose first hands something to the second."""
        pairs = sorted({(t.source, s) for s, part in enumerate(self.subgraphs) for t in part.inputs if t.source >= 0})
        return np.asarray(pairs, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def device(self) -> IntArray:
        """Return [S] the device of each subgraph."""
        return np.asarray([part.device for part in self.subgraphs], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Instances:
    """Ops on devices, in topological order, and their readers; ``home`` [N] is where an op was placed."""

    op: IntArray  # [I]
    device: IntArray  # [I]
    edge_src: IntArray  # [J] instance
    edge_dst: IntArray  # [J] instance, ascending
    home: IntArray  # [N]
    atom: IntArray  # [I] a number shared by instances that must stay in one part

    @cached_property
    def read_from(self) -> IntArray:
        """Return [N, D] the instance of an op that readers on a device read: the one there, else at home, else -1."""
        table = np.full((len(self.home), int(self.home.max(initial=0)) + 1), -1, dtype=np.int64)
        at_home = np.flatnonzero(self.device == self.home[self.op])
        table[self.op[at_home]] = at_home[:, None]
        table[self.op, self.device] = np.arange(len(self.op))
        return table


def instances_of(graph: ComputationGraph, device: IntArray) -> Instances:
    """Return which op runs where: every op on its device, and joins where they are read, if that sends fewer bytes.

    ``device`` is [N]. The fewest bytes that bring op v to device d are 0 on its own device, else the smaller of its
    result and, for a join, the sum of what its producers cost there. O((N + E) D).
    """
    running = running_ops(graph)
    again, homes = np.zeros((2, graph.num_ops, int(device.max(initial=0)) + 1), dtype=np.bool_)
    steps = 0.1 * again.size
    device = np.require(device, requirements="W")
    joins = running.order, running.producers.indptr, running.producers.indices, running.is_join, running.read_bytes
    run_kernel(_copy_joins, steps, *joins, device, np.zeros(again.shape), again)
    is_end = running.is_result | (np.diff(graph.successors.indptr) == 0)
    run_kernel(
        _find_homes, steps, running.order, running.readers.indptr, running.readers.indices, is_end, again, device, homes
    )
    rank, on = map(np.ascontiguousarray, np.nonzero(homes[running.order]))
    op = running.order[rank]
    reader, producer = items_of(running.producers, op)
    atom = np.ravel_multi_index((running.atom[op], on), again.shape)
    instances = Instances(op, on, reader, reader, device, atom)
    return replace(instances, edge_src=instances.read_from[producer, on[reader]])


def items_of(table: Csr, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return all items of some rows of a table, each with the position of its row among ``rows``."""
    num = np.diff(table.indptr)[rows]
    at = np.repeat(np.arange(len(rows)), num)
    nth = np.arange(len(at)) - np.repeat(np.cumsum(num) - num, num)
    return at, table.indices[table.indptr[rows[at]] + nth]


def initial_parts(instances: Instances) -> Partition:
    """Return the coarsest convex parts that delay no device.

    A crossing is a result together with another device that reads it. Two instances of one device joined by an edge are
    in one part if the same crossings lie before them and the same after them: both wait for the same, and neither
    delays what another device reads. Along an edge the crossings before never get fewer and those after never more, and
    a crossing changes both; hence no path leaves a part and comes back, and parts form no cycle.
    """
    atoms, src, dst = _atom_graph(instances)
    device = np.zeros(atoms.num_groups, dtype=np.int64)
    device[atoms.labels] = instances.device
    crosses = device[src] != device[dst]
    shape = atoms.num_groups, instances.read_from.shape[1]
    keys = np.ravel_multi_index((src[crosses], device[dst[crosses]]), shape)
    distinct, number = np.unique(keys, return_inverse=True)
    crossing = np.full(len(src), -1, dtype=np.int64)
    crossing[crosses] = number.reshape(-1)
    before = np.zeros((atoms.num_groups, -(-len(distinct) // 64)), dtype=np.uint64)
    after = np.zeros_like(before)
    run_kernel(_find_crossings_around, 0.1 * before.size, src, dst, crossing, np.lexsort((dst, src)), before, after)
    kept = ~crosses & (before[src] == before[dst]).all(axis=1) & (after[src] == after[dst]).all(axis=1)
    return Partition.from_pairs(atoms.num_groups, src[kept], dst[kept]).refine(atoms)


def _atom_graph(instances: Instances) -> tuple[Partition, IntArray, IntArray]:
    """Return atoms in an order in which they can run, and the edges [J] between them, ascending by consumer."""
    count = len(instances.op)
    if len(np.unique(instances.atom)) == count:
        return Partition.identity(count), instances.edge_src, instances.edge_dst
    atoms = Partition.from_labels(instances.atom)
    src, dst = atoms.quotient_edges(instances.edge_src, instances.edge_dst)
    rank = inverse_of(ranked_order(atoms.num_groups, src, dst, np.arange(atoms.num_groups)))
    by_consumer = np.argsort(rank[dst], kind="stable")
    return Partition(rank[atoms.labels], atoms.num_groups), rank[src[by_consumer]], rank[dst[by_consumer]]


def cut_of(graph: ComputationGraph, instances: Instances, parts: Partition) -> Cut:
    """Return the subgraphs of a grouping of instances into convex parts, which are in an order that can run."""
    part = parts.labels.tolist()
    has_instance = running_ops(graph).runs.tolist()
    incoming = incoming_ports(graph)
    for ports, edges in zip(incoming, read_by_repeated(graph), strict=True):
        ports += [(int(graph.edge_src[e]), int(graph.edge_src_port[e])) for e in edges]
    read_from, home = instances.read_from.tolist(), instances.home.tolist()
    members: list[list[int]] = [[] for _ in range(parts.num_groups)]
    read: list[dict[Tensor, None]] = [{} for _ in members]
    handed: list[dict[Tensor, None]] = [{} for _ in members]
    device = [0] * parts.num_groups
    for i, (v, d) in enumerate(zip(instances.op.tolist(), instances.device.tolist(), strict=True)):
        s = part[i]
        device[s] = d
        members[s].append(v)
        for u, port in incoming[v]:
            if graph.op_types[u] == "Parameter":
                read[s][Tensor(MODEL_INPUT, u, port)] = None
            elif has_instance[u]:
                tensor = Tensor(part[read_from[u][d]], u, port)
                if tensor.source != s:
                    read[s][tensor] = None
                    handed[tensor.source][tensor] = None
    results = []
    for v in (v for v, kind in enumerate(graph.op_types) if kind == "Result"):
        u, port = (v, 0) if has_instance[v] else incoming[v][0]
        tensor = Tensor(part[read_from[u][home[u]]], u, port)
        handed[tensor.source][tensor] = None
        results.append((v, tensor))
    columns = zip(device, members, read, handed, strict=True)
    subgraphs = tuple(Subgraph(d, tuple(ops), tuple(ins), tuple(outs)) for d, ops, ins, outs in columns)
    return Cut(graph, subgraphs, tuple(results))


def incoming_ports(graph: ComputationGraph) -> list[list[tuple[int, int]]]:
    """Return [N] for each input of each op, by input port, the producer and its output port."""
    ports: list[list[tuple[int, int, int]]] = [[] for _ in range(graph.num_ops)]
    columns = (graph.edge_src, graph.edge_src_port, graph.edge_dst, graph.edge_dst_port)
    for u, out, v, port in zip(*(column.tolist() for column in columns), strict=True):
        ports[v].append((port, u, out))
    return [[(u, out) for _, u, out in sorted(of_op)] for of_op in ports]


Words = NDArray[np.uint64]


@bare
def _copy_joins(
    order: IntArray,
    indptr: IntArray,
    producers: IntArray,
    is_join: BoolArray,
    read_bytes: FloatArray,
    device: IntArray,
    sent_bytes: FloatArray,
    again: BoolArray,
) -> None:  # pragma: no cover - compiled
    """Mark in ``again`` [N, D] the joins that cost fewer sent bytes if they are computed again on a device.

    ``sent_bytes`` [N, D] is scratch, initially 0.
    """
    for v in order:
        for d in range(again.shape[1]):
            if d == device[v]:
                continue
            sent_bytes[v, d] = read_bytes[v]
            if is_join[v]:
                brought = 0.0
                for k in range(indptr[v], indptr[v + 1]):
                    brought += sent_bytes[producers[k], d]
                again[v, d] = brought < sent_bytes[v, d]
                sent_bytes[v, d] = min(sent_bytes[v, d], brought)


@bare
def _find_homes(
    order: IntArray,
    indptr: IntArray,
    readers: IntArray,
    is_end: BoolArray,
    again: BoolArray,
    device: IntArray,
    homes: BoolArray,
) -> None:  # pragma: no cover - compiled
    """Mark in ``homes`` [N, D] where each op has an instance: copied where it is read, at home for anything else.

    ``is_end`` [N] are ops that run for their own result; other ops that no instance reads have no instance.
    """
    for r in range(len(order) - 1, -1, -1):
        v = order[r]
        at_home = is_end[v]
        for k in range(indptr[v], indptr[v + 1]):
            for d in range(again.shape[1]):
                if homes[readers[k], d]:
                    if again[v, d]:
                        homes[v, d] = True
                    else:
                        at_home = True
        if at_home:
            homes[v, device[v]] = True


@bare
def _find_crossings_around(
    src: IntArray, dst: IntArray, crossing: IntArray, by_source: IntArray, before: Words, after: Words
) -> None:  # pragma: no cover - compiled
    """Write the sets of crossings before and after each instance, as bits of W words, [I, W].

    ``crossing`` [J] is the number of an edge's crossing, -1 where it has none; edges come sorted by consumer, and in
    the order ``by_source`` by producer.
    """
    words = before.shape[1]
    for e in range(len(src)):
        for w in range(words):
            before[dst[e], w] |= before[src[e], w]
        if crossing[e] >= 0:
            before[dst[e], crossing[e] // 64] |= np.uint64(1) << np.uint64(crossing[e] % 64)
    for k in range(len(src) - 1, -1, -1):
        e = by_source[k]
        for w in range(words):
            after[src[e], w] |= after[dst[e], w]
        if crossing[e] >= 0:
            after[src[e], crossing[e] // 64] |= np.uint64(1) << np.uint64(crossing[e] % 64)
