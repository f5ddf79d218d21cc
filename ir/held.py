"""What devices hold between inferences: constants as they are stored, and state. Legend: N ops, D devices."""

from __future__ import annotations

import numpy as np

from hsdag.ir.colocation import floating_ops
from hsdag.ir.graph import ComputationGraph, FloatArray, IntArray


def held_bytes(graph: ComputationGraph, device: IntArray, num_devices: int) -> FloatArray:
    """[D] ``weight_bytes`` on each device under a placement [N]; those of an op that floats on all that read it."""
    floating, successors = floating_ops(graph), graph.successors
    readers = [1 << d for d in device.tolist()]  # of each op, the bits of the devices that it is on
    held = np.zeros(num_devices)
    for v in graph.topological_order[::-1].tolist():
        if floating[v]:
            readers[v] = 0
            for u in successors.of(v).tolist():
                readers[v] |= readers[u]
        if graph.weight_bytes[v]:
            held[[d for d in range(num_devices) if readers[v] >> d & 1]] += graph.weight_bytes[v]
    return held
