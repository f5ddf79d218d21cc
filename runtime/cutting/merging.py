"""Merging: parts of a cut joined where that does not lengthen the schedule, because every boundary costs.

Legend: N ops, D devices, I instances, T tensors that instances hand out, K reads of one by an instance, S parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.graph import BoolArray, ComputationGraph, Csr, FloatArray, IntArray
from hsdag.ir.partition import Partition
from hsdag.runtime.cutting.cut import Instances, items_of
from hsdag.runtime.cutting.part_kernels import (
    InstanceGraph,
    PartSchedule,
    merge_all,
    quotient,
    room_for,
    scheduled_makespan,
)
from hsdag.runtime.cutting.running_ops import RunningOps
from hsdag.runtime.problems.objectives import Objective
from hsdag.runtime.problems.objectives.latency import LATENCY

ASSUMED_FLOPS_PER_S, ASSUMED_BYTES_PER_S, ASSUMED_BOUNDARY_BYTES_PER_S, ASSUMED_LAUNCH_S = 1e11, 2e10, 3e9, 1e-4
"""What a device is taken for where nothing was measured: a core of a server, and the layout changes of a boundary."""

MOST_TRIALS, MOST_PARTS = 4000, 600
"""How many merges are tried by simulation, and of how many parts."""


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


def part_schedule(graph: ComputationGraph, instances: Instances, parts: Partition, costs: CutCosts) -> PartSchedule:
    """What parts take, and when they run. A tensor is written once by a part, and read once by each that needs it.

    Raises ValueError where parts form a cycle.
    """
    count, schedule = parts.num_groups, room_for(parts.num_groups)
    quotient(_with_costs(graph, instances, costs), parts.labels, count, schedule)
    if scheduled_makespan(schedule, count, len(costs.launch_s)) < 0:
        raise ValueError("parts wait for each other in a cycle")
    return schedule


def _with_costs(graph: ComputationGraph, instances: Instances, costs: CutCosts) -> InstanceGraph:
    op_s = np.nan_to_num(costs.op_s[instances.op, instances.device])
    per_device = (costs.launch_s, costs.read_s_per_byte, costs.write_s_per_byte)
    return InstanceGraph(instances.device, op_s, *tensors_of(graph, instances), *per_device)


def merge_parts(
    graph: ComputationGraph,
    instances: Instances,
    parts: Partition,
    costs: CutCosts,
    objective: Objective = LATENCY,
) -> Partition:
    """Join parts of one device while the simulated schedule gets no longer; for throughput, the busiest device's load.

    Tried are parts that an edge joins, that read the same part, or that the same part reads, shortest first. Parts stay
    convex: two are joined only if no path leads from one to the other over a third. More than MOST_PARTS are left as
    they are.
    """
    if parts.num_groups > MOST_PARTS:
        return parts
    label = parts.labels.copy()
    merge_all(_with_costs(graph, instances, costs), label, parts.num_groups, MOST_TRIALS, objective.is_steady)
    return Partition.from_labels(label)


def tensors_of(
    graph: ComputationGraph, instances: Instances
) -> tuple[IntArray, FloatArray, BoolArray, IntArray, IntArray]:
    """[T] instance, bytes, and whether a Result reads it; [K] tensor and instance of every read.

    What an op reads twice, it reads once; inputs of the model are not tensors of an instance.
    """
    runs, count = RunningOps.of(graph).runs, len(instances.op)
    of_op = Csr.build(graph.num_ops, instances.op, np.arange(count))
    to_result = ~runs & (np.asarray(graph.op_types) == "Result")
    edge = np.flatnonzero(runs[graph.edge_src] & (runs | to_result)[graph.edge_dst])
    at, reader = items_of(of_op, graph.edge_dst[edge])
    row, ends = edge[at], edge[to_result[graph.edge_dst[edge]]]
    rows = np.concatenate([row, ends])
    by = np.concatenate([instances.device[reader], instances.home[graph.edge_src[ends]]])
    source = instances.read_from(graph.edge_src[rows], by)
    num_ports = int(graph.edge_src_port.max(initial=0)) + 1
    keys, first, tensor = np.unique(
        source * num_ports + graph.edge_src_port[rows], return_index=True, return_inverse=True
    )
    tensor = tensor.reshape(-1)
    is_result = np.zeros(len(keys), dtype=np.bool_)
    is_result[tensor[len(row) :]] = True
    reads = np.unique(tensor[: len(row)] * max(count, 1) + reader)
    sizes = graph.edge_bytes[rows[first]].astype(np.float64)
    return keys // num_ports, sizes, is_result, reads // max(count, 1), reads % max(count, 1)
