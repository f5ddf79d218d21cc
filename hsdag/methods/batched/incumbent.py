"""The best batched schedule of a search so far, its bound and its clock; and how schedules are timed.

The bound is the larger of the load and the longest path. Some of the groups of a batch may be fewer than any size
allows: they count with the time of the cheapest size that holds them. Legend: N ops, E edges, D devices, G groups of
inputs, J batches (an op on a device each).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from hsdag.ir.graph.computation_graph import Csr, FloatArray, IntArray, inverse_of, topological_order
from hsdag.ir.kernels import longest_before
from hsdag.methods.batched.dispatch import Tables, loaded, schedule_of
from hsdag.methods.exact.batches import BatchedProblem, BatchSchedule
from hsdag.runtime.problem.bounds import CRITICAL_PATH, LOAD, Bound, dual_load, largest
from hsdag.scoring.base import SearchStopped

ROUNDS = 400
"""Steps towards the best prices of devices."""
SLACK = 1 - 1e-9
"""What rounding may have added to a sum."""


class BatchIncumbent:
    """What methods hand schedules to; ``best_after_s`` is when the best was known, counted from the making.

    ``prices`` [D] of a second of each device add up to 1; at them the load is bounded best.
    """

    def __init__(
        self, problem: BatchedProblem, budget_s: float, should_stop: Callable[[], bool] = lambda: False, seed: int = 0
    ) -> None:
        self._begin, self._budget_s = time.monotonic(), budget_s
        self.problem, self.seed, self.should_stop = problem, seed, should_stop
        self.best: BatchSchedule | None = None
        self.best_s, self.best_after_s = np.inf, 0.0
        self.num_considered, self.hit_limit = 0, False
        self._tables, self.breadth_first = Tables.of(problem), breadth_first(problem)
        with self.off_the_clock():  # the first call compiles
            schedule_of(self._tables, np.zeros((problem.costs.num_ops, problem.num_groups), dtype=np.int64),
                        self.breadth_first)  # fmt: skip
        self.bound, self.prices = simple_bound(problem)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the making."""
        return time.monotonic() - self._begin

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left, at least 0."""
        return max(self._budget_s - self.elapsed_s, 0.0)

    @contextlib.contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """What is done within takes nothing of the budget."""
        before_s = time.monotonic()
        yield
        self._begin += time.monotonic() - before_s

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to find: the best, or the absence of a schedule, is proven."""
        return self.bound.value_s >= self.best_s * SLACK

    def wake(self) -> None:
        """Raises SearchStopped when the search was asked to end, or its time is over."""
        if self.should_stop():
            raise SearchStopped
        if self.left_s <= 0:
            self.hit_limit = True
            raise SearchStopped

    def consider(self, device: IntArray, start_s: FloatArray | None = None) -> None:
        """Time a placement [N, G], its batches in the order of ``start_s`` [N, D], or dispatched without."""
        self.num_considered += 1
        if not loaded(self._tables, device):
            return
        if start_s is None:
            found = schedule_of(self._tables, device, self.breadth_first)
        else:
            found = in_order(self.problem, device, start_s)
        if (value_s := end_s(self.problem, found)) < self.best_s:
            self.best, self.best_s, self.best_after_s = found, value_s, self.elapsed_s

    def consider_schedule(self, found: BatchSchedule) -> None:
        """Time a schedule, its batches in their order."""
        self.consider(found.device, found.start_s)

    def prove(self, bound: Bound) -> None:
        """Take note that no schedule is faster."""
        self.bound = largest(self.bound, bound)


def breadth_first(problem: BatchedProblem) -> FloatArray:
    """[N] priorities of ops in breadth-first order."""
    p = problem.costs
    return -inverse_of(topological_order(p.num_ops, p.edge_src, p.edge_dst)).astype(np.float64)


def simple_bound(problem: BatchedProblem) -> tuple[Bound, FloatArray]:
    """The larger of load and longest path of one group, and prices [D] of devices that bound the load best.

    Infinite where an op cannot be divided over devices that have time and memory for it.
    """
    p, table = problem.costs, problem.within(np.inf).group_time_s
    times = np.fmin.accumulate(table[:, :, :0:-1], axis=2)[:, :, ::-1] + p.op_overhead_s
    times = np.nan_to_num(np.concatenate([table[:, :, :1], times], axis=2), nan=np.inf)
    load_s, prices = dual_load(partial(loads_at, times), np.full(p.num_devices, 1.0 / p.num_devices), ROUNDS)
    run_s = np.nan_to_num(times[:, :, 1].min(axis=1) - p.op_overhead_s, posinf=np.inf)
    before_s = longest_before(p.topological_order, Csr.build(p.num_ops, p.edge_dst, p.edge_src), run_s,
                              np.zeros(len(p.edge_src)))  # fmt: skip
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


def end_s(problem: BatchedProblem, schedule: BatchSchedule) -> float:
    """The end of the last batch."""
    op, home = np.nonzero(np.isfinite(schedule.start_s))
    size = (schedule.device[op] == home[:, None]).sum(axis=1)
    return float((schedule.start_s[op, home] + problem.group_time_s[op, home, size]).max())


def in_order(problem: BatchedProblem, device: IntArray, start_s: FloatArray) -> BatchSchedule:
    """The schedule whose batches begin as early as inputs and their order by ``start_s`` on each device allow.

    Equal starts go in topological order.
    """
    p, num_devices = problem.costs, problem.costs.num_devices
    size = (device[:, :, None] == np.arange(num_devices)).sum(axis=1)  # [N, D]
    op, home = np.nonzero(size)
    run_s = problem.group_time_s[op, home, size[op, home]]
    batch = np.full(size.shape, -1, dtype=np.int64)
    batch[op, home] = np.arange(len(op))
    order = np.lexsort((inverse_of(p.topological_order)[op], start_s[op, home]))
    line = order[np.argsort(home[order], kind="stable")]
    beside = home[line[1:]] == home[line[:-1]]
    edge = np.arange(len(p.edge_src))[:, None]
    made, read = device[p.edge_src], device[p.edge_dst]  # [E, G]
    pair, shared = np.unique((edge * num_devices + made) * num_devices + read, return_counts=True)
    k, a, b = pair // num_devices**2, pair // num_devices % num_devices, pair % num_devices
    sent_s = problem.latency_s[a, b] + shared * problem.group_edge_bytes[k] * problem.s_per_byte[a, b]
    before = np.concatenate([line[:-1][beside], batch[p.edge_src[k], a]])
    after = np.concatenate([line[1:][beside], batch[p.edge_dst[k], b]])
    waits_s = np.concatenate([np.full(int(beside.sum()), p.op_overhead_s), sent_s])
    begin_s = np.full(size.shape, np.nan)
    begin_s[op, home] = longest_before(order, Csr.build(len(op), after, before), run_s, waits_s)
    return BatchSchedule(device.copy(), begin_s)
