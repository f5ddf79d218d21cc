"""Merging: subgraphs of a cut joined where that does not lengthen the schedule, for every boundary costs.

Legend: N ops, D devices, I instances, J edges between instances, S parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.graph import ComputationGraph, FloatArray, IntArray
from hsdag.ir.partition import Partition
from hsdag.runtime.openvino_backend.cut import Instances
from hsdag.runtime.openvino_backend.part_kernels import list_schedule, merge_all, quotient, scheduled_makespan

ASSUMED_FLOPS_PER_S, ASSUMED_BYTES_PER_S, ASSUMED_BOUNDARY_BYTES_PER_S, ASSUMED_LAUNCH_S = 1e11, 2e10, 3e9, 1e-4
"""What a device is taken for where nothing was measured: a core of a server, and the layout changes of a boundary."""

MOST_TRIALS, MOST_PARTS = 4000, 600
"""How many merges are tried by simulation, and of how many parts; chains are merged without."""


@dataclass(frozen=True, eq=False)
class CutCosts:
    """What running costs: seconds per op and device, per launch of a subgraph, and per byte in and out of one.

    Raises ValueError for arrays of other shapes, and for seconds that are not finite and at least 0.
    """

    op_s: FloatArray  # [N, D]
    launch_s: FloatArray  # [D]
    read_s_per_byte: FloatArray  # [D]
    write_s_per_byte: FloatArray  # [D]

    def __post_init__(self) -> None:
        num_devices = self.op_s.shape[1] if self.op_s.ndim == 2 else -1
        for name, column in vars(self).items():
            if name != "op_s" and column.shape != (num_devices,):
                raise ValueError(f"{name} must be a number for each of {num_devices} devices")
            if not (np.isfinite(column).all() and (column >= 0).all()):
                raise ValueError(f"{name} must be finite and at least 0")

    @staticmethod
    def assumed(graph: ComputationGraph, num_devices: int) -> CutCosts:
        """Equal devices by the operations and bytes of the graph, where nothing was measured."""
        op_s = graph.flops / ASSUMED_FLOPS_PER_S + graph.output_bytes / ASSUMED_BYTES_PER_S
        per_byte = np.full(num_devices, 1 / ASSUMED_BOUNDARY_BYTES_PER_S)
        return CutCosts(np.tile(op_s[:, None], num_devices), np.full(num_devices, ASSUMED_LAUNCH_S), per_byte, per_byte)


@dataclass(frozen=True, eq=False)
class PartSchedule:
    """The work-conserving schedule of parts, the longest way to the end first, under simulated costs."""

    device: IntArray  # [S]
    duration_s: FloatArray  # [S]
    b_level_s: FloatArray  # [S]
    start_s: FloatArray  # [S]
    makespan_s: float


def part_schedule(graph: ComputationGraph, instances: Instances, parts: Partition, costs: CutCosts) -> PartSchedule:
    """What parts take, and when they run. A tensor is written once by a part, and read once by each that needs it.

    Raises ValueError where parts form a cycle.
    """
    count, num_devices = parts.num_groups, len(costs.launch_s)
    edge_bytes, result_bytes = _sizes(graph, instances)
    device, duration_s, b_level_s = np.zeros(count, dtype=np.int64), np.zeros(count), np.zeros(count)
    follows = np.zeros((count, count), dtype=np.bool_)
    op_s = np.nan_to_num(costs.op_s[instances.op, instances.device])
    edges = (instances.edge_src, instances.edge_dst, edge_bytes, result_bytes)
    per_device = (costs.launch_s, costs.read_s_per_byte, costs.write_s_per_byte)
    quotient(parts.labels, count, instances.device, op_s, *edges, *per_device, device, duration_s, follows)
    if scheduled_makespan(device, duration_s, follows, count, num_devices, b_level_s) < 0:
        raise ValueError("subgraphs wait for each other in a circle")
    start_s = np.zeros(count)
    waits = follows.sum(axis=0)
    makespan_s = list_schedule(device, duration_s, follows, count, num_devices, b_level_s, waits, start_s)
    return PartSchedule(device, duration_s, b_level_s, start_s, float(makespan_s))


def merge_parts(
    graph: ComputationGraph, instances: Instances, parts: Partition, costs: CutCosts, most_trials: int = MOST_TRIALS
) -> Partition:
    """Join parts of one device while the simulated schedule gets no longer; chains first, without simulation.

    Tried are parts that an edge joins, that read the same part, or that the same part reads, shortest first. Parts stay
    convex: two are joined only if no path leads from one to the other over a third. More than MOST_PARTS are left as
    they are.
    """
    parts = _merge_chains(instances, parts)
    if parts.num_groups > MOST_PARTS:
        return parts
    edge_bytes, result_bytes = _sizes(graph, instances)
    label = parts.labels.copy()
    op_s = np.nan_to_num(costs.op_s[instances.op, instances.device])
    per_device = (costs.launch_s, costs.read_s_per_byte, costs.write_s_per_byte)
    edges = (instances.edge_src, instances.edge_dst, edge_bytes)
    merge_all(label, parts.num_groups, instances.device, op_s, *edges, result_bytes, *per_device, most_trials)
    return Partition.from_labels(label)


def _merge_chains(instances: Instances, parts: Partition) -> Partition:
    """Join a part with its only reader where that reads nothing else, on one device; nobody waits longer."""
    src, dst = parts.quotient_edges(instances.edge_src, instances.edge_dst)
    device = np.zeros(parts.num_groups, dtype=np.int64)
    device[parts.labels] = instances.device
    out = np.bincount(src, minlength=parts.num_groups)
    into = np.bincount(dst, minlength=parts.num_groups)
    chained = (out[src] == 1) & (into[dst] == 1) & (device[src] == device[dst])
    return Partition.from_pairs(parts.num_groups, src[chained], dst[chained]).refine(parts)


def _sizes(graph: ComputationGraph, instances: Instances) -> tuple[FloatArray, FloatArray]:
    """[J] bytes of each edge between instances, [I] bytes that each instance hands to Results."""
    size: dict[tuple[int, int], float] = {}
    result_bytes = np.zeros(len(instances.op))
    columns = zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), graph.edge_bytes.tolist(), strict=True)
    for u, v, num_bytes in columns:
        size[u, v] = size.get((u, v), 0.0) + num_bytes
        if graph.op_types[v] == "Result" and (u, int(instances.home[u])) in instances.index:
            result_bytes[instances.index[u, int(instances.home[u])]] = num_bytes
    op = instances.op
    pairs = zip(op[instances.edge_src].tolist(), op[instances.edge_dst].tolist(), strict=True)
    return np.asarray([size[pair] for pair in pairs], dtype=np.float64), result_bytes
