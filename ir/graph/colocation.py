"""Co-location constraints: which ops must share a device, and which may be copied to several.

A placement assigns a device to every co-location set. Ops whose value does not depend on the data (constants,
arithmetic on constants, arithmetic on shapes) *float*: they belong to the set of their first consumer, and
are copied for consumers on other devices when an affinity map is applied. So they never tie two sets
together and never cut a chain of weight decompression from its MatMul, Convolution or Gather.

In models that keep state, all layers read the attention mask, rotary tables, beam numbers and shapes beside the
residual stream, which a few cheap ops compute from the model's inputs. Every device computes these *repeated* ops for
itself, so that only the residual stream has to cross: they float too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hsdag.base.errors import PlacementError
from hsdag.ir.graph.computation_graph import (
    BoolArray,
    ComputationGraph,
    FloatArray,
    IntArray,
    fact_of_graph,
    inverse_of,
    ranked_order,
)
from hsdag.ir.graph.partition import Partition
from hsdag.ir.graph.state import (
    MOVING_TYPES,
    SHAPE_OF_TYPES,
    STATE_TYPES,
    computed_once,
    tied_by_state,
    variable_of,
)

NEVER_FLOATING_TYPES = STATE_TYPES | {"Result", "If", "Loop", "TensorIterator"}
"""Op types that are not copied even if all their inputs are constant: they hold state or have a body."""
CHEAP_TYPES = MOVING_TYPES | frozenset(
    "Add Subtract Multiply Divide Mod FloorMod Negative Abs Minimum Maximum Power Sqrt Cos Sin Exp Range Select MatMul "
    "Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr LogicalNot LogicalXor BitwiseAnd "
    "BitwiseOr BitwiseNot ConvertLike Split VariadicSplit StridedSlice GatherElements GatherND CumSum ReduceProd "
    "ReduceSum ReduceMin ReduceMax Floor Ceiling Clamp Trilu Eye".split()
)
"""Op types that are repeated on every device if all their inputs are known there and none is a table of weights."""
QUANTISING_TYPES = frozenset({"FakeQuantize", "FakeConvert"})
QUANTISED = frozenset("i8 u8 i4 u4 i2 u2 u1 u3 u6 nf4 f4e2m1 f8e4m3 f8e5m2 f8e8m0".split())
HALF = frozenset({"f16", "bf16"})
REAL = HALF | {"f32", "f64"}
WORTH_KEEPING_BYTES = 4096
"""Largest size, in full precision, of a half-precision constant that is folded: keeping it compressed saves nothing."""


@dataclass(frozen=True, eq=False)
class Colocation:
    """The co-location constraints of one graph.

    ``sets`` maps ops to co-location sets; ``floating`` [N] marks the ops that are copied where their
    consumers are on several devices; ``edge_kept`` [E] marks the edges that carry data between sets on different
    devices (an edge that leaves a floating op carries none, as the op is copied). The quotient of ``sets``
    over the kept edges is acyclic.
    """

    sets: Partition
    floating: BoolArray
    edge_kept: BoolArray

    def joined(self, graph: ComputationGraph, together: Sequence[Sequence[int]]) -> Partition:
        """Join the sets that share a member of ``together``, and all sets on a cycle that arises."""
        pairs = [(ops[0], v) for ops in together for v in ops]
        first, others = self.sets.labels[np.array(pairs, dtype=np.int64).reshape(-1, 2)].T
        wider = Partition.from_pairs(self.sets.num_groups, first, others).refine(self.sets)
        cycles = wider.cycles(graph.edge_src[self.edge_kept], graph.edge_dst[self.edge_kept])
        return Partition.from_labels(cycles[wider.labels])


@fact_of_graph
def colocate(graph: ComputationGraph) -> Colocation:
    """Return the co-location constraints of a graph, in near-linear time.

    - Constants, constant-only and shape-computing subgraphs belong to their first consumer's set.
    - A Parameter joins its first consumer, a Result its producer.
    - Sets that would wait for each other (a cycle of the quotient graph) become one.
    - ReadValue and Assign of a variable, the attention that reads it, and the ops between them are one set.
    - A ShapeOf of a tensor whose shape depends on data joins that tensor; every device repeats arithmetic on shapes.

    Bodies of If, Loop and TensorIterator are inside their op and need no constraint.
    """
    floating = floating_ops(graph)
    edge_kept = ~floating[graph.edge_src]
    ops = np.arange(graph.num_ops, dtype=np.int64)
    tied = np.asarray(tied_by_state(graph, floating), dtype=np.int64).reshape(-1, 2)
    carried, carried_to = carried_by_repeated(graph)
    src = np.append(graph.edge_src[edge_kept], graph.edge_src[carried])
    dst = np.append(graph.edge_dst[edge_kept], carried_to)
    rank = graph.position
    if len(tied):
        on_data = np.asarray(graph.op_types)[src] != "Parameter"
        rank = _set_ranks(graph, Partition.from_pairs(graph.num_ops, *tied.T), src[on_data], dst[on_data])
    others = _owners(graph, floating, rank)
    for v, op_type in enumerate(graph.op_types):
        if op_type == "Parameter":
            others[v] = _first_reader(graph, v, others, rank)
        elif op_type == "Result":
            others[v] = graph.predecessors.of(v)[0]
    sets = Partition.from_pairs(graph.num_ops, np.append(ops, tied[:, 0]), np.append(others, tied[:, 1]))
    return Colocation(Partition.from_labels(sets.cycles(src, dst)[sets.labels]), floating, edge_kept)


def check_colocation(graph: ComputationGraph, devices: list[str]) -> None:
    """Raise PlacementError where ops that must share a device do not; floating ops are not checked.

    ``devices`` [N] names the device of each op.
    """
    constraints = colocate(graph)
    first: dict[int, int] = {}
    for v, group in enumerate(constraints.sets.labels.tolist()):
        if not constraints.floating[v]:
            u = first.setdefault(group, v)
            if devices[u] != devices[v]:
                kept = filter(None, (graph.variables[w] for w in constraints.sets.members.of(group).tolist()))
                why = next((f", for they keep variable {name!r} between inferences" for name in kept), "")
                raise PlacementError(
                    f"ops {graph.op_names[u]!r} and {graph.op_names[v]!r} must share a device{why}, "
                    f"but the affinity map puts them on {devices[u]} and {devices[v]}"
                )


@fact_of_graph
def floating_ops(graph: ComputationGraph) -> BoolArray:
    """Return [N] which ops are copied where their consumers differ: those known before any data, and repeated ones."""
    return known_ops(graph) | repeated_ops(graph)


@fact_of_graph
def known_ops(graph: ComputationGraph) -> BoolArray:
    """Return [N] which ops have a consumer and a value that follows from constants and static shapes alone."""
    types = graph.op_types
    indptr, indices = graph.predecessors.indptr.tolist(), graph.predecessors.indices.tolist()
    floating = [False] * graph.num_ops
    once = computed_once(graph).tolist()
    for v in graph.topological_order.tolist():
        if types[v] == "Constant":
            floating[v] = True
        elif types[v] in SHAPE_OF_TYPES:
            floating[v] = not graph.is_dynamic[indices[indptr[v]]]
        elif indptr[v] < indptr[v + 1] and types[v] not in NEVER_FLOATING_TYPES and not once[v]:
            floating[v] = all(floating[u] for u in indices[indptr[v] : indptr[v + 1]])
    return np.asarray(floating, dtype=np.bool_) & (np.diff(graph.successors.indptr) > 0)


@fact_of_graph
def repeated_ops(graph: ComputationGraph) -> BoolArray:
    """Return [N] ops of a model with state that every device computes for itself.

    They are cheap, and read only the model's inputs, shapes, and constants that are no tables (at most one axis is
    longer than 1).
    """
    repeated = np.zeros(graph.num_ops, dtype=np.bool_)
    if variable_of(graph) is None:
        return repeated
    is_known, types = known_ops(graph), graph.op_types
    has_reader = np.diff(graph.successors.indptr) > 0
    is_table = (graph.shapes > 1).sum(axis=1) > 1
    for v in graph.topological_order.tolist():
        read = graph.predecessors.of(v)
        if is_known[v] or not has_reader[v] or not len(read):
            continue
        is_there = is_known[read] | repeated[read] | np.isin([types[u] for u in read.tolist()], ["Parameter"])
        if types[v] in SHAPE_OF_TYPES:
            repeated[v] = is_there[0]
        elif types[v] in CHEAP_TYPES and not (is_known[read] & is_table[read]).any():
            is_shape = np.asarray([types[u] in SHAPE_OF_TYPES for u in read.tolist()])
            repeated[v] = (is_there | is_shape).all()
    return repeated


@fact_of_graph
def read_by_repeated(graph: ComputationGraph) -> list[list[int]]:
    """Return [N] the edges that carry what an op reads through repeated ops, one edge for each tensor.

    They come from running ops or Parameters.
    """
    is_known, repeated, sources = known_ops(graph), repeated_ops(graph), graph.predecessors
    tensor = list(zip(graph.edge_src.tolist(), graph.edge_src_port.tolist(), strict=True))
    edges_of: list[list[int]] = [[]] * graph.num_ops
    for v in graph.topological_order.tolist() if repeated.any() else ():
        edges = {}
        for u, e in zip(sources.of(v).tolist(), sources.edges[sources.indptr[v] :].tolist(), strict=False):
            if repeated[u]:
                edges.update({tensor[i]: i for i in edges_of[u]})
            elif repeated[v] and not is_known[u]:
                edges[tensor[e]] = e
        edges_of[v] = list(edges.values())
    return edges_of


def carried_by_repeated(graph: ComputationGraph) -> tuple[IntArray, IntArray]:
    """Return the edges from running ops or Parameters that running ops read through repeated ops, and their readers."""
    read = read_by_repeated(graph)
    runs = np.flatnonzero(~floating_ops(graph)).tolist()
    table = np.asarray([(e, v) for v in runs for e in read[v]], dtype=np.int64).reshape(-1, 2)
    return table[:, 0].copy(), table[:, 1].copy()


@fact_of_graph
def kept_compressed(graph: ComputationGraph) -> BoolArray:
    """Return [N] which known ops are weights that are quantised or take less memory compressed."""
    is_known = known_ops(graph).tolist()
    kept = np.zeros(graph.num_ops, dtype=np.bool_)
    for v in graph.topological_order.tolist():
        if is_known[v] and graph.op_types[v] != "Constant":
            producers = graph.predecessors.of(v)
            kept[v] = kept[producers].any() or _is_decompression(graph, v, producers)
    return kept


def _is_decompression(graph: ComputationGraph, v: int, producers: IntArray) -> bool:
    """Return whether known op ``v`` widens or quantises its input."""
    if graph.op_types[v] in QUANTISING_TYPES:
        return True
    if graph.op_types[v] != "Convert" or graph.element_types[v] not in REAL:
        return False
    stored = graph.element_types[int(producers[0])]
    is_wider = graph.output_bytes[v] > max(graph.output_bytes[producers[0]], WORTH_KEEPING_BYTES)
    return stored in QUANTISED or (stored in HALF and bool(is_wider))


def _set_ranks(graph: ComputationGraph, sets: Partition, src: IntArray, dst: IntArray) -> IntArray:
    """Return [N] the rank of each op's set in an order in which sets can run; sets on a cycle share a rank."""
    sets = Partition.from_labels(sets.cycles(src, dst)[sets.labels])
    first = np.full(sets.num_groups, graph.num_ops)
    np.minimum.at(first, sets.labels, graph.position)
    return inverse_of(ranked_order(sets.num_groups, *sets.quotient_edges(src, dst), first))[sets.labels]


def _owners(graph: ComputationGraph, floating: BoolArray, rank: IntArray) -> IntArray:
    """Return [N] for a floating op its non-floating consumer of least ``rank`` [N], direct or not; else the op."""
    ranks = rank.tolist()
    indptr, indices = graph.successors.indptr.tolist(), graph.successors.indices.tolist()
    owner = list(range(graph.num_ops))
    for v in graph.topological_order[::-1].tolist():
        if floating[v]:
            owner[v] = min((owner[u] for u in indices[indptr[v] : indptr[v + 1]]), key=ranks.__getitem__)
    return np.asarray(owner, dtype=np.int64)


def _first_reader(graph: ComputationGraph, v: int, owner: IntArray, rank: IntArray) -> int:
    """Return the reader of op ``v`` of the least ``rank`` [N] that depends on data, else any reader, else ``v``."""
    readers = graph.successors.of(v)
    on_data = readers[~known_ops(graph)[readers]]
    candidates = owner[on_data if len(on_data) else readers]
    return int(candidates[np.argmin(rank[candidates])]) if len(candidates) else v


@fact_of_graph
def half_constants(graph: ComputationGraph) -> BoolArray:
    """Return [N] which ops are half-precision constants; a device that computes in single precision widens them."""
    types = zip(graph.op_types, graph.element_types, strict=True)
    return np.array([kind == "Constant" and element in HALF for kind, element in types], dtype=np.bool_)


@fact_of_graph
def widened(graph: ComputationGraph) -> ComputationGraph:
    """Return the graph with ``weight_bytes`` as on a device that computes in single precision."""
    return replace(graph, weight_bytes=graph.weight_bytes * np.where(half_constants(graph), 2, 1))


def resident_weight_bytes(graph: ComputationGraph, device: IntArray, widens: BoolArray) -> FloatArray:
    """Return [D] the bytes of weights on each device under a placement [N].

    Weights of a floating op count on every device that reads it. ``widens`` [D] says which devices hold half-precision
    constants in single precision, in twice the bytes.
    """
    floating = floating_ops(graph)
    factor = np.where(half_constants(graph)[:, None] & widens, 2.0, 1.0)
    readers = [1 << d for d in device.tolist()]  # per op, a bit mask of the devices it is on
    size_bytes = np.zeros(len(widens))
    for v in graph.topological_order[::-1].tolist():
        if floating[v]:
            readers[v] = 0
            for u in graph.successors.of(v).tolist():
                readers[v] |= readers[u]
        if graph.weight_bytes[v]:
            on = [d for d in range(len(widens)) if readers[v] >> d & 1]
            size_bytes[on] += graph.weight_bytes[v] * factor[v, on]
    return size_bytes
