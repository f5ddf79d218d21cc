"""Searches over batched schedules: the best so far, its bound and its clock, and the methods that look for better ones.

The bound is the larger of the load and the longest path. Some of the groups of a batch may be fewer than any size
allows: they count with the time of the cheapest size that holds them. Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray, IntArray, inverse_of, ranked_order, topological_order
from hsdag.ir.kernels import longest_before
from hsdag.methods.batched.annealing import Cooling, Move, State, anneal
from hsdag.methods.batched.dispatch import Tables, divide, loaded, schedule_of
from hsdag.methods.batched.problem import BatchedProblem, BatchSchedule, BatchTable
from hsdag.runtime.problem.bounds.simple import CRITICAL_PATH, LOAD, Bound, dual_load, largest
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.tables import levels_of, tables_of
from hsdag.scoring.base import SearchStopped
from hsdag.scoring.memory import MEMORY_TOLERANCE

ROUNDS = 400
"""Steps towards the best prices of devices."""
SLACK = 1 - 1e-9
"""What rounding may have added to a sum."""
SHARE_OF_CHAINS = 0.35
"""Of the time that is left: what annealing by chains may take before that of ops."""
NUM_THREADS, SLICE_STEPS, STEPS_PER_GENE = 2, 2e5, 20_000
"""Searches side by side; steps at one temperature, for an op or edge; and for each op and group the steps after which
nothing better is expected."""

EVOLUTION = Cooling(0.0, 0.0, weight=0.0, moves=(Move.FLIPS,))
BY_CHAINS, BY_OPS = Cooling(3e-3, 2e-4, by_chain=True), Cooling(1e-3, 1e-4)
"""Chosen, like the weight of loads, on sdep-2 of the simulated costs of DiviML."""


class BatchIncumbent:
    """What methods hand schedules to; ``best_after_s`` is when the best was known, counted from the making.

    ``prices`` [D] of a second of each device add up to 1; at them the load is bounded best.
    """

    def __init__(
        self, problem: BatchedProblem, budget_s: float, should_stop: Callable[[], bool] = lambda: False, seed: int = 0
    ) -> None:
        self._begin, self._budget_s = time.monotonic(), budget_s
        self.problem, self.seed, self._should_stop = problem, seed, should_stop
        self.best: BatchSchedule | None = None
        self.best_s, self.best_after_s = np.inf, 0.0
        self.num_considered, self.hit_limit = 0, False
        p = problem.costs
        self.tables = Tables.of(problem)
        self.breadth_first = -inverse_of(topological_order(p.num_ops, p.edge_src, p.edge_dst)).astype(np.float64)
        self.bound, self.prices = simple_bound(problem)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the making."""
        return time.monotonic() - self._begin

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left, at least 0."""
        return max(self._budget_s - self.elapsed_s, 0.0)

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to find: the best, or the absence of a schedule, is proven."""
        return self.bound.value_s >= self.best_s * SLACK

    def wake(self) -> None:
        """Raises SearchStopped when the search was asked to end, or its time is over."""
        if self._should_stop():
            raise SearchStopped
        if self.left_s <= 0:
            self.hit_limit = True
            raise SearchStopped

    def consider(self, device: IntArray, priority: FloatArray | None = None) -> None:
        """Keep a placement [N, G] if it is allowed and the best, its batches dispatched by ``priority`` [N].

        By default that is breadth first.
        """
        self.num_considered += 1
        if loaded(self.tables, device):
            schedule = schedule_of(self.tables, device, self.breadth_first if priority is None else priority)
            value_s = self.problem.makespan_s(schedule)
            if value_s < self.best_s:
                self.best, self.best_s, self.best_after_s = schedule, value_s, self.elapsed_s

    def divide(self, priority: FloatArray, *, by_end: bool = True) -> None:
        """Consider the placement that dividing ops one by one, by ``priority`` [N], comes to."""
        self.wake()
        p, device = self.problem.costs, np.zeros((len(priority), self.problem.num_groups), dtype=np.int64)
        order = ranked_order(p.num_ops, p.edge_src, p.edge_dst, -priority)
        if divide(self.tables, order, self.problem.divisions, by_end, device):
            self.consider(device, priority)


def prepare() -> None:
    """Have compiled what searches call."""
    costs = ScheduleProblem.from_arrays([[1.0, 1.0]] * 2, [(0, 1)])
    problem = BatchedProblem.of(costs, BatchTable.quarters(costs, 4, 0.0))
    tables, device = Tables.of(problem), np.zeros((2, 4), dtype=np.int64)
    divide(tables, np.arange(2), problem.divisions, True, device)
    schedule = schedule_of(tables, device, np.zeros(2))
    anneal(tables, State.begin(problem, BY_OPS, np.array([0.5, 0.5]), schedule), 1, 1.0, 1.0, 0)


def simple_bound(problem: BatchedProblem) -> tuple[Bound, FloatArray]:
    """The larger of load and longest path of one group, and prices [D] of devices that bound the load best.

    Infinite where an op cannot be divided over devices that have time and memory for it.
    """
    p, sizes = problem.costs, np.arange(problem.num_groups + 1)
    needed = p.weight_bytes[:, None] * (sizes > 0) + sizes * problem.held_bytes[:, None]  # [N, G + 1]
    fits = needed[:, None, :] <= p.memory_bytes[None, :, None] * (1 + MEMORY_TOLERANCE)
    table = np.where(fits, problem.group_time_s, np.nan)
    times = np.fmin.accumulate(table[:, :, :0:-1], axis=2)[:, :, ::-1] + p.op_overhead_s
    times = np.nan_to_num(np.concatenate([table[:, :, :1], times], axis=2), nan=np.inf)
    load_s, prices = dual_load(partial(loads_at, times), np.full(p.num_devices, 1.0 / p.num_devices), ROUNDS)
    run_s = np.nan_to_num(times[:, :, 1].min(axis=1) - p.op_overhead_s, posinf=np.inf)
    before_s = longest_before(p.topological_order, problem.inputs, run_s, np.zeros(len(p.edge_src)))
    path_s = float((before_s + run_s).max())
    return largest(Bound((load_s - p.op_overhead_s) * SLACK, LOAD), Bound(path_s * SLACK, CRITICAL_PATH)), prices


def loads_at(time_s: FloatArray, price: FloatArray) -> FloatArray:
    """[D] loads where every op of ``time_s`` [N, D, G + 1] is divided in the way that costs least at ``price`` [D].

    Device after device, the least cost of 0 to G groups on those so far. Infinite where an op cannot be divided.
    """
    num_ops, num_devices, num_sizes = time_s.shape
    cost, every = np.full((num_ops, num_sizes), np.inf), np.arange(num_ops)
    cost[:, 0] = 0.0
    chosen = np.zeros((num_devices, num_ops, num_sizes), dtype=np.int64)
    for d in range(num_devices):
        before = cost.copy()
        for g, n in zip(*np.tril_indices(num_sizes), strict=True):  # n groups of g on this device
            other = before[:, g - n] + price[d] * time_s[:, d, n]
            is_less = other < cost[:, g]
            cost[is_less, g], chosen[d, is_less, g] = other[is_less], n
    if np.isinf(cost[:, -1]).any():
        return np.full(num_devices, np.inf)
    loads, left = np.zeros(num_devices), np.full(num_ops, num_sizes - 1)
    for d in range(num_devices - 1, -1, -1):
        size = chosen[d, every, left]
        loads[d] = time_s[every, d, size].sum()
        left -= size
    return loads


def search_best_device(incumbent: BatchIncumbent) -> None:
    """All ops and inputs on one device."""
    problem = incumbent.problem
    for d in range(problem.costs.num_devices):
        incumbent.consider(np.full((problem.costs.num_ops, problem.num_groups), d, dtype=np.int64))


def search_met(incumbent: BatchIncumbent) -> None:
    """Every op in the batches that take the least device time in all."""
    incumbent.divide(incumbent.breadth_first, by_end=False)


def search_greedy(incumbent: BatchIncumbent) -> None:
    """Ops in breadth-first order, each in the batches whose last one ends first."""
    incumbent.divide(incumbent.breadth_first)


def search_heft(incumbent: BatchIncumbent) -> None:
    """Ops by upward rank, each in the batches whose last one ends first."""
    incumbent.divide(upward_s(incumbent.problem))


def upward_s(problem: BatchedProblem) -> FloatArray:
    """[N] HEFT's ranks: of an op the mean time of its largest batches, of an edge that of all inputs at once."""
    p, table = problem.costs, problem.group_time_s
    largest = np.where(np.isfinite(table), np.arange(table.shape[2]), 0).max(axis=2, keepdims=True)  # [N, D, 1] groups
    time_s = np.where(largest > 0, np.take_along_axis(table, largest, axis=2), np.nan)[:, :, 0]
    time_s[np.isnan(time_s).all(axis=1)] = 0.0
    edge_bytes = p.edge_bytes * problem.batches.num_inputs
    return levels_of(tables_of(replace(p, time_s=time_s, edge_bytes=edge_bytes))).upward_s


def warm_start(incumbent: BatchIncumbent) -> None:
    """The best of all methods of a moment, data parallelism among them: all ops divided in the same way."""
    problem = incumbent.problem
    for count in problem.divisions:
        row = np.repeat(np.arange(problem.costs.num_devices), count)
        incumbent.consider(np.repeat(row[None, :], problem.costs.num_ops, axis=0))
        incumbent.wake()
    for search_list in (search_met, search_greedy, search_heft):
        search_list(incumbent)


def search_ea(incumbent: BatchIncumbent) -> None:
    """The (1+1) EA from bMET; devices take ready batches in its order."""
    search_met(incumbent)
    cool(incumbent, EVOLUTION, incumbent.left_s)


def search_sa(incumbent: BatchIncumbent) -> None:
    """Annealing of placements and priorities."""
    warm_start(incumbent)
    cool(incumbent, BY_OPS, incumbent.left_s)


def search_split(incumbent: BatchIncumbent) -> None:
    """Annealing of chains and then of ops.

    A pivot's inputs may be divided over devices, and their batches end at different times: no dynamic program over
    devices joins modules, as for one input. What joins chains of ops, divided as one, are the prices of devices.
    """
    warm_start(incumbent)
    cool(incumbent, BY_CHAINS, SHARE_OF_CHAINS * incumbent.left_s)
    cool(incumbent, BY_OPS, incumbent.left_s)


def cool(incumbent: BatchIncumbent, cooling: Cooling, seconds: float) -> None:
    """Anneal from the best schedule, if any, for ``seconds`` at most, or in as many steps as are enough by far."""
    start, problem = incumbent.best, incumbent.problem
    if start is None or incumbent.is_closed:
        return
    searches = [
        (Tables.of(problem), State.begin(problem, cooling, incumbent.prices, start)) for _ in range(NUM_THREADS)
    ]
    if not len(searches[0][1].ops):
        return
    most, each = STEPS_PER_GENE * start.device.size, max(int(SLICE_STEPS / len(start.device)), 1)
    begin_s, makespan_s, done, share = incumbent.elapsed_s, incumbent.best_s, 0, 0.0
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        while share < 1.0 and not incumbent.is_closed:
            heat_s = makespan_s * cooling.heat(share)
            seeds = [hash((incumbent.seed, k, done)) % 2**31 for k in range(NUM_THREADS)]
            for running in [
                pool.submit(anneal, *searches[k], each, heat_s, cooling.weight, seed) for k, seed in enumerate(seeds)
            ]:
                running.result()
            for _, state in searches:
                if state.value_s[2] < incumbent.best_s:
                    incumbent.consider(state.best_device, state.best_priority)
            incumbent.num_considered += NUM_THREADS * each
            incumbent.wake()
            done += each
            share = max(done / most, (incumbent.elapsed_s - begin_s) / seconds)
    incumbent.hit_limit |= done < most


METHODS: Mapping[str, Callable[[BatchIncumbent], None]] = {
    "best-device": search_best_device,
    "met": search_met,
    "greedy": search_greedy,
    "heft": search_heft,
    "ea": search_ea,
    "sa": search_sa,
    "milp-split": search_split,
    "auto": search_split,  # lists and annealing in turn: a portfolio already
}


def search(incumbent: BatchIncumbent, method: str) -> None:
    """Search until the method ends or time is over; with an answer where one is easily found."""
    try:
        METHODS[method](incumbent)
    except SearchStopped:
        if incumbent.best is None:
            search_best_device(incumbent)
