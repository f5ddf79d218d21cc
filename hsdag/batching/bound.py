"""Lower bounds of batched schedules: load, longest path, and DiviML's recursive bound over modules (IV-B2).

Let M be the ops of the first module that lead on, b of the G groups, and c_(b) the moment when b groups are through
M. It is no sooner than OPT(M, b). At least G - b + 1 groups end their last op of M at c_(b) or later, and all that
descends from that op begins after it. The op is one that nothing of M follows, but which one may differ from group to
group, where the paper takes one for all: what descends from all of them is common to all groups; otherwise one of X
ops is the last for a share of 1 / X of the groups. So with R the rest,

OPT(V, G) >= OPT(M, b) + max(OPT(common, G - b + 1), min over x of OPT(behind x, ceil((G - b + 1) / X)))

for every b, and likewise in the other direction of time. Some of the groups of a batch may be fewer than any size
allows: OPT is taken with the time of the cheapest size that holds them. Legend: N ops, D devices, G groups of inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hsdag.batching.cpsat_model import BatchedIntervals, num_waits, ticks_of
from hsdag.batching.load import loads_at
from hsdag.ir.graph import BoolArray, Csr, FloatArray, IntArray
from hsdag.ir.paths import longest_before
from hsdag.placers.exact.batches import BatchedProblem, BatchTable
from hsdag.placers.exact.formulation import Formulation
from hsdag.placers.exact.solving import Ending, SolverLimits, solve_model

ROUNDS_FIRST, ROUNDS = 400, 40
"""Steps towards the best prices of devices, from equal ones and from those of the whole problem."""
SLACK = 1 - 1e-9
"""What rounding may have added to a sum."""
MOST_WAITS = 50_000
"""Of a module that CP-SAT solves; a model of more takes longer to build than the module has."""


class BatchedBounds:
    """Bounds of parts of one problem: ops as a mask [N], and a number of groups.

    ``limits`` are those of one module that is solved; ``left_s`` tells how much time there is for all: without any,
    bounds are those of equal prices. ``horizon_s`` is the length of a schedule that is known. Where an op cannot be
    divided over devices that have time and memory for it, bounds are infinite.
    """

    def __init__(
        self,
        problem: BatchedProblem,
        limits: SolverLimits,
        left_s: Callable[[], float] = lambda: 1e9,
        horizon_s: float = np.inf,
    ) -> None:
        self.problem, self._limits, self._left_s = problem, limits, left_s
        self._horizon_s = horizon_s
        self._relaxed = relaxed(problem.within(horizon_s * (1 + 1e-9)))
        self._prices = np.full(problem.costs.num_devices, 1.0 / problem.costs.num_devices)
        self._known: dict[tuple[bytes, int], float] = {}
        self._solved: dict[tuple[bytes, int], float] = {}
        self._prices = self._load(np.ones(problem.costs.num_ops, dtype=np.bool_), problem.num_groups, ROUNDS_FIRST)[1]

    @property
    def prices(self) -> FloatArray:
        """[D] of a second of each device, adding up to 1, at which the load is bounded best."""
        return self._prices

    @property
    def has_time(self) -> bool:
        """Whether time is left."""
        return self._left_s() > 0

    def whole_s(self) -> float:
        """The larger of load and longest path of all."""
        return self.simple_s(np.ones(self.problem.costs.num_ops, dtype=np.bool_), self.problem.num_groups)

    def recursive_s(self, parts: Sequence[IntArray]) -> float:
        """The recursive bound over modules, in both directions of time; what no time is left for counts as 0."""
        reach, module = Formulation(self.problem.costs).reach, np.zeros(self.problem.costs.num_ops, dtype=np.int64)
        for t, part in enumerate(parts):
            module[part] = t
        forward = _Direction(self, reach, module)
        backward = _Direction(self, reach.T, len(parts) - 1 - module)
        return max(forward.bound_s(), backward.bound_s())

    def simple_s(self, ops: BoolArray, groups: int) -> float:
        """Load and longest path."""
        key = ops.tobytes(), groups
        if key not in self._known:
            self._known[key] = max(self._load(ops, groups, ROUNDS)[0], self._longest_s(ops)) * SLACK
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
        kept = np.flatnonzero(ops)
        costs = self._relaxed.of_ops(kept).costs
        part = BatchedProblem(costs, self._relaxed.batches.of_ops(kept, groups * self.problem.batches.group))
        if num_waits(part) > MOST_WAITS:
            return 0.0
        horizon_s = min(part.horizon_s, self._horizon_s * (1 + 1e-9))
        limits = SolverLimits(
            max(min(self._limits.seconds, self._left_s()), 1e-3), self._limits.num_workers, self._limits.seed
        )
        answer = solve_model(BatchedIntervals(part, ticks := ticks_of(part, horizon_s), horizon_s), limits)
        return 0.0 if answer.ending is Ending.INFEASIBLE else ticks.length_of(answer.bound)

    def _load(self, ops: BoolArray, groups: int, rounds: int) -> tuple[float, FloatArray]:
        """The busiest device under the best division of every op, from below, with prices [D] of the devices.

        For any prices that add up to 1 the makespan is at least the sum of what the cheapest division of each op
        costs: the Lagrangian dual of choosing divisions. The prices follow the loads, with steps that become smaller,
        until the time is over; the first counts always.
        """
        overhead_s, best_s, best = self.problem.costs.op_overhead_s, 0.0, self._prices
        times = self._relaxed.group_time_s[ops][:, :, : groups + 1].copy()
        times[:, :, 1:] += overhead_s
        times = np.nan_to_num(times, nan=np.inf)
        weights = np.log(np.maximum(self._prices, 1e-12))
        for step in range(rounds):
            prices = np.exp(weights - weights.max())
            prices /= prices.sum()
            loads = loads_at(times, prices)
            bound_s = float(loads @ prices)
            if bound_s > best_s:
                best_s, best = bound_s, prices
            if np.isinf(bound_s) or not self.has_time:
                break
            weights += (2.0 / np.sqrt(step + 4.0)) * (loads / max(float(loads.max()), 1e-300) - 0.5)
        return best_s - overhead_s, best

    def _longest_s(self, ops: BoolArray) -> float:
        """The longest path of one group."""
        p = self.problem.costs
        least = np.nan_to_num(self._relaxed.group_time_s[:, :, 1], nan=np.inf).min(axis=1)
        run_s, inputs = np.where(ops, least, 0.0), Csr.build(p.num_ops, p.edge_dst, p.edge_src)
        before_s = longest_before(p.topological_order, inputs, run_s, np.zeros(len(p.edge_src)))
        return float((before_s + run_s).max())


class _Direction:
    """The recursion in one direction of time: ``reach`` [N, N], and the module of each op, counted along it."""

    def __init__(self, bounds: BatchedBounds, reach: BoolArray, module: IntArray) -> None:
        self._bounds, self._reach, self._module = bounds, reach, module
        self._groups = bounds.problem.num_groups
        self._known: dict[tuple[bytes, int], float] = {}

    def bound_s(self) -> float:
        return self._from(np.ones(len(self._module), dtype=np.bool_), self._groups)

    def _from(self, ops: BoolArray, groups: int) -> float:
        key = ops.tobytes(), groups
        if key not in self._known:
            self._known[key] = self._compute(ops, groups) if self._bounds.has_time else 0.0
        return self._known[key]

    def _compute(self, ops: BoolArray, groups: int) -> float:
        first = ops & (self._module == self._module[ops].min())
        rest = ops & ~first
        best_s = self._bounds.simple_s(ops, groups)
        if not rest.any():
            return max(best_s, self._bounds.module_s(ops, groups))
        leads = first & self._reach[:, rest].any(axis=1)
        if not leads.any():
            return max(best_s, self._from(rest, groups))
        last = np.flatnonzero(leads & ~self._reach[:, leads].any(axis=1))
        behind = self._reach[last] & rest[None, :]
        common = behind.all(axis=0)
        for b in range(1, groups + 1):
            left = groups - b + 1
            if common.any():
                later_s = self._from(common, left)
            else:
                later_s = min(self._from(row, -(-left // len(last))) for row in behind)
            best_s = max(best_s, self._bounds.module_s(leads, b) + later_s)
        return best_s


def relaxed(problem: BatchedProblem) -> BatchedProblem:
    """The problem with batches of any number of groups, each at the time of the cheapest size that holds it."""
    table = problem.group_time_s[:, :, 1:]
    times = np.fmin.accumulate(table[:, :, ::-1], axis=2)[:, :, ::-1]
    group, count = problem.batches.group, problem.num_groups
    sizes = tuple(range(group, group * count + 1, group))
    return BatchedProblem(problem.costs, BatchTable(problem.batches.num_inputs, sizes, times.copy(), group))
