"""Analytic costs: seconds per op from its FLOPs, its bytes, and a platform's data sheet (a roofline).

Legend: N ops or units, E edges, D devices, C op classes.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.colocation import floating_ops
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray
from hsdag.runtime.platforms.platform import OP_CLASSES, Platform, PlatformDevice, op_class
from hsdag.runtime.problem.schedule_problem import CostSource, ScheduleProblem

FREE_TYPES = frozenset("Assign Constant Identity Parameter ReadValue Reshape Result ShapeOf Squeeze Unsqueeze".split())
"""Op types that run no kernel: they name, hold or re-label a tensor."""

READS_WHAT_IT_WRITES = frozenset("Gather GatherElements GatherND Slice StridedSlice".split())
"""Op types that read as many bytes of their inputs as they write, however large the inputs are."""

_FLOAT_BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16}
_PRECISION_OF = {"f64": "f32", "f32": "f32", "f16": "f16", "bf16": "f16", "i8": "i8", "u8": "i8"}
_PRECISION_BITS = {"f32": 32, "f16": 16, "i8": 8}


def analytic_costs(graph: ComputationGraph | CoarseGraph, platform: Platform) -> ScheduleProblem:
    """Return the problem of placing a graph, or the units of a coarse one, with costs by data sheet.

    An op takes max(FLOPs / (efficiency x peak), bytes / (memory efficiency x bandwidth)) plus its device's overhead
    per op, where bytes are those of inputs, weights and outputs (Williams et al. 2009, the roofline model). Ops
    without a kernel, and arithmetic on constants and shapes, take nothing. A unit of a CoarseGraph takes the sum
    of its members; a bare quotient graph is treated as if each of its units were one op.

    The figures are calibrated if the platform has a calibration, and the source then says so. O(N D + E D).
    """
    fine = graph.fine if isinstance(graph, CoarseGraph) else graph
    works = ~(np.isin(fine.op_types, list(FREE_TYPES)) | floating_ops(fine))
    time_s = np.zeros((fine.num_ops, platform.num_devices))
    types, of_op = np.unique(fine.op_types, return_inverse=True)
    classes = np.array([OP_CLASSES.index(op_class(t)) for t in types.tolist()], dtype=np.int64)[of_op]
    for d, device in enumerate(platform.devices):
        busy_s = _op_seconds(fine, device, classes) * platform.op_time[d, classes] + platform.op_overhead_s[d]
        time_s[:, d] = np.where(np.isin(fine.op_types, list(device.unsupported)), np.nan, np.where(works, busy_s, 0.0))
    if isinstance(graph, CoarseGraph):  # NaN where a device does not support a member
        by_op = time_s
        time_s = np.zeros((graph.partition.num_groups, platform.num_devices))
        np.add.at(time_s, graph.partition.labels, by_op)
    return ScheduleProblem.from_graph(
        graph.graph if isinstance(graph, CoarseGraph) else graph,
        time_s,
        platform.device_names,
        memory_bytes=platform.memory_bytes,
        launch_s=platform.launch_s,
        link_latency_s=platform.link_latency_s,
        link_bandwidth_bytes_per_s=platform.link_bandwidth_bytes_per_s,
        source=CostSource.CALIBRATED if platform.calibration else CostSource.ANALYTIC,
    )


def _op_seconds(graph: ComputationGraph, device: PlatformDevice, classes: IntArray) -> FloatArray:
    """Return [N] roofline seconds on one device."""
    efficiency = np.array([device.efficiency[c] for c in OP_CLASSES])[classes]
    peak, width = _peaks_and_widths(graph, device)
    written = graph.output_bytes * width
    incoming = graph.edge_bytes * width[graph.edge_src]
    read = np.bincount(graph.edge_dst, weights=incoming, minlength=graph.num_ops) + graph.weight_bytes
    read = np.where(np.isin(graph.op_types, list(READS_WHAT_IT_WRITES)), np.minimum(read, written), read)
    memory_s = (read + written) / (device.memory_efficiency * device.memory_bandwidth_bytes_per_s)
    return np.asarray(np.maximum(graph.flops / (efficiency * peak), memory_s), dtype=np.float64)


def _peaks_and_widths(graph: ComputationGraph, device: PlatformDevice) -> tuple[FloatArray, FloatArray]:
    """Return [N] the FLOP/s that an op can reach, and the factor on the size of its floating-point results.

    Weights held by the op itself keep their size: a quotient graph does not say in which type they are stored.
    """
    types, of_op = np.unique(graph.element_types, return_inverse=True)
    peak, width = np.empty(len(types)), np.ones(len(types))
    for k, element_type in enumerate(types.tolist()):
        runs_in = _PRECISION_OF.get(element_type, "f32")
        if device.inference_precision is not None and element_type in _FLOAT_BITS:
            runs_in = device.inference_precision
            width[k] = _PRECISION_BITS[runs_in] / _FLOAT_BITS[element_type]
        peak[k] = device.peak(runs_in)
    return peak[of_op], width[of_op]
