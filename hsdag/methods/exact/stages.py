"""Split a graph at cuts into stages, which run one after another and whose times add up.

Legend: N ops, B and X devices that a stage begins and ends on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from hsdag.ir.graph.computation_graph import Csr, FloatArray, IntArray, inverse_of
from hsdag.ir.graph.paths import longest_before
from hsdag.methods.exact.base import TOLERANCE
from hsdag.methods.exact.formulation import Formulation, with_inputs
from hsdag.runtime.objectives import LATENCY
from hsdag.runtime.problem.bounds.makespan import PAIRS_EFFORT, lower_bound
from hsdag.runtime.problem.bounds.simple import Bound, least_before_s, least_op_s
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution
from hsdag.runtime.simulator.simulation import Simulation

ROUNDING = 1e-12
"""Share by which a sum of many terms is lowered to allow for rounding."""
EFFORT = 1e5
"""Bound every pair of ops, with many unlike stages, up to this number of ops times edges times kinds of devices."""
MOST_CHOICES, LEAST_SHARE = 250, 0.5
"""Most ops times devices of a stage to search, and least share of ops in such stages to make that worthwhile."""
MOST_TRIES = 5
"""Most searches of a stage for one pair of end devices."""

Search = Callable[[ScheduleProblem, int, float], tuple[Simulation | None, float]]
"""Search one stage for fixed end devices.

Takes the subproblem, the number of the attempt, and a known lower bound on the makespan in seconds. Returns the best
run, or None, and a lower bound.
"""


@dataclass(frozen=True, eq=False)
class Stage:
    """The ops from one cut to the next, with bounds and results for each pair of devices at these cuts.

    The first cut is an input without cost. Where the graph begins or ends, the index of the device is 0.
    """

    costs: ScheduleProblem
    execution: Execution
    has_begin: bool
    least_s: FloatArray  # [B, X] lower bounds
    value_s: FloatArray  # [B, X] makespans of the best schedules, infinite where none is known
    tries: IntArray  # [B, X] how often ``improve`` was called
    runs: dict[tuple[int, int], Simulation] = field(default_factory=dict)

    @staticmethod
    def of(
        costs: ScheduleProblem, execution: Execution, pairs_effort: float, *, has_begin: bool, has_end: bool
    ) -> Stage:
        """Return a stage with a lower bound that holds for all devices, whatever their memory."""
        costs = replace(costs, memory_bytes=np.full(costs.num_devices, np.inf))
        anywhere = np.ones((1, 1), dtype=np.bool_)
        begins = costs.supported[:1].T if has_begin else anywhere
        ends = costs.supported[-1:] if has_end else anywhere
        bound = lower_bound(LATENCY, replace(costs, launch_s=0.0 * costs.launch_s), execution, pairs_effort)
        least_s = np.where(begins & ends, bound.value, np.inf)
        tries = np.zeros_like(least_s, dtype=np.int64)
        return Stage(costs, execution, has_begin, least_s, np.full_like(least_s, np.inf), tries)

    def improve(self, begin: int, end: int, search: Search) -> None:
        """Improve what is known for two end devices: on the first call a bound, on later ones a schedule."""
        time_s = self.costs.time_s.copy()
        num_ends = self.least_s.shape[1]
        ends = begin, end
        launch_s = 0.0
        if self.has_begin:
            time_s[0, np.arange(len(time_s[0])) != begin] = np.nan
            launch_s = self.costs.launch_s[begin] * (self.execution is Execution.SEQUENTIAL)  # the device runs already
        if num_ends > 1:
            time_s[-1, np.arange(num_ends) != end] = np.nan
        part = replace(self.costs, time_s=time_s)
        if self.tries[ends] == 0:
            least_s = lower_bound(LATENCY, part, self.execution).value
        else:
            run, least_s = search(part, int(self.tries[ends]), self.least_s[ends] + launch_s)
            if run is not None and run.makespan_s - launch_s < self.value_s[ends]:
                self.runs[ends], self.value_s[ends] = run, run.makespan_s - launch_s
        self.tries[ends] += 1
        self.least_s[ends] = max(self.least_s[ends], min(least_s - launch_s, self.value_s[ends]))


@lru_cache(maxsize=1)
def barriers_of(problem: ScheduleProblem) -> tuple[IntArray, IntArray]:
    """Return the place of each op in topological order [N], and the ops that all others come before or after.

    The latter are in order of place and do not include the last op of all. Ops that take no time and read only such ops
    are ignored; their place is -1.
    """
    src, dst, num = problem.edge_src, problem.edge_dst, problem.num_ops
    works = (np.nan_to_num(problem.time_s) != 0).any(axis=1)
    inputs = Csr.build(num, dst, src)
    counts = works | (longest_before(problem.topological_order, inputs, works + 0.0) > 0)
    order = problem.topological_order[counts[problem.topological_order]]
    place, places = np.full(num, -1, dtype=np.int64), np.arange(len(order))
    place[order] = places
    is_inner = counts[src] & counts[dst]
    last_read, first_reader = np.full(num, -1), np.full(num, len(order))
    np.maximum.at(last_read, dst[is_inner], place[src[is_inner]])
    np.minimum.at(first_reader, src[is_inner], place[dst[is_inner]])
    behind = np.minimum.accumulate(np.append(len(order), last_read[order][:0:-1]))[::-1]
    before = np.maximum.accumulate(np.append(-1, first_reader[order][:-1]))
    return place, order[(behind >= places) & (before <= places) & (places < len(order) - 1)]


@lru_cache(maxsize=1)
def cuts_of(problem: ScheduleProblem) -> tuple[IntArray, IntArray]:
    """Return what ``barriers_of`` does, without barriers behind which a transfer may arrive too late for its reader."""
    place, barriers = barriers_of(problem)
    src, dst = problem.edge_src, problem.edge_dst
    begin_s = least_before_s(problem)
    sizes, of_edge = np.unique(problem.edge_bytes, return_inverse=True)
    sent_s = np.array([Formulation(problem).transfer_s(size).max() for size in sizes])[of_edge]
    late = np.searchsorted((begin_s + least_op_s(problem))[barriers], begin_s[dst] - sent_s, side="right")
    at = place[barriers]
    first = np.maximum(np.searchsorted(at, place[src], side="right"), late)
    last = np.searchsorted(at, place[dst])
    is_late = (first < last) & (place[src] >= 0)
    begun, ended = (np.bincount(end[is_late], minlength=len(at) + 1) for end in (first, last))
    return place, barriers[np.cumsum(begun - ended)[:-1] == 0]


class Stages:
    """The stages between the cuts of a graph, ops before or after which all others come; equal stages are one object.

    The ops of a stage run from the end of one cut to the end of the next, with the first as an input without cost. So
    any bound of a stage holds, and stages have no op in common. For bounds alone, ``barriers_of`` can serve as cuts. A
    search is worthwhile only if stages ``are_small``. ``check`` is called before anything that takes long.
    """

    def __init__(
        self,
        costs: ScheduleProblem,
        execution: Execution,
        check: Callable[[], object],
        pairs_effort: float = PAIRS_EFFORT,
        cut_by: Callable[[ScheduleProblem], tuple[IntArray, IntArray]] = cuts_of,
    ) -> None:
        self._costs, self._check, self._how = costs, check, (execution, pairs_effort)
        place, cuts = cut_by(costs)
        order = np.argsort(place, kind="stable")[np.count_nonzero(place < 0) :]
        ends = [-1, *place[cuts].tolist(), len(order) - 1]
        self._ops = [order[max(first, 0) : last + 1] for first, last in itertools.pairwise(ends)]
        sizes = np.array([len(ops) for ops in self._ops])
        self.largest = int(sizes.max())
        is_small = sizes * costs.num_devices <= MOST_CHOICES
        self.are_small = len(cuts) > 0 and sizes[is_small].sum() >= LEAST_SHARE * sizes.sum()

    @cached_property
    def _stages(self) -> list[Stage]:
        """Return all stages in order, each with a bound."""
        stages = list[Stage]()
        by_tables = dict[object, Stage]()
        for k, ops in enumerate(self._ops):
            num_inputs, has_end = min(k, 1), k < len(self._ops) - 1
            part = with_inputs(self._costs, ops[:num_inputs], ops[num_inputs:])
            tables = part.time_s, part.edge_src, part.edge_dst, part.edge_bytes, part.edge_port
            key = num_inputs, has_end, *(table.tobytes() for table in tables)
            if key not in by_tables:
                self._check()
                by_tables[key] = Stage.of(part, *self._how, has_begin=num_inputs > 0, has_end=has_end)
            stages.append(by_tables[key])
        return stages

    @property
    def bound(self) -> Bound:
        """Return a lower bound in seconds on the makespan; valid if the problem's ops are those of the model."""
        least_s = self._shortest([stage.least_s for stage in self._stages])[0]
        return Bound(least_s * (1 - ROUNDING), "stages one behind the other")

    def improve(self, search: Search) -> bool:
        """Improve those stages on the shortest path by bounds that were searched least; return whether any was left."""
        path = self._shortest([stage.least_s for stage in self._stages])[1]
        on_path = dict.fromkeys(zip(self._stages, itertools.pairwise(path), strict=True))
        left = [
            (stage, ends)
            for stage, ends in on_path
            if stage.value_s[ends] > stage.least_s[ends] * (1 + TOLERANCE) and stage.tries[ends] <= MOST_TRIES
        ]
        least = min((stage.tries[ends] for stage, ends in left), default=0)
        for stage, ends in left:
            if stage.tries[ends] == least:
                self._check()
                stage.improve(*ends, search)
        return bool(left)

    def lay(self) -> tuple[IntArray, IntArray] | None:
        """Return devices [N] and ranks [N] of the best known schedule, or None if there is none.

        An op in no stage goes to the device where it is read first.
        """
        costs, n = self._costs, self._costs.num_ops
        device, rank = np.full(n, -1), np.full(n, n * n)
        value_s, path = self._shortest([stage.value_s for stage in self._stages])
        if not np.isfinite(value_s):
            return None
        for k, (ops, stage, ends) in enumerate(zip(self._ops, self._stages, itertools.pairwise(path), strict=True)):
            run, new = stage.runs[ends], slice(min(k, 1), None)
            device[ops[new]], rank[ops[new]] = run.device[new], k * n + run.priority[new]
        readers = Csr.build(n, costs.edge_src, costs.edge_dst)
        for v in costs.topological_order[::-1].tolist():
            if device[v] < 0:
                home = device[min(readers.of(v).tolist(), key=rank.__getitem__)] if len(readers.of(v)) else 0
                device[v] = home if costs.supported[v, home] else costs.supported[v].argmax()
        return device, inverse_of(np.lexsort((inverse_of(costs.topological_order), rank)))

    @staticmethod
    def _shortest(tables: Sequence[FloatArray]) -> tuple[float, list[int]]:
        """Return the least sum of one entry per table [B, X], each in the row of the previous column, and the path.

        The path has all rows and the last column.
        """
        total_s = np.zeros(1)
        back = list[IntArray]()
        for table in tables:
            sums = total_s[:, None] + table
            back.append(sums.argmin(axis=0))
            total_s = sums.min(axis=0)
        path = [int(total_s.argmin())]
        for best in back[::-1]:
            path.append(int(best[path[-1]]))
        return float(total_s.min()), path[::-1]
