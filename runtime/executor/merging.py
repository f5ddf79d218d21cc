"""Merging parts of a cut where that does not lengthen the schedule, because every boundary costs time.

Legend: N ops, D devices, I instances, T tensors that instances hand out, K reads of a tensor by an instance, S parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hsdag.base.errors import PlacementError
from hsdag.base.kernels import bare, inner, run_kernel
from hsdag.ir.graph.computation_graph import (
    BoolArray,
    ComputationGraph,
    Csr,
    FloatArray,
    IntArray,
    inverse_of,
    ranked_order,
)
from hsdag.ir.graph.partition import Partition
from hsdag.runtime.executor.cut import Cut, Instances, cut_of, initial_parts, instances_of, items_of, running_ops

ASSUMED_FLOPS_PER_S, ASSUMED_BYTES_PER_S, ASSUMED_BOUNDARY_BYTES_PER_S, ASSUMED_LAUNCH_S = 1e11, 2e10, 3e9, 1e-4
"""Speed of a device where nothing was measured: of a server's core, and of the layout changes at a boundary."""

MOST_TRIALS, MOST_PARTS = 4000, 600
"""Number of merges that are tried by simulation, and of parts beyond which none is."""


@dataclass(frozen=True, eq=False)
class CutCosts:
    """Costs of running: seconds per op and device, per launch of a subgraph, and per byte read and written by one."""

    op_s: FloatArray  # [N, D]
    launch_s: FloatArray  # [D]
    read_s_per_byte: FloatArray  # [D]
    write_s_per_byte: FloatArray  # [D]

    @staticmethod
    def assumed(graph: ComputationGraph, num_devices: int) -> CutCosts:
        """Return the costs of equal devices, from operations and bytes of the graph, where nothing was measured."""
        op_s = graph.flops / ASSUMED_FLOPS_PER_S + graph.output_bytes / ASSUMED_BYTES_PER_S
        per_byte = np.full(num_devices, 1 / ASSUMED_BOUNDARY_BYTES_PER_S)
        return CutCosts(np.tile(op_s[:, None], num_devices), np.full(num_devices, ASSUMED_LAUNCH_S), per_byte, per_byte)


def part_schedule(graph: ComputationGraph, instances: Instances, parts: Partition, costs: CutCosts) -> PartSchedule:
    """Return when parts run and how long; they must not form a cycle.

    A part writes a tensor once; each part that needs it reads it once.
    """
    return _merged(graph, instances, parts, costs, 0)[0]


def merge_parts(
    graph: ComputationGraph, instances: Instances, parts: Partition, costs: CutCosts, *, by_load: bool = False
) -> Partition:
    """Join parts of one device while the simulated makespan, or ``by_load`` the busiest device's load, does not grow.

    Candidates are pairs joined by an edge, or that read or hand to the same part, shortest first. Parts stay
    convex: two are joined only if no path leads from one to the other over a third. More than MOST_PARTS are left as
    they are.
    """
    if parts.num_groups > MOST_PARTS:
        return parts
    return Partition.from_labels(_merged(graph, instances, parts, costs, MOST_TRIALS, by_load)[1])


def _merged(
    graph: ComputationGraph,
    instances: Instances,
    parts: Partition,
    costs: CutCosts,
    most_trials: int,
    by_load: bool = False,
) -> tuple[PartSchedule, IntArray]:
    """Return the schedule before parts are joined, and the part [I] of each instance after that."""
    op_s = np.nan_to_num(costs.op_s[instances.op, instances.device])
    per_device = costs.launch_s, costs.read_s_per_byte, costs.write_s_per_byte
    instance_graph = InstanceGraph(instances.device, op_s, *tensors_of(graph, instances), *per_device)
    count, num_devices = parts.num_groups, len(costs.launch_s)
    labels = parts.labels.copy(), parts.labels.copy()
    near = np.zeros((count, count), dtype=np.bool_)
    schedules = PartSchedule.empty(count, num_devices), PartSchedule.empty(count, num_devices)
    steps = (
        0.03 * (len(instance_graph.device) + len(instance_graph.read_by) + near.size) * (count if most_trials else 1)
    )
    run_kernel(_merge_all, steps, instance_graph, *labels, count, near, *schedules, most_trials, by_load)
    return schedules[0], labels[0]


def tensors_of(
    graph: ComputationGraph, instances: Instances
) -> tuple[IntArray, FloatArray, BoolArray, IntArray, IntArray]:
    """Return [T] instance, bytes, and whether a Result reads each tensor; [K] tensor and instance of every read.

    An op that reads a tensor twice counts once; inputs of the model are not tensors of an instance.
    """
    running, count = running_ops(graph), len(instances.op)
    to_result = ~running.runs & (np.asarray(graph.op_types) == "Result")
    read = np.flatnonzero(running.runs[graph.edge_src[running.edge]] & (running.runs | to_result)[running.reader])
    edge, by_op = running.edge[read], running.reader[read]
    at, reader = items_of(Csr.build(graph.num_ops, instances.op, np.arange(count)), by_op)
    row, ends = edge[at], edge[to_result[by_op]]
    rows = np.concatenate([row, ends])
    by = np.concatenate([instances.device[reader], instances.home[graph.edge_src[ends]]])
    ports = count, int(graph.edge_src_port.max(initial=0)) + 1
    keys = np.ravel_multi_index((instances.read_from[graph.edge_src[rows], by], graph.edge_src_port[rows]), ports)
    keys, first, tensor = np.unique(keys, return_index=True, return_inverse=True)
    tensor = tensor.reshape(-1)
    is_result = np.zeros(len(keys), dtype=np.bool_)
    is_result[tensor[len(row) :]] = True
    read_tensor, read_by = np.divmod(np.unique(tensor[: len(row)] * count + reader), count)
    return keys // ports[1], graph.edge_bytes[rows[first]].astype(np.float64), is_result, read_tensor, read_by


class InstanceGraph(NamedTuple):
    """The instances to be cut into parts, and their costs."""

    device: IntArray  # [I]
    op_s: FloatArray  # [I]
    tensor_src: IntArray  # [T] instance
    tensor_bytes: FloatArray  # [T]
    is_result: BoolArray  # [T] whether a Result reads it
    read_tensor: IntArray  # [K]
    read_by: IntArray  # [K] instance
    launch_s: FloatArray  # [D]
    read_s: FloatArray  # [D] per byte
    write_s: FloatArray  # [D] per byte


class PartSchedule(NamedTuple):
    """The work-conserving schedule of parts under simulated costs; the largest b-level runs first."""

    device: IntArray  # [S]
    duration_s: FloatArray  # [S]
    follows: BoolArray  # [S, S] whether the second part reads the first
    num_inputs: IntArray  # [S] number of parts that it reads
    b_level_s: FloatArray  # [S]
    start_s: FloatArray  # [S]
    end_s: FloatArray  # [S]
    excess: FloatArray  # [D, D] by how much devices slow each other down, beyond 1; [0, 0] if not at all
    waiting: IntArray  # [S] scratch, as all below
    order: IntArray  # [S]
    running: IntArray  # [D] the part that a device runs, or -1
    until_s: FloatArray  # [D] when that part ends
    slow: FloatArray  # [D] by how much that part is stretched

    @staticmethod
    def empty(count: int, num_devices: int, excess: FloatArray | None = None) -> PartSchedule:
        """Allocate a schedule to be written."""
        return PartSchedule(
            device=np.zeros(count, np.int64),
            duration_s=np.zeros(count),
            follows=np.zeros((count, count), dtype=np.bool_),
            num_inputs=np.zeros(count, np.int64),
            b_level_s=np.zeros(count),
            start_s=np.zeros(count),
            end_s=np.zeros(count),
            excess=np.zeros((0, 0)) if excess is None else excess,
            waiting=np.zeros(count, np.int64),
            order=np.zeros(count, np.int64),
            running=np.zeros(num_devices, np.int64),
            until_s=np.zeros(num_devices),
            slow=np.zeros(num_devices),
        )


@bare
def _merge_all(
    g: InstanceGraph,
    label: IntArray,
    trial: IntArray,
    count: int,
    near: BoolArray,
    now: PartSchedule,
    tried: PartSchedule,
    most_trials: int,
    by_load: bool,
) -> None:  # pragma: no cover - compiled
    """Join parts in ``label`` while the makespan, or the busiest device's load, does not grow.

    ``trial`` [I], ``near`` [S, S] and the schedules are scratch.
    """
    best_s, work_s = _cost_of(g, label, count, by_load, now)
    trials = 0
    merged = True
    while merged and trials < most_trials:
        merged = False
        _find_near(now, count, near)
        while trials < most_trials and not merged:
            a, b = _shortest(now, count, near)
            if a < 0:
                break
            near[a, b] = False
            if _has_detour(now, count, a, b) or _has_detour(now, count, b, a):
                continue
            trials += 1
            for i in range(len(label)):
                p = label[i]
                trial[i] = a if p == b else (b if p == count - 1 else p)
            cost_s, total_s = _cost_of(g, trial, count - 1, by_load, tried)
            merged = cost_s < best_s - 1e-12 or (cost_s <= best_s + 1e-12 and total_s < work_s)
            if merged:
                for i in range(len(label)):
                    label[i] = trial[i]
                count -= 1
                best_s, work_s = cost_s, total_s
                now, tried = tried, now


@inner
def _find_near(s: PartSchedule, count: int, near: BoolArray) -> None:  # pragma: no cover - compiled
    """Mark pairs [S, S], the smaller first, of neighbours: one reads the other, or both read or feed a third part."""
    for a in range(count):
        for b in range(a + 1, count):
            near[a, b] = s.follows[a, b] or s.follows[b, a]
    for p in range(count):
        for hands_on in (False, True):
            num = 0
            for q in range(count):
                if (s.follows[p, q] and hands_on) or (s.follows[q, p] and not hands_on):
                    for k in range(num):
                        near[s.order[k], q] = True
                    s.order[num] = q
                    num += 1


@inner
def _shortest(s: PartSchedule, count: int, near: BoolArray) -> tuple[int, int]:  # pragma: no cover - compiled
    """Return the two neighbours of one device with the least time together; -1 where there are none."""
    first, second, least_s = -1, -1, np.inf
    for a in range(count):
        for b in range(a + 1, count):
            if near[a, b] and s.device[a] == s.device[b] and s.duration_s[a] + s.duration_s[b] < least_s:
                first, second, least_s = a, b, s.duration_s[a] + s.duration_s[b]
    return first, second


@inner
def _has_detour(s: PartSchedule, count: int, a: int, b: int) -> bool:  # pragma: no cover - compiled
    """Return whether a path leads from a to b over a third part."""
    for p in range(count):
        s.waiting[p] = 0
    s.order[0] = a
    top = 1
    while top > 0:
        top -= 1
        p = s.order[top]
        if p != a and s.follows[p, b]:
            return True
        for q in range(count):
            if s.follows[p, q] and s.waiting[q] == 0 and q != b:
                s.waiting[q] = 1
                s.order[top] = q
                top += 1
    return False


@inner
def _cost_of(
    g: InstanceGraph, label: IntArray, count: int, by_load: bool, s: PartSchedule
) -> tuple[float, float]:  # pragma: no cover - compiled
    """Return the seconds that merging must not add to, and the seconds of all parts together."""
    _find_parts(g, label, count, s)
    total_s = 0.0
    for p in range(count):
        total_s += s.duration_s[p]
    if by_load:  # joining adds to the load of no device
        return total_s, total_s
    _find_b_levels(s, count)
    return merged_makespan(s, count), total_s


@inner
def _find_parts(g: InstanceGraph, label: IntArray, count: int, s: PartSchedule) -> None:  # pragma: no cover - compiled
    """Write the device and seconds of each part, and which part follows which."""
    for p in range(count):
        s.duration_s[p] = -1.0
        s.num_inputs[p] = 0
        s.order[p] = -1  # the last tensor that the part has read
        for q in range(count):
            s.follows[p, q] = False
    for i in range(len(label)):
        p = label[i]
        if s.duration_s[p] < 0:
            s.device[p] = g.device[i]
            s.duration_s[p] = g.launch_s[g.device[i]]
        s.duration_s[p] += g.op_s[i]
    k = 0
    for t in range(len(g.tensor_src)):
        p = label[g.tensor_src[t]]
        is_written = g.is_result[t]
        while k < len(g.read_tensor) and g.read_tensor[k] == t:
            q = label[g.read_by[k]]
            if p != q:
                is_written = True
                if not s.follows[p, q]:
                    s.follows[p, q] = True
                    s.num_inputs[q] += 1
                if s.order[q] != t:
                    s.order[q] = t
                    s.duration_s[q] += g.tensor_bytes[t] * g.read_s[s.device[q]]
            k += 1
        if is_written:
            s.duration_s[p] += g.tensor_bytes[t] * g.write_s[s.device[p]]


@inner
def _find_b_levels(s: PartSchedule, count: int) -> None:  # pragma: no cover - compiled
    """Write the b-level of each part, seconds of the longest path to the end."""
    num, k = 0, 0
    for p in range(count):
        s.waiting[p] = s.num_inputs[p]
        if s.waiting[p] == 0:
            s.order[num] = p
            num += 1
    while k < num:
        for q in range(count):
            if s.follows[s.order[k], q]:
                s.waiting[q] -= 1
                if s.waiting[q] == 0:
                    s.order[num] = q
                    num += 1
        k += 1
    for k in range(num - 1, -1, -1):
        p = s.order[k]
        behind_s = 0.0
        for q in range(count):
            if s.follows[p, q]:
                behind_s = max(behind_s, s.b_level_s[q])
        s.b_level_s[p] = s.duration_s[p] + behind_s


@bare
def merged_makespan(s: PartSchedule, count: int) -> float:  # pragma: no cover - compiled
    """Return the makespan if a free device takes the ready part with the largest b-level; write starts and ends.

    Parts that run side by side are stretched as the simulator's ops are.
    """
    for p in range(count):
        s.waiting[p] = s.num_inputs[p]
    for d in range(len(s.running)):
        s.running[d] = -1
        s.until_s[d] = np.inf
    now_s = 0.0
    while True:
        for d in range(len(s.running)):
            if s.running[d] < 0:
                _begin(s, count, d, now_s)
        next_s = _next_end_s(s, now_s)
        if next_s == np.inf:
            return now_s
        now_s = next_s
        for d in range(len(s.running)):
            if s.until_s[d] == now_s:
                p = s.running[d]
                s.end_s[p] = now_s
                s.until_s[d] = np.inf
                s.running[d] = -1
                for q in range(count):
                    if s.follows[p, q]:
                        s.waiting[q] -= 1


@inner
def _begin(s: PartSchedule, count: int, d: int, now_s: float) -> None:  # pragma: no cover - compiled
    """Begin on device d the ready part of the largest b-level, ties by index."""
    part = -1
    for p in range(count):
        if s.waiting[p] == 0 and s.device[p] == d and (part < 0 or s.b_level_s[p] > s.b_level_s[part]):
            part = p
    if part >= 0:
        s.waiting[part] = -1
        s.running[d] = part
        s.start_s[part] = now_s
        s.until_s[d] = now_s + s.duration_s[part]
        s.slow[d] = 1.0


@inner
def _next_end_s(s: PartSchedule, now_s: float) -> float:  # pragma: no cover - compiled
    """Return when the next part ends; running parts are stretched by the others."""
    next_s = np.inf
    for d in range(len(s.running)):
        if len(s.excess) > 0 and s.running[d] >= 0:
            slow = 1.0
            for other in range(len(s.running)):
                if s.running[other] >= 0:
                    slow += s.excess[d, other]
            s.until_s[d] = now_s + (s.until_s[d] - now_s) * (slow / s.slow[d])
            s.slow[d] = slow
        next_s = min(next_s, s.until_s[d])
    return next_s


MOST_SUBGRAPHS = 4000
"""Most parts that a placement may have: each is compiled, and costs a launch."""


@dataclass(frozen=True, eq=False)
class CutPlan:
    """A grouping of instances, parts in running order, and the ``priority`` [S] of the parts, smallest first."""

    graph: ComputationGraph
    instances: Instances
    parts: Partition
    priority: FloatArray

    @cached_property
    def cut(self) -> Cut:
        """Return the parts with the tensors that they hand on."""
        return cut_of(self.graph, self.instances, self.parts)


def plan_cut(
    graph: ComputationGraph,
    device: IntArray,
    num_devices: int,
    priority: FloatArray | None = None,
    *,
    by_load: bool = False,
) -> CutPlan:
    """Cut a placed graph, with parts merged as by ``merge_parts``.

    Args:
        graph: The graph.
        device: [N] the device of each op.
        num_devices: D.
        priority: [N] the rank of each op; a subgraph has the smallest rank of its ops, and the smallest runs first.
            None orders subgraphs by b-level.
        by_load: Whether parts are merged by the busiest device's load, for throughput, and not by the makespan.

    The cut depends on the placement alone, so that a placement file always means the same: devices count as equal, and
    ops by their operations and bytes. Raises PlacementError for more than MOST_SUBGRAPHS.
    """
    costs = CutCosts.assumed(graph, num_devices)
    instances = instances_of(graph, device)
    parts = merge_parts(graph, instances, initial_parts(instances), costs, by_load=by_load)
    if parts.num_groups > MOST_SUBGRAPHS:
        raise PlacementError(
            f"the placement has {parts.num_groups} parts, more than {MOST_SUBGRAPHS}; "
            "place larger parts together, or use the hetero executor"
        )
    first = np.full(parts.num_groups, len(instances.op))
    np.minimum.at(first, parts.labels, np.arange(len(instances.op)))
    src, dst = parts.quotient_edges(instances.edge_src, instances.edge_dst)
    parts = Partition(inverse_of(ranked_order(parts.num_groups, src, dst, first))[parts.labels], parts.num_groups)
    if priority is None:
        of_parts = -part_schedule(graph, instances, parts, costs).b_level_s
    else:
        of_parts = np.full(parts.num_groups, np.inf)
        np.minimum.at(of_parts, parts.labels, priority[instances.op])
    return CutPlan(graph, instances, parts, of_parts)
