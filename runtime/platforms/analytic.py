"""Analytic costs: seconds per op from its FLOPs, its bytes, and a platform's data sheet (a roofline).

Legend: N ops or units, E edges, D devices, C op classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.coarsen import CoarseGraph
from hsdag.ir.colocation import floating_ops
from hsdag.ir.errors import OptionError
from hsdag.ir.graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.runtime.platforms.platform import OP_CLASSES, PRECISIONS, Platform, PlatformDevice, op_class
from hsdag.runtime.problems.cost_model import CostModel, CostSource

FREE_TYPES = frozenset("Assign Constant Identity Parameter ReadValue Reshape Result ShapeOf Squeeze Unsqueeze".split())
"""Op types that run no kernel: they name, hold or re-label a tensor."""

READS_WHAT_IT_WRITES = frozenset("Gather GatherElements GatherND Slice StridedSlice".split())
"""Op types that read as many bytes of their inputs as they write, however large the inputs are."""

_FLOAT_BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16}
_PRECISION_OF = {"f64": "f32", "f32": "f32", "f16": "f16", "bf16": "f16", "i8": "i8", "u8": "i8"}
_PRECISION_BITS = {"f32": 32, "f16": 16, "i8": 8}


@dataclass(frozen=True, eq=False)
class Roofline:
    """Work of each op on each device, before overheads.

    ``busy_s`` is split by op class, since a unit of a coarse graph has members of several; it is 0 where a
    device does not support an op.
    """

    busy_s: FloatArray  # [N, D, C]
    num_kernels: FloatArray  # [N] ops that do work
    supported: BoolArray  # [N, D]

    def time_s(self, op_time: FloatArray, op_overhead_s: FloatArray) -> FloatArray:
        """[N, D] seconds under factors [D, C] and an overhead per kernel [D]; NaN where unsupported."""
        total_s = np.einsum("ndc,dc->nd", self.busy_s, op_time) + np.outer(self.num_kernels, op_overhead_s)
        return np.where(self.supported, total_s, np.nan)


def analytic_costs(
    graph: ComputationGraph | CoarseGraph, platform: Platform, element_type: str | None = None
) -> CostModel:
    """What every op of a graph, or unit of a coarse one, should take by data sheet.

    An op takes max(FLOPs / (efficiency x peak), bytes / (memory efficiency x bandwidth)) plus its device's overhead
    per op, where bytes are those of inputs, weights and outputs (Williams et al. 2009, the roofline model). Ops
    without a kernel, and arithmetic on constants and shapes, take nothing. A unit of a CoarseGraph takes what its
    members take together; a bare quotient graph is taken as if each of its units were one op.

    ``element_type`` (f32, f16, i8) is the precision floating ops run in, in place of the devices' own. The
    figures are calibrated where the platform has a calibration, and the source then says so. O(N D + E D).
    Raises OptionError for another element type.
    """
    work = roofline(graph, platform, element_type)
    return CostModel(
        time_s=work.time_s(platform.op_time, platform.op_overhead_s),
        launch_s=platform.launch_s,
        link_latency_s=platform.link_latency_s,
        link_bandwidth_bytes_per_s=platform.link_bandwidth_bytes_per_s,
        source=CostSource.CALIBRATED if platform.calibration else CostSource.ANALYTIC,
    )


def roofline(graph: ComputationGraph | CoarseGraph, platform: Platform, element_type: str | None = None) -> Roofline:
    """Roofline seconds by op class, without the platform's calibration. Raises OptionError as analytic_costs does."""
    if element_type not in (None, *PRECISIONS):
        raise OptionError(f"element type must be one of {', '.join(PRECISIONS)}, not {element_type!r}")
    fine = graph.fine if isinstance(graph, CoarseGraph) else graph
    works = _works(fine)
    classes = classes_of(fine)
    ops = np.arange(fine.num_ops)
    busy_s = np.zeros((fine.num_ops, platform.num_devices, len(OP_CLASSES)))
    supported = np.ones((fine.num_ops, platform.num_devices), dtype=np.bool_)
    for d, device in enumerate(platform.devices):
        supported[:, d] = ~_of_types(fine, device.unsupported)
        seconds = _op_seconds(fine, device, classes, element_type or device.inference_precision)
        busy_s[ops, d, classes] = np.where(works & supported[:, d], seconds, 0.0)
    work = Roofline(busy_s, works.astype(np.float64), supported)
    return _summed(work, graph) if isinstance(graph, CoarseGraph) else work


def classes_of(graph: ComputationGraph) -> IntArray:
    """[N] index of each op's class in OP_CLASSES."""
    known = {t: OP_CLASSES.index(op_class(t)) for t in set(graph.op_types)}
    return np.fromiter((known[t] for t in graph.op_types), dtype=np.int64, count=graph.num_ops)


def _works(graph: ComputationGraph) -> BoolArray:
    """[N] ops that run a kernel at inference: neither free nor known before the data are."""
    return ~(_of_types(graph, FREE_TYPES) | floating_ops(graph))


def _of_types(graph: ComputationGraph, types: frozenset[str]) -> BoolArray:
    return np.fromiter((t in types for t in graph.op_types), dtype=np.bool_, count=graph.num_ops)


def _op_seconds(
    graph: ComputationGraph, device: PlatformDevice, classes: IntArray, precision: str | None
) -> FloatArray:
    """[N] roofline seconds on one device."""
    efficiency = np.array([device.efficiency[c] for c in OP_CLASSES])[classes]
    peak, width = _peaks_and_widths(graph, device, precision)
    written = graph.output_bytes * width
    incoming = graph.edge_bytes * width[graph.edge_src]
    read = np.bincount(graph.edge_dst, weights=incoming, minlength=graph.num_ops) + graph.weight_bytes
    read = np.where(_of_types(graph, READS_WHAT_IT_WRITES), np.minimum(read, written), read)
    arithmetic_s = graph.flops / (efficiency * peak)
    memory_s = (read + written) / (device.memory_efficiency * device.memory_bandwidth_bytes_per_s)
    return np.asarray(np.maximum(arithmetic_s, memory_s), dtype=np.float64)


def _peaks_and_widths(
    graph: ComputationGraph, device: PlatformDevice, precision: str | None
) -> tuple[FloatArray, FloatArray]:
    """[N] FLOP/s that an op can reach, and how wide its floating results become over what the model declares.

    Weights held by the op itself keep their size: a quotient graph does not say in which type they are stored.
    """
    peak, width = {}, {}
    for own in set(graph.element_types):
        runs_in = precision if precision is not None and own in _FLOAT_BITS else _PRECISION_OF.get(own, "f32")
        peak[own] = device.peak(runs_in)
        converted = precision is not None and own in _FLOAT_BITS
        width[own] = _PRECISION_BITS[runs_in] / _FLOAT_BITS[own] if converted else 1.0
    n = graph.num_ops
    return (
        np.fromiter((peak[t] for t in graph.element_types), dtype=np.float64, count=n),
        np.fromiter((width[t] for t in graph.element_types), dtype=np.float64, count=n),
    )


def _summed(work: Roofline, coarse: CoarseGraph) -> Roofline:
    """The work of units: sums over members; a device supports a unit when it supports all of it."""
    labels, units = coarse.partition.labels, coarse.partition.num_groups
    columns = work.busy_s.reshape(len(labels), -1)
    sums = [np.bincount(labels, weights=column, minlength=units).astype(np.float64) for column in columns.T]
    missing = [np.bincount(labels, weights=~column, minlength=units) for column in work.supported.T]
    return Roofline(
        busy_s=np.stack(sums, axis=1).reshape(units, *work.busy_s.shape[1:]),
        num_kernels=np.bincount(labels, weights=work.num_kernels, minlength=units).astype(np.float64),
        supported=np.stack(missing, axis=1) == 0,
    )
