"""Batched list scheduling and local search of DiviML (section V-A): best device, bMET, bGreedy, bHEFT and the EA.

Each op's inputs are divided over devices when its turn comes. Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hsdag.batching.incumbent import BatchIncumbent
from hsdag.evaluators.memory import MEMORY_TOLERANCE
from hsdag.ir.graph import BoolArray, FloatArray, IntArray, ranked_order
from hsdag.placers.exact.batches import BatchedProblem
from hsdag.placers.lists.greedy import breadth_first
from hsdag.runtime.problems.tables import levels_of, tables_of

PATIENCE, PATIENCE_PER_GENE = 5000, 100
"""The EA ends after this many neighbours without a gain, and this many more for each op and group."""
ASK_EVERY = 64
"""Neighbours between two looks at the clock."""


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


def search_ea(incumbent: BatchIncumbent) -> None:
    """From bMET; a neighbour moves each group of each op with probability one by their number.

    A placement [N, G] is the string of integers; devices take ready batches in breadth-first order.
    """
    search_met(incumbent)
    problem, makespan_s = incumbent.problem, incumbent.dispatcher.makespan_s
    can = np.asarray(np.isfinite(problem.group_time_s[:, :, 1:]).any(axis=2))  # [N, D]
    rng = np.random.default_rng(incumbent.seed)
    start = can.argmax(axis=1)[:, None].repeat(problem.num_groups, axis=1)
    current = start if incumbent.best is None else incumbent.best.device
    current_s, idle, patience = makespan_s(current), 0, PATIENCE + PATIENCE_PER_GENE * current.size
    while (can.sum(axis=1) > 1).any() and idle < patience:
        for _ in range(ASK_EVERY):
            neighbour = _flipped(current, can, rng)
            seconds = makespan_s(neighbour, current_s)
            idle = 0 if seconds < current_s else idle + 1
            if seconds < current_s:
                incumbent.consider(neighbour)
            if seconds <= current_s:
                current, current_s = neighbour, seconds
        incumbent.num_considered += ASK_EVERY
        incumbent.wake()


def _flipped(device: IntArray, can: BoolArray, rng: np.random.Generator) -> IntArray:
    """Each gene [N, G] of a choice goes to another device, at least one does."""
    genes = np.repeat(can.sum(axis=1) > 1, device.shape[1])
    flips = np.zeros(0, dtype=np.int64)
    while not len(flips):
        flips = np.flatnonzero(genes & (rng.random(device.size) * genes.sum() < 1.0))
    others = np.repeat(can, device.shape[1], axis=0)[flips]
    others[np.arange(len(flips)), device.ravel()[flips]] = False
    neighbour = device.copy()
    neighbour.ravel()[flips] = np.argmax(rng.random(others.shape) * others, axis=1)
    return neighbour


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
    p, table = problem.costs, problem.group_time_s
    largest = np.where(np.isfinite(table), np.arange(table.shape[2]), 0).max(axis=2, keepdims=True)  # [N, D, 1] groups
    time_s = np.where(largest > 0, np.take_along_axis(table, largest, axis=2), np.nan)[:, :, 0]
    time_s[np.isnan(time_s).all(axis=1)] = 0.0
    return levels_of(
        tables_of(replace(p, time_s=time_s, edge_bytes=p.edge_bytes * problem.batches.num_inputs))
    ).upward_s


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
        self._inputs: list[list[tuple[int, float]]] = [[] for _ in range(p.num_ops)]
        for u, v, size in zip(p.edge_src.tolist(), p.edge_dst.tolist(), problem.group_edge_bytes.tolist(), strict=True):
            self._inputs[v].append((u, size))

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
        for u, size in self._inputs[v]:
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
        for u, size in self._inputs[v]:
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
        for u, size in self._inputs[v]:
            at[np.arange(len(at)), self.device[u]] += max(size, 1e-300)
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
