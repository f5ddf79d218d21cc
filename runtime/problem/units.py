"""Units of a scheduling problem: its co-location sets, as the problem that a placement method sees.

Legend: N ops, E edges, U placement units, D devices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.base.errors import FileFormatError
from hsdag.ir.graph.coarsen import CoarseGraph, coarsen
from hsdag.ir.graph.computation_graph import (
    BoolArray,
    ComputationGraph,
    FloatArray,
    IntArray,
    graph_from_edges,
)
from hsdag.ir.graph.partition import Partition
from hsdag.runtime.objectives import LATENCY, Objective
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import Semantics

LARGEST_BYTES = 2.0**53
"""Largest number of bytes in graphs, which count bytes as integers; larger figures are clipped."""


def problem_of(
    problem: ScheduleProblem,
    objective: Objective = LATENCY,
    semantics: Semantics = Semantics(),  # noqa: B008 - frozen
) -> Problem:
    """Return the placement problem of a scheduling problem; ``costs`` are those of the units.

    If co-location sets form cycles, some edges between their units are left out of the unit
    graph, which has none; placements and their simulation are not affected. Raises FileFormatError
    when a set has no device that supports all of it.
    """
    graph = graph_of_problem(problem)
    first = dict[str, int]()
    labels = [first.setdefault(name, v) if name else v for v, name in enumerate(problem.labels.colocate)]
    sets = Partition.from_labels(np.asarray(labels, dtype=np.int64))
    kept = _acyclic_edges(graph, sets)
    units = coarsen(graph, sets, kept)
    supported = np.ones((sets.num_groups, problem.num_devices), dtype=np.bool_)
    np.logical_and.at(supported, units.partition.labels, problem.supported)
    runs_somewhere = np.asarray(supported.any(axis=1), dtype=np.bool_)[units.partition.labels]
    if not runs_somewhere.all():
        name = problem.labels.colocate[int(np.argmin(runs_somewhere))]
        raise FileFormatError(
            f"problem {problem.name!r}: no device supports all ops of the co-location set {name!r}; "
            "give them a time on the same device"
        )
    costs = _unit_costs(problem, units, kept)
    return Problem(units, problem.device_names, supported, objective, costs, semantics, ops=problem)


def graph_of_problem(problem: ScheduleProblem) -> ComputationGraph:
    """Return the ops and edges of a scheduling problem as a graph.

    Shapes are unknown, hence of rank 0. FLOPs are unknown too; the mean of an op's times over the devices that
    support it, in seconds, replaces them.
    """
    graph = graph_from_edges(
        problem.labels.types,
        [(u, v) for u, v in np.stack([problem.edge_src, problem.edge_dst], axis=1).tolist()],
        name=problem.name,
        op_names=problem.op_names,
        shapes=[()] * problem.num_ops,
        output_bytes=_whole(problem.output_bytes).tolist(),
        flops=np.nanmean(problem.time_s, axis=1).tolist(),
    )
    return replace(
        graph,
        weight_bytes=_whole(problem.weight_bytes),
        edge_bytes=_whole(problem.edge_bytes),
        edge_src_port=problem.edge_port.copy(),
        topological_order=problem.topological_order.copy(),
    )


def _acyclic_edges(graph: ComputationGraph, sets: Partition) -> BoolArray:
    """Return [E] False for edges without which the quotient would have no cycle.

    Inside each strongly connected part of the quotient, edges lead from the set whose first op comes earlier.
    """
    src, dst = sets.labels[graph.edge_src], sets.labels[graph.edge_dst]
    part = sets.cycles(graph.edge_src, graph.edge_dst)
    first = np.full(sets.num_groups, graph.num_ops, dtype=np.int64)
    np.minimum.at(first, sets.labels, graph.position)
    return np.asarray((part[src] != part[dst]) | (first[src] < first[dst]), dtype=np.bool_)


def _unit_costs(problem: ScheduleProblem, units: CoarseGraph, kept: BoolArray) -> ScheduleProblem:
    """Return the problem with units as its ops: exact except for ties if every unit is one op, else an estimate."""
    unit, num_units = units.partition.labels, units.graph.num_ops
    members = np.bincount(unit, minlength=num_units)
    time_s = np.zeros((num_units, problem.num_devices))
    np.add.at(time_s, unit, problem.time_s)  # NaN where a member's is
    tensors = (problem.edge_src, problem.edge_dst, problem.edge_port, problem.edge_bytes)
    edges, edge_bytes, edge_port = unit_edges(*tensors, unit, kept)
    named = [problem.index_of[name] for name in units.graph.op_names]
    order = unit[problem.topological_order] if num_units == problem.num_ops else units.graph.topological_order
    return replace(
        problem,
        op_names=units.graph.op_names,
        time_s=time_s + ((members - 1) * problem.op_overhead_s)[:, None],
        output_bytes=np.bincount(unit, problem.output_bytes, num_units).astype(np.float64),
        weight_bytes=np.bincount(unit, problem.weight_bytes, num_units).astype(np.float64),
        edge_src=edges[:, 0].copy(),
        edge_dst=edges[:, 1].copy(),
        edge_bytes=edge_bytes,
        edge_port=edge_port,
        topological_order=order.copy(),
        labels=replace(
            OpLabels.empty(num_units, units.graph.op_types),
            meta_ops=tuple(problem.labels.meta_ops[v] for v in named),
            roles=tuple(problem.labels.roles[v] for v in named),
            expressions=tuple(problem.labels.expressions[v] for v in named),
        ),
    )


def unit_edges(
    edge_src: IntArray,
    edge_dst: IntArray,
    edge_port: IntArray,
    edge_bytes: IntArray | FloatArray,
    unit: IntArray,
    kept: BoolArray,
) -> tuple[IntArray, FloatArray, IntArray]:
    """Return edges between units [E', 2], their bytes and ports: for each sent result, its largest edge to that unit.

    The results of a unit are numbered by op and port.
    """
    chosen = np.flatnonzero(kept & (unit[edge_src] != unit[edge_dst]))
    src, dst = edge_src[chosen], unit[edge_dst[chosen]]
    results, result = np.unique(np.stack([unit[src], src, edge_port[chosen]]), axis=1, return_inverse=True)
    port = np.arange(results.shape[1]) - np.searchsorted(results[0], results[0])
    sent, of_sent = np.unique(np.stack([result.reshape(-1), dst]), axis=1, return_inverse=True)
    size = np.zeros(sent.shape[1])
    np.maximum.at(size, of_sent.reshape(-1), edge_bytes[chosen])
    return np.stack([results[0][sent[0]], sent[1]], axis=1), size, port[sent[0]]


def _whole(values: np.ndarray) -> IntArray:
    return np.asarray(np.minimum(np.round(values), LARGEST_BYTES), dtype=np.int64)
