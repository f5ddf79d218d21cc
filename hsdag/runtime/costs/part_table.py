"""PartTable: the parts of placements of one graph for the work-conserving executor, cut once and kept.

Legend: N ops, D devices, I instances, J edges between instances, S parts, E edges between parts.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from hsdag.ir.errors import PlacementError
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray
from hsdag.ir.graph.partition import Partition
from hsdag.runtime.executor.cut import Instances
from hsdag.runtime.executor.merging import plan_cut, tensors_of
from hsdag.runtime.objectives import LATENCY, Objective

MOST_REMEMBERED = 1_000_000
"""Parts and edges of remembered placements; the oldest are forgotten. They take some 50 bytes each."""


@dataclass(frozen=True, eq=False)
class Parts:
    """The parts of one placement, in running order, and what makes up their durations."""

    device: IntArray  # [S]
    rank: FloatArray  # [S] the smallest first
    work_s: FloatArray  # [S] of the ops
    read_bytes: FloatArray  # [S]
    written_bytes: FloatArray  # [S]
    edges: IntArray  # [E, 2] of which the first hands something to the second

    def rows(self, num_devices: int) -> FloatArray:
        """[S, 4 D] work, launches, and bytes read and written, each in the column of the part's device."""
        count = len(self.device)
        columns = np.stack([self.work_s, np.ones(count), self.read_bytes, self.written_bytes], axis=1)
        rows = np.zeros((count, 4, num_devices))
        rows[np.arange(count), :, self.device] = columns
        return rows.reshape(count, 4 * num_devices)


class PartTable:
    """Cuts placements of ``graph`` as the executor does; ``op_s`` [N, D] is NaN where a device lacks an op."""

    def __init__(self, graph: ComputationGraph, op_s: FloatArray) -> None:
        self.graph, self.op_s = graph, op_s
        self._found: OrderedDict[tuple[Objective, bytes, bytes], Parts | None] = OrderedDict()
        self._size = 0

    def parts(self, placement: IntArray, objective: Objective = LATENCY, ranks: IntArray | None = None) -> Parts | None:
        """The parts of a placement [N] with ranks [N], merged for an objective; None where it cannot run."""
        placement = np.ascontiguousarray(placement, dtype=np.int64)
        key = (objective, placement.tobytes(), b"" if ranks is None else ranks.tobytes())
        if key in self._found:
            return self._found[key]
        found = self._cut(placement, objective, ranks)
        self._found[key] = found
        self._size += _size_of(found)
        while self._size > MOST_REMEMBERED and len(self._found) > 1:
            self._size -= _size_of(self._found.popitem(last=False)[1])
        return found

    def _cut(self, placement: IntArray, objective: Objective, ranks: IntArray | None) -> Parts | None:
        if np.isnan(self.op_s[np.arange(len(placement)), placement]).any():
            return None
        try:
            priority = None if ranks is None else ranks.astype(np.float64)
            num_devices, by_load = self.op_s.shape[1], objective.is_steady
            plan = plan_cut(self.graph, placement, num_devices, priority, by_load=by_load)
        except PlacementError:  # too many subgraphs
            return None
        work_s = self.op_s[plan.instances.op, plan.instances.device]
        if np.isnan(work_s).any():  # a join was copied to a device that lacks it
            return None
        return _measured(self.graph, plan.instances, plan.parts, plan.ranks, work_s)


def _measured(
    graph: ComputationGraph, instances: Instances, parts: Partition, rank: FloatArray, work_s: FloatArray
) -> Parts:
    """The parts with what they do. A tensor is written once by a part, and read once by each that needs it."""
    count, label = parts.num_groups, parts.labels
    source, size_bytes, is_result, tensor, reader = tensors_of(graph, instances)
    crosses = np.flatnonzero(label[source[tensor]] != label[reader])
    written = is_result.copy()
    written[tensor[crosses]] = True
    reads = np.unique(tensor[crosses] * np.int64(count) + label[reader[crosses]])
    read, by = reads // count, reads % count
    device = np.zeros(count, dtype=np.int64)
    device[label] = instances.device
    return Parts(
        device=device,
        rank=rank,
        work_s=np.bincount(label, work_s, count).astype(np.float64),
        read_bytes=np.bincount(by, size_bytes[read], count).astype(np.float64),
        written_bytes=np.bincount(label[source[written]], size_bytes[written], count).astype(np.float64),
        edges=np.stack(parts.quotient_edges(instances.edge_src, instances.edge_dst), axis=1),
    )


def _size_of(parts: Parts | None) -> int:
    return 1 if parts is None else len(parts.device) + len(parts.edges)
