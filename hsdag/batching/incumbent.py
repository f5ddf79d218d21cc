"""BatchIncumbent: the best batched schedule of a search so far, with its bound and its clock.

Legend: N ops, E edges, D devices, G groups of inputs, J batches (an op on a device each).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hsdag.batching.dispatch import Dispatcher
from hsdag.evaluators.base import SearchStopped
from hsdag.ir.graph import Csr, FloatArray, IntArray, inverse_of
from hsdag.ir.paths import longest_before
from hsdag.placers.exact.batches import BatchedProblem, BatchSchedule
from hsdag.placers.incumbent import Limits
from hsdag.runtime.platforms.usable_cpus import usable_cpus
from hsdag.runtime.problems.bounds import Bound, largest

SHARE_OF_BUDGET = 0.95
"""What a solver may take of the time that is left when it begins."""


class BatchIncumbent:
    """What methods hand schedules to; ``best_after_s`` is when the best was known, counted from the making."""

    def __init__(
        self, problem: BatchedProblem, budget_s: float, should_stop: Callable[[], bool] = lambda: False, seed: int = 0
    ) -> None:
        self.problem, self.dispatcher, self.seed = problem, Dispatcher(problem), seed
        self.best: BatchSchedule | None = None
        self.best_s, self.best_after_s, self.bound = np.inf, 0.0, Bound(0.0, "nothing yet")
        self.num_considered = 0
        self.hit_limit = False
        self.should_stop, self._begin = should_stop, time.monotonic()
        self._budget_s = budget_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the making."""
        return time.monotonic() - self._begin

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left, at least 0."""
        return max(self._budget_s - self.elapsed_s, 0.0)

    @property
    def limits(self) -> Limits:
        """What is left for a solver. Raises SearchStopped when that is nothing."""
        self.wake()
        return Limits(self.left_s * SHARE_OF_BUDGET, usable_cpus(), self.seed)

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to find: the best, or the absence of a schedule, is proven."""
        return self.bound.value_s >= self.best_s

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
        if not self.dispatcher.allows(device):
            return
        found = self.dispatcher.schedule(device) if start_s is None else in_order(self.problem, device, start_s)
        if (value_s := end_s(self.problem, found)) < self.best_s:
            self.best, self.best_s, self.best_after_s = found, value_s, self.elapsed_s

    def consider_schedule(self, found: BatchSchedule) -> None:
        """Time a schedule, its batches in their order."""
        self.consider(found.device, found.start_s)

    def prove(self, bound: Bound) -> None:
        """Take note that no schedule is faster; rounding puts no bound above what was found."""
        self.bound = largest(self.bound, replace(bound, value_s=min(bound.value_s, self.best_s)))


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
