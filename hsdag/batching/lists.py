"""Batched list scheduling: best device, bMET, bGreedy and bHEFT of DiviML (section V-A).

Each op's inputs are divided over devices when its turn comes. Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hsdag.batching.incumbent import BatchIncumbent
from hsdag.evaluators.memory import MEMORY_TOLERANCE
from hsdag.ir.graph import Csr, FloatArray, IntArray, ranked_order
from hsdag.ir.paths import longest_before
from hsdag.placers.exact.batches import BatchedProblem
from hsdag.placers.lists.greedy import breadth_first


def search_best_device(incumbent: BatchIncumbent) -> None:
    """All ops and inputs on one device."""
    problem = incumbent.problem
    for d in range(problem.costs.num_devices):
        incumbent.consider(np.full((problem.costs.num_ops, problem.num_groups), d, dtype=np.int64))
        incumbent.wake()


def search_whole(incumbent: BatchIncumbent) -> None:
    """No op divided, all on the fastest device or each on the fastest with room: a first answer, clock or not."""
    problem = incumbent.problem
    times = np.nan_to_num(problem.group_time_s[:, :, -1], nan=np.inf)  # [N, D]
    fastest = int(times.sum(axis=0).argmin())
    incumbent.consider(np.full((len(times), problem.num_groups), fastest, dtype=np.int64))
    if incumbent.best is not None:
        return
    left_bytes = problem.costs.memory_bytes * (1 + MEMORY_TOLERANCE)
    needed = problem.costs.weight_bytes + problem.num_groups * problem.held_bytes
    home = np.empty(len(times), dtype=np.int64)
    for v in problem.costs.topological_order.tolist():
        home[v] = np.where(needed[v] <= left_bytes, times[v], np.inf).argmin()
        left_bytes[home[v]] -= needed[v]
    incumbent.consider(np.repeat(home[:, None], problem.num_groups, axis=1))


def search_met(incumbent: BatchIncumbent) -> None:
    """Every op in the batches that take the least device time in all."""
    _take(incumbent, BatchList(incumbent.problem, incumbent.wake, by_end=False), breadth_first(incumbent.problem.costs))


def search_greedy(incumbent: BatchIncumbent) -> None:
    """Ops in breadth-first order, each in the batches whose last one ends first, behind all that devices have."""
    _take(incumbent, BatchList(incumbent.problem, incumbent.wake), breadth_first(incumbent.problem.costs))


def search_heft(incumbent: BatchIncumbent) -> None:
    """Ops by upward rank, each in the batches whose last one ends first, in idle time too."""
    _take(incumbent, BatchList(incumbent.problem, incumbent.wake, insertion=True), upward_s(incumbent.problem))


def search_one_division(incumbent: BatchIncumbent) -> None:
    """All ops divided in the same way, so that nothing is sent: data parallelism."""
    problem = incumbent.problem
    for count in problem.divisions:
        row = np.repeat(np.arange(problem.costs.num_devices), count)
        incumbent.consider(np.repeat(row[None, :], problem.costs.num_ops, axis=0))
        incumbent.wake()


def warm_start(incumbent: BatchIncumbent) -> None:
    """The best of all methods of a moment."""
    methods: tuple[Callable[[BatchIncumbent], None], ...] = (
        search_one_division,
        search_met,
        search_greedy,
        search_heft,
    )
    for method in methods:
        method(incumbent)


def _take(incumbent: BatchIncumbent, schedule: BatchList, priority: FloatArray) -> None:
    if schedule.run(priority):
        incumbent.consider(schedule.device, schedule.start_s)


def upward_s(problem: BatchedProblem) -> FloatArray:
    """[N] HEFT's ranks: of an op the mean time of its largest batches, of an edge that of all inputs at once."""
    p = problem.costs
    off = ~np.eye(p.num_devices, dtype=np.bool_)
    latency_s, s_per_byte = (float(t[off].mean()) if p.num_devices > 1 else 0.0
                             for t in (problem.latency_s, problem.s_per_byte))  # fmt: skip
    table = problem.group_time_s
    largest = np.where(np.isfinite(table), np.arange(table.shape[2]), 0).max(axis=2)  # [N, D] groups
    times = np.take_along_axis(table, largest[:, :, None], axis=2)[:, :, 0]
    run_s = np.where(largest > 0, times, 0.0).sum(axis=1) / np.maximum((largest > 0).sum(axis=1), 1)
    out = Csr.build(p.num_ops, p.edge_src, p.edge_dst)
    sent_s = latency_s + s_per_byte * problem.group_edge_bytes * problem.num_groups
    return np.asarray(run_s + longest_before(p.topological_order[::-1], out, run_s, sent_s))


class BatchList:
    """One run of list scheduling; ``device`` [N, G] and ``start_s`` [N, D] when it is over.

    ``by_end`` chooses the division whose last batch ends first, then the one of least device time; otherwise only
    the latter counts. Of a division, each device gets the groups that have the most input bytes there. ``wake`` is
    called for every division that is tried, and may raise.
    """

    def __init__(
        self,
        problem: BatchedProblem,
        wake: Callable[[], None] = lambda: None,
        *,
        by_end: bool = True,
        insertion: bool = False,
    ) -> None:
        p = problem.costs
        self._problem, self._wake, self._by_end, self._insertion = problem, wake, by_end, insertion
        self.device = np.full((p.num_ops, problem.num_groups), -1, dtype=np.int64)
        self.start_s = np.full((p.num_ops, p.num_devices), np.nan)
        self._end_s = np.zeros((p.num_ops, p.num_devices))
        self._busy: list[list[tuple[float, float]]] = [[] for _ in range(p.num_devices)]
        self._left_bytes = p.memory_bytes * (1 + MEMORY_TOLERANCE)
        self._into = Csr.build(p.num_ops, p.edge_dst, p.edge_src)

    def run(self, priority: FloatArray) -> bool:
        """Ops by priority [N], largest first, among those whose inputs are placed; False where one has no room."""
        p = self._problem.costs
        return all(self._place(v) for v in ranked_order(p.num_ops, p.edge_src, p.edge_dst, -priority).tolist())

    def _place(self, v: int) -> bool:
        problem = self._problem
        counts = problem.divisions
        times = problem.group_time_s[v, np.arange(counts.shape[1]), counts]  # [K, D]
        needed = (counts > 0) * problem.costs.weight_bytes[v] + counts * problem.held_bytes[v]
        fits = np.flatnonzero(np.isfinite(times).all(axis=1) & (needed <= self._left_bytes).all(axis=1))
        best: tuple[float, float, int] | None = None
        homes: IntArray | None = None
        at = self._bytes_at(v)
        for least in self._least_costs(v, fits, times[fits].sum(axis=1)):
            self._wake()
            if best is not None and least > best:
                break
            k = least[2]
            row = _shared_out(counts[k], at)
            end_s = max(start + times[k, d] for d, start in self._starts(v, row, times[k])) if self._by_end else 0.0
            cost = (float(end_s), least[1], k)
            if best is None or cost < best:
                best, homes = cost, row
        if best is None or homes is None:
            return False
        self._settle(v, homes, times[best[2]], needed[best[2]])
        return True

    def _least_costs(self, v: int, fits: IntArray, total_s: FloatArray) -> list[tuple[float, float, int]]:
        """What divisions ``fits`` of v cost at least, rising: end, device time and number of each."""
        least_s = np.zeros(len(fits))
        if self._by_end:
            counts = self._problem.divisions[fits]
            least_s = self._least_end_s(v)[np.arange(counts.shape[1]), counts].max(axis=1)
        return sorted(zip(least_s.tolist(), total_s.tolist(), fits.tolist(), strict=True))

    def _least_end_s(self, v: int) -> FloatArray:
        """[D, G + 1] when batches of v end at the earliest, by groups: with those inputs that are there first."""
        problem = self._problem
        arrival_s = np.zeros((problem.num_groups, problem.costs.num_devices))
        for k in range(self._into.indptr[v], self._into.indptr[v + 1]):
            u, size = self._into.indices[k], problem.group_edge_bytes[self._into.edges[k]]
            source = self.device[u]
            sent_s = problem.latency_s[source] + size * problem.s_per_byte[source]
            arrival_s = np.maximum(arrival_s, self._end_s[u, source][:, None] + sent_s)
        end_s = np.zeros((problem.costs.num_devices, problem.num_groups + 1))
        for d, ready_s in enumerate(arrival_s.min(axis=0).tolist()):
            for n, run_s in enumerate(problem.group_time_s[v, d, 1:].tolist(), 1):
                end_s[d, n] = self._room(d, ready_s, run_s) + run_s if run_s < np.inf else np.inf  # NaN is not less
        return end_s

    def _settle(self, v: int, homes: IntArray, run_s: FloatArray, needed: FloatArray) -> None:
        for d, start in self._starts(v, homes, run_s):
            self.start_s[v, d], self._end_s[v, d] = start, start + run_s[d]
            busy = self._busy[d]
            busy.append((start, start + float(run_s[d]) + self._problem.costs.op_overhead_s))
            busy.sort()
        self.device[v] = homes
        self._left_bytes = self._left_bytes - needed

    def _starts(self, v: int, homes: IntArray, run_s: FloatArray) -> list[tuple[int, float]]:
        """Device and start of each batch of v."""
        return [(d, self._room(d, self._arrival_s(v, d, homes), float(run_s[d]))) for d in sorted(set(homes.tolist()))]

    def _arrival_s(self, v: int, d: int, homes: IntArray) -> float:
        problem, latest_s = self._problem, 0.0
        here = np.flatnonzero(homes == d)
        for k in range(self._into.indptr[v], self._into.indptr[v + 1]):
            u, size = self._into.indices[k], problem.group_edge_bytes[self._into.edges[k]]
            sources = self.device[u, here].tolist()
            for a in set(sources):
                sent_s = problem.latency_s[a, d] + sources.count(a) * size * problem.s_per_byte[a, d]
                latest_s = max(latest_s, float(self._end_s[u, a] + sent_s))
        return latest_s

    def _room(self, d: int, ready_s: float, run_s: float) -> float:
        """The first start on a device, behind all it has or in idle time."""
        busy, taken_s = self._busy[d], run_s + self._problem.costs.op_overhead_s
        if not self._insertion:
            return max(ready_s, busy[-1][1] if busy else 0.0)
        start = ready_s
        for begin, end in busy:
            if end <= start:
                continue
            if start + taken_s <= begin:
                break
            start = end
        return start

    def _bytes_at(self, v: int) -> FloatArray:
        """[G, D] bytes that the inputs of v for each group have on each device."""
        at = np.zeros((self.device.shape[1], self._problem.costs.num_devices))
        for k in range(self._into.indptr[v], self._into.indptr[v + 1]):
            size = self._problem.group_edge_bytes[self._into.edges[k]]
            at[np.arange(len(at)), self.device[self._into.indices[k]]] += max(size, 1e-300)
        return at


def _shared_out(count: IntArray, bytes_at: FloatArray) -> IntArray:
    """[G] devices, ``count`` [D] groups on each, those with the most bytes there first."""
    left, homes = count.copy(), np.full(len(bytes_at), -1, dtype=np.int64)
    for place in np.argsort(-bytes_at, axis=None, kind="stable").tolist():
        g, d = divmod(place, bytes_at.shape[1])
        if homes[g] < 0 and left[d] > 0:
            homes[g] = d
            left[d] -= 1
    return homes
