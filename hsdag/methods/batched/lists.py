"""Batched list scheduling of DiviML (section V-A): bMET, bGreedy and bHEFT.

Each op's inputs are divided over devices when its turn comes. Legend: N ops, D devices, G groups of inputs, K ways to
divide them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray, ranked_order
from hsdag.methods.batched.problem import BatchedProblem, BatchSchedule
from hsdag.runtime.problem.tables import levels_of, tables_of
from hsdag.scoring.memory import MEMORY_TOLERANCE


def upward_s(problem: BatchedProblem) -> FloatArray:
    """[N] HEFT's ranks: of an op the mean time of its largest batches, of an edge that of all inputs at once."""
    p, table = problem.costs, problem.group_time_s
    largest = np.where(np.isfinite(table), np.arange(table.shape[2]), 0).max(axis=2, keepdims=True)  # [N, D, 1] groups
    time_s = np.where(largest > 0, np.take_along_axis(table, largest, axis=2), np.nan)[:, :, 0]
    time_s[np.isnan(time_s).all(axis=1)] = 0.0
    edge_bytes = p.edge_bytes * problem.batches.num_inputs
    return levels_of(tables_of(replace(p, time_s=time_s, edge_bytes=edge_bytes))).upward_s


class BatchList:
    """One run of list scheduling.

    ``by_end`` chooses the division whose last batch ends first, then the one of least device time; otherwise only
    the latter counts. Of a division, each device gets the groups that have the most input bytes there. ``insertion``
    lets batches begin in idle time. ``wake`` is called for every op, and may raise.
    """

    def __init__(
        self, problem: BatchedProblem, wake: Callable[[], None], *, by_end: bool = True, insertion: bool = False
    ) -> None:
        self._problem, self._wake, self._by_end, self._insertion = problem, wake, by_end, insertion
        n, d = problem.costs.time_s.shape
        self._device = np.full((n, problem.num_groups), -1, dtype=np.int64)
        self._start_s, self._end_s = np.full((n, d), np.nan), np.zeros((n, d))
        self._busy: list[list[tuple[float, float]]] = [[] for _ in range(d)]
        self._left_bytes = problem.costs.memory_bytes * (1 + MEMORY_TOLERANCE)

    def schedule(self, priority: FloatArray) -> BatchSchedule | None:
        """Ops by priority [N], largest first, among those whose inputs are placed; None where one has no room."""
        p = self._problem.costs
        order = ranked_order(p.num_ops, p.edge_src, p.edge_dst, -priority)
        is_complete = all(self._place(v) for v in order.tolist())
        return BatchSchedule(self._device, self._start_s) if is_complete else None

    def _place(self, v: int) -> bool:
        problem, counts = self._problem, self._problem.divisions
        times = problem.group_time_s[v, np.arange(counts.shape[1]), counts]  # [K, D]
        needed = (counts > 0) * problem.costs.weight_bytes[v] + counts * problem.held_bytes[v]
        fits = np.flatnonzero(np.isfinite(times).all(axis=1) & (needed <= self._left_bytes).all(axis=1))
        if not len(fits):
            return False
        at = np.zeros((problem.num_groups, problem.costs.num_devices))  # bytes of the inputs of each group
        edges = problem.inputs.edges[problem.inputs.indptr[v] : problem.inputs.indptr[v + 1]]
        for u, size in zip(problem.costs.edge_src[edges], problem.group_edge_bytes[edges], strict=True):
            at[np.arange(len(at)), self._device[u]] += max(size, 1e-300)
        total_s = times.sum(axis=1)
        if self._by_end:
            self._wake()
            starts = {k: self._starts(v, _shared_out(counts[k], at), times[k]) for k in fits.tolist()}
            best = min(starts, key=lambda k: (max(s + times[k, d] for d, s in starts[k]), total_s[k], k))
        else:
            best = int(fits[np.argmin(total_s[fits])])
        homes = _shared_out(counts[best], at)
        for d, start_s in self._starts(v, homes, times[best]):
            self._start_s[v, d], self._end_s[v, d] = start_s, start_s + times[best, d]
            self._busy[d].append((start_s, start_s + times[best, d] + problem.costs.op_overhead_s))
            self._busy[d].sort()
        self._device[v] = homes
        self._left_bytes = self._left_bytes - needed[best]
        return True

    def _starts(self, v: int, homes: IntArray, run_s: FloatArray) -> list[tuple[int, float]]:
        """Device and start of each batch of an op."""
        ready_s = {d: self._problem.ready_s(self._device, self._end_s, v, homes == d, d) for d in set(homes.tolist())}
        return [(d, self._first_s(d, at_s, float(run_s[d]))) for d, at_s in sorted(ready_s.items())]

    def _first_s(self, d: int, ready_s: float, run_s: float) -> float:
        """The first start on a device, behind all it has or in idle time."""
        busy, taken_s, start_s = self._busy[d], run_s + self._problem.costs.op_overhead_s, ready_s
        if not self._insertion:
            return max(ready_s, busy[-1][1] if busy else 0.0)
        for begin, end in busy:
            if end > start_s:
                if start_s + taken_s <= begin:
                    break
                start_s = end
        return start_s


def _shared_out(count: IntArray, bytes_at: FloatArray) -> IntArray:
    """[G] devices, ``count`` [D] groups on each, those with the most bytes there first."""
    left, homes = count.copy(), np.full(len(bytes_at), -1, dtype=np.int64)
    for place in np.argsort(-bytes_at, axis=None, kind="stable").tolist():
        g, d = divmod(place, bytes_at.shape[1])
        if homes[g] < 0 and left[d] > 0:
            homes[g] = d
            left[d] -= 1
    return homes
