"""Merging: parts of a cut joined where that does not lengthen the schedule, because every boundary costs.

Legend: N ops, D devices, I instances, T tensors that instances hand out, K reads of one by an instance, S parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hsdag.ir.errors import PlacementError
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, Csr, FloatArray, IntArray
from hsdag.ir.graph.partition import Partition
from hsdag.ir.kernels import kernel
from hsdag.runtime.executor.cut import (
    Cut,
    Instances,
    RunningOps,
    cut_of,
    initial_parts,
    instances_of,
    items_of,
    running_order,
)

ASSUMED_FLOPS_PER_S, ASSUMED_BYTES_PER_S, ASSUMED_BOUNDARY_BYTES_PER_S, ASSUMED_LAUNCH_S = 1e11, 2e10, 3e9, 1e-4
"""What a device is taken for where nothing was measured: a core of a server, and the layout changes of a boundary."""

MOST_TRIALS, MOST_PARTS = 4000, 600
"""How many merges are tried by simulation, and of how many parts."""


@dataclass(frozen=True, eq=False)
class CutCosts:
    """What running costs: seconds per op and device, per launch of a subgraph, and per byte in and out of one."""

    op_s: FloatArray  # [N, D]
    launch_s: FloatArray  # [D]
    read_s_per_byte: FloatArray  # [D]
    write_s_per_byte: FloatArray  # [D]

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
    count, schedule = parts.num_groups, empty_schedule(parts.num_groups)
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
    *,
    by_load: bool = False,
) -> Partition:
    """Join parts of one device while the simulated schedule, or ``by_load`` the busiest device's load, gets no longer.

    Tried are parts that an edge joins, that read the same part, or that the same part reads, shortest first. Parts stay
    convex: two are joined only if no path leads from one to the other over a third. More than MOST_PARTS are left as
    they are.
    """
    if parts.num_groups > MOST_PARTS:
        return parts
    label = parts.labels.copy()
    merge_all(_with_costs(graph, instances, costs), label, parts.num_groups, MOST_TRIALS, by_load)
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


class InstanceGraph(NamedTuple):
    """What is cut into parts, and what it costs."""

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
    """The work-conserving schedule of parts, the longest way to the end first, under simulated costs."""

    device: IntArray  # [S]
    duration_s: FloatArray  # [S]
    follows: BoolArray  # [S, S] whether the second part reads the first
    b_level_s: FloatArray  # [S]
    start_s: FloatArray  # [S]

    @property
    def makespan_s(self) -> float:
        """When the last part ends."""
        return float((self.start_s + self.duration_s).max(initial=0.0))


@kernel
def empty_schedule(count: int) -> PartSchedule:  # pragma: no cover - compiled
    """A schedule to be written."""
    device, follows = np.zeros(count, dtype=np.int64), np.zeros((count, count), dtype=np.bool_)
    return PartSchedule(device, np.zeros(count), follows, np.zeros(count), np.zeros(count))


@kernel
def quotient(g: InstanceGraph, label: IntArray, count: int, s: PartSchedule) -> None:  # pragma: no cover - compiled
    """Write device and seconds of each part, and which part follows which."""
    device, duration_s, follows = s.device, s.duration_s, s.follows
    follows[:count, :count] = False
    for p in range(count):
        duration_s[p] = -1.0
    for i in range(len(label)):
        p = label[i]
        if duration_s[p] < 0:
            device[p] = g.device[i]
            duration_s[p] = g.launch_s[g.device[i]]
        duration_s[p] += g.op_s[i]
    written = g.is_result.copy()
    read = np.zeros((len(g.tensor_src), count), dtype=np.bool_)
    for k in range(len(g.read_tensor)):
        t = g.read_tensor[k]
        p, q = label[g.tensor_src[t]], label[g.read_by[k]]
        if p != q:
            follows[p, q] = written[t] = True
            if not read[t, q]:
                read[t, q] = True
                duration_s[q] += g.tensor_bytes[t] * g.read_s[device[q]]
    for t in range(len(g.tensor_src)):
        if written[t]:
            duration_s[label[g.tensor_src[t]]] += g.tensor_bytes[t] * g.write_s[g.device[g.tensor_src[t]]]


@kernel
def _has_detour(follows: BoolArray, count: int, a: int, b: int) -> bool:  # pragma: no cover - compiled
    """Whether a path leads from a to b over a third part."""
    seen = np.zeros(count, dtype=np.bool_)
    stack = np.empty(count, dtype=np.int64)
    top = 0
    for p in range(count):
        if follows[a, p] and p != b:
            seen[p] = True
            stack[top] = p
            top += 1
    while top:
        top -= 1
        p = stack[top]
        if follows[p, b]:
            return True
        for q in range(count):
            if follows[p, q] and not seen[q]:
                seen[q] = True
                stack[top] = q
                top += 1
    return False


@kernel
def _candidates(s: PartSchedule, count: int) -> IntArray:  # pragma: no cover - compiled
    """[C, 2] pairs of parts of one device that are neighbours, the shortest first."""
    near = s.follows[:count, :count].copy()
    for p in range(count):
        for together in (np.flatnonzero(s.follows[p, :count]), np.flatnonzero(s.follows[:count, p])):
            for k in range(len(together)):
                for q in together[k + 1 :]:
                    near[together[k], q] = True
    pairs, num = np.empty((count * count, 2), dtype=np.int64), 0
    for a in range(count):
        for b in range(a + 1, count):
            if (near[a, b] or near[b, a]) and s.device[a] == s.device[b]:
                pairs[num] = a, b
                num += 1
    return pairs[np.argsort(s.duration_s[pairs[:num, 0]] + s.duration_s[pairs[:num, 1]], kind="mergesort")]


@kernel
def merge_all(
    g: InstanceGraph, label: IntArray, count: int, most_trials: int, by_load: bool
) -> None:  # pragma: no cover - compiled
    """Join parts in ``label`` while the makespan, or the load of the busiest device, gets no longer."""
    now, tried, trial = empty_schedule(count), empty_schedule(count), label.copy()
    quotient(g, label, count, now)
    best_s, work_s = _judged(now, count, len(g.launch_s), by_load), now.duration_s[:count].sum()
    trials, merged = 0, True
    while merged and trials < most_trials:
        merged = False
        pairs = _candidates(now, count)
        for k in range(len(pairs)):
            a, b = pairs[k, 0], pairs[k, 1]
            if _has_detour(now.follows, count, a, b) or _has_detour(now.follows, count, b, a):
                continue
            if trials >= most_trials:
                break
            trials += 1
            for i in range(len(label)):
                p = label[i]
                trial[i] = a if p == b else (b if p == count - 1 else p)
            quotient(g, trial, count - 1, tried)
            judged_s, total_s = _judged(tried, count - 1, len(g.launch_s), by_load), tried.duration_s[: count - 1].sum()
            if judged_s < best_s - 1e-12 or (judged_s <= best_s + 1e-12 and total_s < work_s):
                label[:] = trial
                count -= 1
                best_s, work_s, merged = judged_s, total_s, True
                quotient(g, label, count, now)
                break


@kernel
def _judged(s: PartSchedule, count: int, num_devices: int, by_load: bool) -> float:  # pragma: no cover - compiled
    """The seconds that merging must not add to."""
    if not by_load:
        return scheduled_makespan(s, count, num_devices)
    load_s = np.zeros(num_devices)
    for p in range(count):
        load_s[s.device[p]] += s.duration_s[p]
    return float(load_s.max())


@kernel
def scheduled_makespan(s: PartSchedule, count: int, num_devices: int) -> float:  # pragma: no cover - compiled
    """The makespan of work-conserving list scheduling by b-level; -1 where there is a cycle.

    Written are the b-levels and the starts.
    """
    if not _b_levels(s.duration_s, s.follows, count, s.b_level_s):
        return -1.0
    alone, end_s = np.zeros((0, 0)), np.zeros(count)
    return list_schedule(s.device, s.duration_s, s.follows, count, num_devices, s.b_level_s, alone, s.start_s, end_s)


@kernel
def _waits(follows: BoolArray, count: int) -> IntArray:  # pragma: no cover - compiled
    """[count] how many parts each one follows."""
    waits = np.zeros(count, dtype=np.int64)
    for p in range(count):
        for q in range(count):
            waits[q] += follows[p, q]
    return waits


@kernel
def _b_levels(
    duration_s: FloatArray, follows: BoolArray, count: int, b_level_s: FloatArray
) -> bool:  # pragma: no cover - compiled
    """Write seconds of the longest way to the end; False where there is a cycle."""
    order = np.empty(count, dtype=np.int64)
    left = _waits(follows, count)
    num = 0
    for p in np.flatnonzero(left == 0):
        order[num] = p
        num += 1
    k = 0
    while k < num:
        for q in range(count):
            if follows[order[k], q]:
                left[q] -= 1
                if left[q] == 0:
                    order[num] = q
                    num += 1
        k += 1
    if num < count:
        return False
    for p in order[::-1]:
        b_level_s[p] = duration_s[p]
        for q in range(count):
            if follows[p, q]:
                b_level_s[p] = max(b_level_s[p], duration_s[p] + b_level_s[q])
    return True


@kernel
def _next_of(
    d: int, device: IntArray, ready: BoolArray, b_level_s: FloatArray, count: int
) -> int:  # pragma: no cover - compiled
    """The ready part of a device with the largest b-level, ties by index; -1 where none is ready."""
    found = -1
    for p in range(count):
        if ready[p] and device[p] == d and (found < 0 or b_level_s[p] > b_level_s[found]):
            found = p
    return found


@kernel
def _stretch(
    runs: IntArray, excess: FloatArray, now_s: float, until_s: FloatArray, slow: FloatArray
) -> None:  # pragma: no cover - compiled
    """Write how slow each device is beside the others that run a part, and until when it runs its own."""
    for d in range(len(runs)):
        if runs[d] >= 0:
            beside = 1.0
            for other in range(len(runs)):
                if runs[other] >= 0:
                    beside += excess[d, other]
            until_s[d] = now_s + (until_s[d] - now_s) * (beside / slow[d])
            slow[d] = beside


@kernel
def list_schedule(
    device: IntArray,
    duration_s: FloatArray,
    follows: BoolArray,
    count: int,
    num_devices: int,
    b_level_s: FloatArray,
    excess: FloatArray,
    start_s: FloatArray,
    end_s: FloatArray,
) -> float:  # pragma: no cover - compiled
    """The makespan where a free device takes the ready part with the largest b-level; starts and ends are written.

    ``excess`` [D, D] is by how much devices slow each other down, beyond 1; [0, 0] where they do not. Parts that run
    side by side are stretched as the simulator's ops are.
    """
    waits = _waits(follows, count)
    ready = waits == 0
    runs = np.full(num_devices, -1, dtype=np.int64)
    until_s, slow = np.full(num_devices, np.inf), np.ones(num_devices)
    now_s = 0.0
    for _ in range(count):
        for d in range(num_devices):
            if runs[d] < 0:
                runs[d] = _next_of(d, device, ready, b_level_s, count)
                if runs[d] >= 0:
                    ready[runs[d]] = False
                    start_s[runs[d]] = now_s
                    until_s[d] = now_s + duration_s[runs[d]]
                    slow[d] = 1.0
        if len(excess) > 0:
            _stretch(runs, excess, now_s, until_s, slow)
        if until_s.min() == np.inf:
            break
        now_s = until_s.min()
        for d in range(num_devices):
            p = runs[d]
            if until_s[d] == now_s:
                end_s[p], until_s[d] = now_s, np.inf
                for q in range(count):
                    if follows[p, q]:
                        waits[q] -= 1
                        ready[q] = waits[q] == 0
                runs[d] = -1
    return now_s


MOST_SUBGRAPHS = 4000
"""A placement with more parts is refused: each is compiled, and costs a launch."""


@dataclass(frozen=True, eq=False)
class CutPlan:
    """A grouping of instances, parts in running order, and the ``ranks`` [S] of the parts, smallest first."""

    graph: ComputationGraph
    instances: Instances
    parts: Partition
    ranks: FloatArray

    @cached_property
    def cut(self) -> Cut:
        """The parts with the tensors that they hand on."""
        return cut_of(self.graph, self.instances, self.parts)


def plan_cut(
    graph: ComputationGraph,
    device: IntArray,
    num_devices: int,
    priority: FloatArray | None = None,
    *,
    by_load: bool = False,
) -> CutPlan:
    """Cut a placed graph; ``device`` [N]. Parts are merged as ``merge_parts`` has it.

    ``priority`` [N] ranks ops, and a subgraph has the smallest rank of its ops; ready subgraphs run smallest first.
    Without it b-levels order them.

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
    position = running_order(instances, parts)
    parts = Partition(position[parts.labels], parts.num_groups)
    if priority is None:
        ranks = -part_schedule(graph, instances, parts, costs).b_level_s
    else:
        ranks = np.full(parts.num_groups, np.inf)
        np.minimum.at(ranks, parts.labels, priority[instances.op])
    return CutPlan(graph, instances, parts, ranks)
