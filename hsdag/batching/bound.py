"""Lower bounds of batched schedules: load, longest path, and DiviML's recursive bound over modules (IV-B2).

Some of the groups of a batch may be fewer than any size allows: optima are taken with the time of the cheapest size
that holds them. Legend: N ops, M ops of a part, D devices, G groups of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hsdag.batching.incumbent import BatchIncumbent
from hsdag.ir.compiled import bare
from hsdag.ir.graph import BoolArray, Csr, FloatArray, IntArray
from hsdag.ir.paths import longest_before
from hsdag.placers.exact.batches import BatchedProblem, BatchTable
from hsdag.placers.exact.cpsat_model import IntervalModel
from hsdag.placers.exact.formulation import Formulation
from hsdag.placers.exact.recursive_bound import recursive_bound_s
from hsdag.placers.exact.solving import solve_model
from hsdag.placers.incumbent import Limits, Status
from hsdag.runtime.problems.bounds import CRITICAL_PATH, LOAD, Bound, dual_load, largest

ROUNDS_FIRST, ROUNDS = 400, 40
"""Steps towards the best prices of devices, from equal ones and from those of the whole problem."""
SLACK = 1 - 1e-9
"""What rounding may have added to a sum."""
MOST_WAITS = 50_000
"""Of a module that CP-SAT solves; a model of more takes longer to build than the module has."""


class BatchedBounds:
    """Bounds of parts of one problem: ops as a mask [N], and a number of groups.

    ``limits`` are those of one module that is solved; ``left_s`` tells how much time there is for all: without any,
    bounds are those of equal prices. ``prices`` [D] of a second of each device add up to 1; at them the load is bounded
    best. ``horizon_s`` is the length of a schedule that is known. Where an op cannot be
    divided over devices that have time and memory for it, bounds are infinite.
    """

    def __init__(
        self,
        problem: BatchedProblem,
        limits: Limits,
        left_s: Callable[[], float] = lambda: 1e9,
        horizon_s: float = np.inf,
    ) -> None:
        self.problem, self._limits, self._left_s = problem, limits, left_s
        self._horizon_s = horizon_s
        self._relaxed = relaxed(problem.within(horizon_s * (1 + 1e-9)))
        self.prices = np.full(problem.costs.num_devices, 1.0 / problem.costs.num_devices)
        self._known: dict[tuple[bytes, int], Bound] = {}
        self._solved: dict[tuple[bytes, int], float] = {}
        self.prices = self._load(np.ones(problem.costs.num_ops, dtype=np.bool_), problem.num_groups, ROUNDS_FIRST)[1]

    @property
    def has_time(self) -> bool:
        """Whether time is left."""
        return self._left_s() > 0

    def whole(self) -> Bound:
        """The larger of load and longest path of all."""
        return self.simple(np.ones(self.problem.costs.num_ops, dtype=np.bool_), self.problem.num_groups)

    def recursive(self, parts: Sequence[IntArray]) -> Bound:
        """The recursive bound over modules; what no time is left for counts as 0."""
        f = Formulation(self.problem.costs)
        groups = self.problem.num_groups
        found_s = recursive_bound_s(f, parts, groups, self.module_s, self.simple_s, lambda: self.has_time)
        return Bound(found_s, "modules solved one by one")

    def simple_s(self, ops: BoolArray, groups: int) -> float:
        """Seconds of the larger of load and longest path."""
        return self.simple(ops, groups).value_s

    def simple(self, ops: BoolArray, groups: int) -> Bound:
        """Load and longest path."""
        key = ops.tobytes(), groups
        if key not in self._known:
            load_s, path_s = self._load(ops, groups, ROUNDS)[0] * SLACK, self._longest_s(ops) * SLACK
            self._known[key] = largest(Bound(load_s, LOAD), Bound(path_s, CRITICAL_PATH))
        return self._known[key]

    def module_s(self, ops: BoolArray, groups: int) -> float:
        """What CP-SAT proves of a module while there is time, which is never less than the simple bound."""
        key = ops.tobytes(), groups
        if key not in self._solved:
            if not self.has_time:
                return self.simple_s(ops, groups)
            fewer_s = self.module_s(ops, groups - 1) if groups > 1 else 0.0
            self._solved[key] = max(self.simple_s(ops, groups), fewer_s, self._prove(ops, groups) * SLACK)
        return self._solved[key]

    def _prove(self, ops: BoolArray, groups: int) -> float:
        part = self._relaxed.of_ops(np.flatnonzero(ops), groups * self.problem.batches.group)
        if part.num_waits > MOST_WAITS:
            return 0.0
        horizon_s = min(part.horizon_s, self._horizon_s * (1 + 1e-9))
        limits = replace(self._limits, seconds=min(self._limits.seconds, self._left_s()))
        model = IntervalModel.of_batches(part, horizon_s)
        answer = solve_model(model, limits)
        return 0.0 if answer.ending is Status.INFEASIBLE else answer.bound * model.ticks.length_s

    def _load(self, ops: BoolArray, groups: int, rounds: int) -> tuple[float, FloatArray]:
        """The busiest device under the best division of every op, from below, with prices [D] of the devices."""
        overhead_s = self.problem.costs.op_overhead_s
        times = self._relaxed.group_time_s[ops][:, :, : groups + 1].copy()
        times[:, :, 1:] += overhead_s
        times = np.nan_to_num(times, nan=np.inf)
        load_s, prices = dual_load(partial(loads_at, times), self.prices, rounds, lambda: self.has_time)
        return load_s - overhead_s, prices

    def _longest_s(self, ops: BoolArray) -> float:
        """The longest path of one group."""
        p = self.problem.costs
        least = np.nan_to_num(self._relaxed.group_time_s[:, :, 1], nan=np.inf).min(axis=1)
        run_s, inputs = np.where(ops, least, 0.0), Csr.build(p.num_ops, p.edge_dst, p.edge_src)
        before_s = longest_before(p.topological_order, inputs, run_s, np.zeros(len(p.edge_src)))
        return float((before_s + run_s).max())


def bounded(incumbent: BatchIncumbent, limits: Limits | None = None) -> BatchedBounds:
    """Bounds while there is time, of which the simple ones are proven; ``limits`` are those of one module."""
    bounds = BatchedBounds(incumbent.problem, limits or Limits(), lambda: incumbent.left_s, incumbent.best_s)
    incumbent.prove(bounds.whole())
    return bounds


def relaxed(problem: BatchedProblem) -> BatchedProblem:
    """The problem with batches of any number of groups, each at the time of the cheapest size that holds it."""
    table = problem.group_time_s[:, :, 1:]
    times = np.fmin.accumulate(table[:, :, ::-1], axis=2)[:, :, ::-1]
    group, count = problem.batches.group, problem.num_groups
    sizes = tuple(range(group, group * count + 1, group))
    return BatchedProblem(problem.costs, BatchTable(problem.batches.num_inputs, sizes, times.copy(), group))


def loads_at(time_s: FloatArray, price: FloatArray) -> FloatArray:
    """[D] seconds of each device where every op is divided as it costs least; infinite where one cannot be divided.

    ``time_s`` is [M, D, G + 1] by groups, infinite where it is not allowed, and 0 for none; ``price`` is [D].
    """
    devices, groups = time_s.shape[1], time_s.shape[2] - 1
    loads, cost, chosen = np.zeros(devices), np.zeros(groups + 1), np.zeros((devices, groups + 1), dtype=np.int64)
    if not _add_cheapest(np.ascontiguousarray(time_s), price, loads, cost, chosen):
        loads[:] = np.inf
    return loads


@bare
def _add_cheapest(time_s: FloatArray, price: FloatArray, loads: FloatArray, cost: FloatArray, chosen: IntArray) -> bool:
    """Device after device: ``cost`` [G + 1] of groups on those so far, of which the last has ``chosen`` [D, G + 1]."""
    num_ops, num_devices, num_sizes = time_s.shape
    for v in range(num_ops):
        cost[:] = np.inf
        cost[0] = 0.0
        for d in range(num_devices):
            for g in range(num_sizes - 1, -1, -1):
                least, size = cost[g], 0
                for n in range(1, g + 1):
                    if cost[g - n] < np.inf and time_s[v, d, n] < np.inf:
                        other = cost[g - n] + price[d] * time_s[v, d, n]
                        if other < least:
                            least, size = other, n
                cost[g], chosen[d, g] = least, size
        if cost[num_sizes - 1] == np.inf:
            return False
        g = num_sizes - 1
        for d in range(num_devices - 1, -1, -1):
            n = chosen[d, g]
            loads[d] += time_s[v, d, n]
            g -= n
    return True
