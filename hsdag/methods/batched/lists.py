"""Batched list scheduling of DiviML (section V-A): best device, bMET, bGreedy and bHEFT.

Each op's inputs are divided over devices when its turn comes. Legend: N ops, D devices, G groups of inputs, K ways to
divide them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray, ranked_order
from hsdag.methods.batched.incumbent import BatchIncumbent
from hsdag.methods.exact.batches import BatchedProblem
from hsdag.runtime.problem.tables import levels_of, tables_of
from hsdag.scoring.memory import MEMORY_TOLERANCE


def search_best_device(incumbent: BatchIncumbent) -> None:
    """All ops and inputs on one device."""
    problem = incumbent.problem
    for d in range(problem.costs.num_devices):
        incumbent.consider(np.full((problem.costs.num_ops, problem.num_groups), d, dtype=np.int64))


def search_whole(incumbent: BatchIncumbent) -> None:
    """No op divided, each on the fastest device that has room: a first answer, clock or not."""
    problem = incumbent.problem
    times = np.nan_to_num(problem.group_time_s[:, :, -1], nan=np.inf)  # [N, D]
    left_bytes = problem.costs.memory_bytes * (1 + MEMORY_TOLERANCE)
    needed = problem.costs.weight_bytes + problem.num_groups * problem.held_bytes
    home = np.empty(len(times), dtype=np.int64)
    for v in problem.costs.topological_order.tolist():
        home[v] = np.where(needed[v] <= left_bytes, times[v], np.inf).argmin()
        left_bytes[home[v]] -= needed[v]
    for device in (np.full(len(times), times.sum(axis=0).argmin()), home):
        incumbent.consider(np.repeat(device[:, None], problem.num_groups, axis=1))


def search_met(incumbent: BatchIncumbent) -> None:
    """Every op in the batches that take the least device time in all."""
    BatchList(incumbent, by_end=False).run(incumbent.breadth_first)


def search_greedy(incumbent: BatchIncumbent) -> None:
    """Ops in breadth-first order, each in the batches whose last one ends first, behind all that devices have."""
    BatchList(incumbent).run(incumbent.breadth_first)


def search_heft(incumbent: BatchIncumbent) -> None:
    """Ops by upward rank, each in the batches whose last one ends first, in idle time too."""
    BatchList(incumbent, insertion=True).run(upward_s(incumbent.problem))


def warm_start(incumbent: BatchIncumbent) -> None:
    """The best of all methods of a moment, data parallelism among them: all ops divided in the same way."""
    problem = incumbent.problem
    for count in problem.divisions:
        row = np.repeat(np.arange(problem.costs.num_devices), count)
        incumbent.consider(np.repeat(row[None, :], problem.costs.num_ops, axis=0))
        incumbent.wake()
    for search in (search_met, search_greedy, search_heft):
        search(incumbent)


def upward_s(problem: BatchedProblem) -> FloatArray:
    """[N] HEFT's ranks: of an op the mean time of its largest batches, of an edge that of all inputs at once."""
    p, table = problem.costs, problem.group_time_s
    largest = np.where(np.isfinite(table), np.arange(table.shape[2]), 0).max(axis=2, keepdims=True)  # [N, D, 1] groups
    time_s = np.where(largest > 0, np.take_along_axis(table, largest, axis=2), np.nan)[:, :, 0]
    time_s[np.isnan(time_s).all(axis=1)] = 0.0
    edge_bytes = p.edge_bytes * problem.batches.num_inputs
    return levels_of(tables_of(replace(p, time_s=time_s, edge_bytes=edge_bytes))).upward_s


class BatchList:
    """One run of list scheduling, which hands its schedule to the incumbent.

    ``by_end`` chooses the division whose last batch ends first, then the one of least device time; otherwise only
    the latter counts. Of a division, each device gets the groups that have the most input bytes there.
    """

    def __init__(self, incumbent: BatchIncumbent, *, by_end: bool = True, insertion: bool = False) -> None:
        problem = incumbent.problem
        self._incumbent, self._problem, self._by_end, self._insertion = incumbent, problem, by_end, insertion
        n, d = problem.costs.time_s.shape
        self._device = np.full((n, problem.num_groups), -1, dtype=np.int64)
        self._start_s, self._end_s = np.full((n, d), np.nan), np.zeros((n, d))
        self._busy: list[list[tuple[float, float]]] = [[] for _ in range(d)]
        self._left_bytes = problem.costs.memory_bytes * (1 + MEMORY_TOLERANCE)

    def run(self, priority: FloatArray) -> None:
        """Ops by priority [N], largest first, among those whose inputs are placed; ends where one has no room."""
        p = self._problem.costs
        order = ranked_order(p.num_ops, p.edge_src, p.edge_dst, -priority)
        if all(self._place(v) for v in order.tolist()):
            self._incumbent.consider(self._device, self._start_s)

    def _place(self, v: int) -> bool:
        problem, counts = self._problem, self._problem.divisions
        times = problem.group_time_s[v, np.arange(counts.shape[1]), counts]  # [K, D]
        needed = (counts > 0) * problem.costs.weight_bytes[v] + counts * problem.held_bytes[v]
        fits = np.flatnonzero(np.isfinite(times).all(axis=1) & (needed <= self._left_bytes).all(axis=1))
        if not len(fits):
            return False
        inputs = np.flatnonzero(problem.costs.edge_dst == v)
        at = np.zeros((problem.num_groups, problem.costs.num_devices))  # bytes of the inputs of each group
        for u, size in zip(problem.costs.edge_src[inputs], problem.group_edge_bytes[inputs], strict=True):
            at[np.arange(len(at)), self._device[u]] += max(size, 1e-300)
        total_s = times.sum(axis=1)
        if self._by_end:
            self._incumbent.wake()
            rows = {k: _shared_out(counts[k], at) for k in fits.tolist()}
            starts = {k: self._starts(row, inputs, times[k]) for k, row in rows.items()}
            best = min(rows, key=lambda k: (max(s + times[k, d] for d, s in starts[k]), total_s[k], k))
        else:
            best = int(fits[np.argmin(total_s[fits])])
        homes = _shared_out(counts[best], at)
        for d, start_s in self._starts(homes, inputs, times[best]):
            self._start_s[v, d], self._end_s[v, d] = start_s, start_s + times[best, d]
            self._busy[d].append((start_s, start_s + times[best, d] + problem.costs.op_overhead_s))
            self._busy[d].sort()
        self._device[v] = homes
        self._left_bytes = self._left_bytes - needed[best]
        return True

    def _starts(self, homes: IntArray, inputs: IntArray, run_s: FloatArray) -> list[tuple[int, float]]:
        """Device and start of each batch of an op, which reads the edges ``inputs``."""
        problem, found = self._problem, []
        for d in sorted(set(homes.tolist())):
            latest_s, here = 0.0, homes == d
            for k in inputs.tolist():
                u = problem.costs.edge_src[k]
                shared = np.bincount(self._device[u, here], minlength=problem.costs.num_devices)
                sent_s = problem.latency_s[:, d] + shared * problem.group_edge_bytes[k] * problem.s_per_byte[:, d]
                latest_s = max(latest_s, float((self._end_s[u] + sent_s)[shared > 0].max()))
            found.append((d, self._room(d, latest_s, float(run_s[d]))))
        return found

    def _room(self, d: int, ready_s: float, run_s: float) -> float:
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
