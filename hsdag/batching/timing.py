"""BatchTimer: the schedule that batches have when devices take them in a given order, compiled.

Legend: N ops, E edges, D devices, G groups of inputs, J batches (an op on a device each).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.batching.tables import Tables, has_batch, tables_of
from hsdag.ir.graph import FloatArray, IntArray, topological_order
from hsdag.placers.exact.batches import BatchedProblem, BatchSchedule
from hsdag.runtime.simulator.heaps import bare


class _Room(NamedTuple):
    start_s: FloatArray  # [N, D]
    end_s: FloatArray  # [N, D]
    free_s: FloatArray  # [D]
    used_bytes: FloatArray  # [D]
    shared: IntArray  # [D] groups that a batch reads from each device


class BatchTimer:
    """Times placements [N, G] of one problem; batches start as early as inputs and the order on their device let."""

    def __init__(self, problem: BatchedProblem) -> None:
        p = problem.costs
        self._num_devices, self._tables = p.num_devices, tables_of(problem)
        n, d = p.num_ops, p.num_devices
        self._room = _Room(np.zeros((n, d)), np.zeros((n, d)), np.zeros(d), np.zeros(d), np.zeros(d, dtype=np.int64))
        self.breadth_first = self.by_op(topological_order(n, p.edge_src, p.edge_dst))

    def by_op(self, sequence: IntArray) -> IntArray:
        """[N D] batches op by op, numbered op times D plus device."""
        batches = sequence[:, None] * self._num_devices + np.arange(self._num_devices)
        return np.asarray(batches.ravel(), dtype=np.int64)

    def by_start(self, start_s: FloatArray, device: IntArray, rank: IntArray) -> IntArray:
        """[J] batches by start [N, D], then by the topological ``rank`` [N] of their op."""
        op, d = np.nonzero(has_batch(device, self._num_devices))
        order = np.lexsort((rank[op], start_s[op, d]))
        return np.asarray(op[order] * self._num_devices + d[order], dtype=np.int64)

    def makespan_s(self, device: IntArray, order: IntArray | None = None) -> float:
        """Seconds of a placement [N, G] whose batches come in an order (by default breadth-first), topological.

        Infinite where a size is not allowed or memory not enough.
        """
        order = self.breadth_first if order is None else order
        return float(_run(self._tables, self._room, np.ascontiguousarray(device, dtype=np.int64), order))

    def schedule(self, device: IntArray, order: IntArray | None = None) -> BatchSchedule | None:
        """The schedule with that makespan; None where it is infinite."""
        if not np.isfinite(self.makespan_s(device, order)):
            return None
        start_s = self._room.start_s.copy()
        there = has_batch(device, self._num_devices)
        return BatchSchedule(np.array(device, dtype=np.int64), np.where(there, start_s, np.nan))


@bare
def _run(t: Tables, room: _Room, device: IntArray, order: IntArray) -> float:
    num_devices, num_groups = len(room.free_s), device.shape[1]
    room.free_s[:] = 0.0
    room.used_bytes[:] = 0.0
    last_s = 0.0
    for j in range(len(order)):
        v, d = order[j] // num_devices, order[j] % num_devices
        size = 0
        for g in range(num_groups):
            size += device[v, g] == d
        if size == 0:
            continue
        run_s = t.time_s[v, d, size]
        room.used_bytes[d] += t.weight_bytes[v] + size * t.held_bytes[v]
        if run_s == np.inf or room.used_bytes[d] > t.limit_bytes[d]:
            return np.inf
        start_s = max(room.free_s[d], _arrival_s(t, room, v, d, device))
        room.start_s[v, d] = start_s
        room.end_s[v, d] = start_s + run_s
        room.free_s[d] = room.end_s[v, d] + t.overhead_s
        last_s = max(last_s, room.end_s[v, d])
    return last_s


@bare
def _arrival_s(t: Tables, room: _Room, v: int, d: int, device: IntArray) -> float:
    """When all inputs of v's batch on d are there."""
    arrival_s = 0.0
    for k in range(t.in_first[v], t.in_first[v + 1]):
        u = t.in_op[k]
        room.shared[:] = 0
        for g in range(device.shape[1]):
            if device[v, g] == d:
                room.shared[device[u, g]] += 1
        for a in range(len(room.shared)):
            if room.shared[a] > 0:
                sent_s = t.latency_s[a, d] + room.shared[a] * t.in_bytes[k] * t.s_per_byte[a, d]
                arrival_s = max(arrival_s, room.end_s[u, a] + sent_s)
    return arrival_s
