"""What devices hold between inferences: constants and state. Legend: N ops, D devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.ir.colocation import HALF, floating_ops
from hsdag.ir.graph import BoolArray, ComputationGraph, FloatArray, IntArray


def half_constants(graph: ComputationGraph) -> BoolArray:
    """[N] constants in half precision, which a device that computes in single precision holds in that."""
    types = zip(graph.op_types, graph.element_types, strict=True)
    return np.array([kind == "Constant" and element in HALF for kind, element in types], dtype=np.bool_)


def widened(graph: ComputationGraph) -> ComputationGraph:
    """The graph with ``weight_bytes`` as a device holds them that computes in single precision."""
    return replace(graph, weight_bytes=graph.weight_bytes * np.where(half_constants(graph), 2, 1))


def held_bytes(graph: ComputationGraph, device: IntArray, widens: BoolArray) -> FloatArray:
    """[D] ``weight_bytes`` on each device under a placement [N]; those of an op that floats on all that read it.

    ``widens`` [D] says which devices hold twice the bytes of constants in half precision.
    """
    floating, successors = floating_ops(graph), graph.successors
    factor = np.where(half_constants(graph)[:, None] & widens, 2.0, 1.0)
    readers = [1 << d for d in device.tolist()]  # of each op, the bits of the devices that it is on
    held = np.zeros(len(widens))
    for v in graph.topological_order[::-1].tolist():
        if floating[v]:
            readers[v] = 0
            for u in successors.of(v).tolist():
                readers[v] |= readers[u]
        if graph.weight_bytes[v]:
            on = [d for d in range(len(widens)) if readers[v] >> d & 1]
            held[on] += graph.weight_bytes[v] * factor[v, on]
    return held
