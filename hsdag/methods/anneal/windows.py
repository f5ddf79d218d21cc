"""Large-neighbourhood search over time windows: anneals one window of a schedule while the rest stays fixed.

A step simulates only the window's units, so large graphs cost no more than small ones.

Legend: U placement units, W units of a window, E edges, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hsdag.base.errors import OptionError
from hsdag.base.kernels import bare
from hsdag.ir.graph.computation_graph import Csr, FloatArray, IntArray, inverse_of
from hsdag.methods.anneal.chain import Chain, chain_of, draw, end_proposal, is_kept
from hsdag.methods.anneal.sa import MOVES_OF_LISTS
from hsdag.methods.anneal.values import Lists, lists_for, lists_of, schedule
from hsdag.methods.base import Placer
from hsdag.methods.incumbent import LEAST_GAIN, Incumbent, Status
from hsdag.methods.lists.schedulers import HeftPlacer
from hsdag.runtime.objectives import LATENCY
from hsdag.runtime.problem.plan import Plan, priority_by_end
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution
from hsdag.search.evaluators.base import SearchStopped
from hsdag.search.evaluators.schedule import ScheduleEvaluator

SWEEPS_OF_SIZE = 4
"""Number of sweeps in which each unit has been searched with others before it and behind it."""
GAIN_OF_SIZE = 0.01
"""Share of the value that this many sweeps must gain; otherwise windows double."""


class Windowed(NamedTuple):
    """List schedules of a window, with the fixed schedule before and behind it."""

    lists: Lists
    tail_s: FloatArray  # [W, D] seconds from a unit's end on a device to the end of the whole schedule
    least_s: FloatArray  # [1] seconds of the whole schedule if the window's units took no time

    def propose(self, c: Chain, num: int) -> None:
        """Make ``num`` proposals; see ``Values``."""
        _propose_windowed(self, c, num)


@bare
def _propose_windowed(g: Windowed, c: Chain, num: int) -> None:
    for _ in range(max(num, 1)):
        limit = draw(c, num)
        if c.state[0].num_changed > 0:
            schedule(g.lists, c.device, c.rank)
            whole_s = g.least_s[0]  # end of the units behind the window, which move as one block
            for u in range(len(g.tail_s)):
                whole_s = max(whole_s, g.lists.end_s[u] + g.tail_s[u, g.lists.device[u]])
            is_kept(c, whole_s, limit)
            end_proposal(c)


@dataclass(frozen=True, eq=False)
class UnitTimes:
    """Simulated times of a plan's units, sorted by start."""

    place: IntArray  # [U] rank of a unit by its start
    device: IntArray  # [U]
    start_s: FloatArray  # [U] infinite for units that are not simulated
    end_s: FloatArray  # [U] including the overhead that follows
    total_s: float

    @staticmethod
    def of(problem: Problem, plan: Plan, *, takes_order: bool) -> UnitTimes:
        """Simulate a plan. Raises ValueError for a problem without costs."""
        costs, of_op = problem.simulated
        run = ScheduleEvaluator.of(problem).run(plan if takes_order else plan.unordered)
        start_s, end_s = np.full(problem.num_units, np.inf), np.zeros(problem.num_units)
        np.minimum.at(start_s, of_op, run.start_s)
        np.maximum.at(end_s, of_op, run.end_s + costs.op_overhead_s)
        place = inverse_of(np.lexsort((problem.units.graph.position, end_s, start_s)))
        return UnitTimes(place, plan.placement, start_s, end_s, run.makespan_s)


class WindowCutter:
    """Cutter of windows out of schedules of one problem."""

    def __init__(self, costs: ScheduleProblem) -> None:
        lists = lists_of(costs)
        self.costs = costs
        self._inputs = Csr.build(costs.num_ops, costs.edge_dst, costs.edge_src)
        self._readers = Csr.build(costs.num_ops, costs.edge_src, costs.edge_dst)
        self.time_s, self._latency_s, self._s_per_byte = lists.time_s, lists.latency_s, lists.s_per_byte

    def cut(self, line: UnitTimes, units: IntArray, begun_s: FloatArray, left_s: FloatArray) -> Windowed:
        """Return a window; units before it stay fixed, and those behind it move as one block.

        Args:
            units: Units of the window [W], which are consecutive in ``line.place``.
            begun_s: Seconds at which devices finish what comes before [D].
            left_s: Seconds that devices still run behind the window [D].
        """
        first, last = line.place[units[0]], line.place[units[-1]]
        sent_s, tail_s = np.zeros((2, len(units), len(begun_s)))
        tail_s[:] = left_s
        at, edges = _edges_of(self._inputs, units)
        away = self.costs.edge_src[edges]
        before = line.place[away] < first
        at, edges, away = at[before], edges[before], away[before]
        np.maximum.at(sent_s, at, line.end_s[away][:, None] + self._link_s(edges, line.device[away]))
        at, edges = _edges_of(self._readers, units)
        away = self.costs.edge_dst[edges]
        behind = line.place[away] > last
        due_s = (line.total_s - line.start_s[away[behind]])[:, None]
        np.maximum.at(tail_s, at[behind], due_s + self._link_s(edges[behind], line.device[away[behind]], is_sent=True))
        inside = (line.place[away] >= first) & ~behind
        pairs = np.stack([at[inside], line.place[away[inside]] - first])
        size_bytes = self.costs.edge_bytes[edges[inside]]
        lists = lists_for(self.time_s[units], pairs, size_bytes, self._latency_s, self._s_per_byte, sent_s, begun_s)
        return Windowed(lists, tail_s, np.array([(begun_s + left_s).max()]))

    def _link_s(self, edges: IntArray, device: IntArray, *, is_sent: bool = False) -> FloatArray:
        """Return the seconds [E, D] of the transfer of each edge between its ``device`` [E] and every device.

        Transfers start at ``device``, or end there if ``is_sent``.
        """
        latency_s, s_per_byte = self._latency_s, self._s_per_byte
        if is_sent:
            latency_s, s_per_byte = latency_s.T, s_per_byte.T
        seconds: FloatArray = latency_s[device] + self.costs.edge_bytes[edges][:, None] * s_per_byte[device]
        return seconds

    def windows(self, line: UnitTimes, size: int, offset: int) -> list[tuple[IntArray, Windowed]]:
        """Cut a schedule into disjoint windows of ``size`` units that are neighbours in time.

        The first of them starts at place ``offset``; what comes before is a window of its own.
        """
        order = inverse_of(line.place)
        sent, read = line.place[self.costs.edge_src], line.place[self.costs.edge_dst]
        passing = np.flatnonzero(read - sent > size)  # edges that may begin before a window and end behind it
        bounds = sorted({0, *range(offset, len(order), size), len(order)})
        on = [np.flatnonzero(line.device[order] == d) for d in range(self.costs.num_devices)]
        windows = []
        for first, last in itertools.pairwise(bounds):
            units = order[first:last]
            begun_s, left_s = np.zeros((2, self.costs.num_devices))
            for d, places in enumerate(on):
                before, behind = np.searchsorted(places, (first, last))
                begun_s[d] = line.end_s[order[places[before - 1]]] if before > 0 else 0.0
                left_s[d] = line.total_s - line.start_s[order[places[behind]]] if behind < len(places) else 0.0
            window = self.cut(line, units, begun_s, left_s)
            over = passing[(sent[passing] < first) & (read[passing] >= last)]
            due_s = (line.total_s - line.start_s[self.costs.edge_dst[over]])[:, None]
            tail_s = self._link_s(over, line.device[self.costs.edge_dst[over]], is_sent=True) + due_s
            home = line.device[self.costs.edge_src[over]]
            past_s = line.end_s[self.costs.edge_src[over]] + tail_s[np.arange(len(over)), home]
            window.least_s[0] = max(window.least_s[0], past_s.max(initial=0.0))
            windows.append((units, window))
        return windows


def _edges_of(csr: Csr, units: IntArray) -> tuple[IntArray, IntArray]:
    """Return all edges of ``units``, unit by unit: the position of the unit in ``units``, and the edge."""
    counts = csr.indptr[units + 1] - csr.indptr[units]
    at = np.repeat(np.arange(len(units)), counts)
    shift = np.repeat(csr.indptr[units] - np.append(0, np.cumsum(counts)[:-1]), counts)
    return at, csr.edges[np.arange(len(at)) + shift]


@dataclass(frozen=True, eq=False)
class WindowResult:
    """Result of the search of one window."""

    units: IntArray  # [W]
    device: IntArray  # [W]
    end_s: FloatArray  # [W]
    gain_s: float


@dataclass(frozen=True)
class WindowsOptions:
    """Hyper-parameters of ``windows``. Raises OptionError for a value out of range."""

    smallest: int = 60
    """Number of units of a window in the first sweeps, where each step takes the least time."""
    size: int = 240
    """Largest number of units of a window; windows double when sweeps gain little."""
    proposals: int = 2000
    """Number of proposals for each window in the first sweep."""
    growth: float = 1.5
    """Factor by which each sweep makes more proposals than the one before."""
    hottest: float = 0.002
    """Temperature at the start of a window's search, as a share of the seconds that the window takes."""
    coldest: float = 0.0001
    """Temperature at the end of a window's search, as a share of the seconds that the window takes."""
    most_idle_sweeps: int = 4
    """Stop after this many sweeps in a row without a better plan."""

    def __post_init__(self) -> None:
        counts = self.smallest, self.size, self.proposals, self.most_idle_sweeps, self.growth
        if not (min(counts) >= 1 and np.isfinite(self.growth) and 0 < self.coldest <= self.hottest < np.inf):
            raise OptionError("windows takes counts and a growth of at least 1, and finite 0 < coldest <= hottest")


class WindowsPlacer(Placer[WindowsOptions]):
    """Annealing of windows of a schedule (Kirkpatrick et al. 1983), for graphs whose whole simulation takes long.

    A window is some hundred units that are neighbours in time. It is list-scheduled between the fixed units before it
    and those behind it, which move as one block. Every second window is searched in parallel; then the whole plan is
    simulated with their results. The next sweeps take the other windows, and windows that begin in the middle of these.
    The same seed and number of sweeps give the same result on any number of threads.
    """

    name = "windows"
    objectives = ("latency",)
    executions = (Execution.WORK_CONSERVING,)
    options_type = WindowsOptions
    gives_order = True
    is_seeded = True

    def _search(self, incumbent: Incumbent) -> Status:
        incumbent.evaluate(list(incumbent.limits.known) or list(HeftPlacer().proposals(incumbent.problem, 0)))
        with ThreadPoolExecutor(max(incumbent.limits.num_workers, 1)) as pool:
            sweeps = Sweeps(incumbent, self.options, pool)
            idle = 0
            while idle < self.options.most_idle_sweeps:
                before = incumbent.best_score
                size = sweeps.size
                sweeps.sweep()
                has_gained = incumbent.best_score < before * (1 - LEAST_GAIN)
                idle = 0 if has_gained or sweeps.size > size else idle + 1
        return Status.FEASIBLE

    def prepare(self, problem: Problem, *, takes_order: bool) -> None:  # noqa: ARG002
        if problem.costs is None or not has_schedule(problem):
            return
        line = UnitTimes.of(problem, Plan(problem.supported.argmax(axis=1)), takes_order=False)
        units = inverse_of(line.place)[:2]
        window = WindowCutter(problem.costs).cut(line, units, *np.zeros((2, problem.num_devices)))
        searched(window, line.device[units], 1, (1.0, 1.0), seed=0)


def has_schedule(problem: Problem) -> bool:
    """Return whether plans of the problem are valued by a schedule that windows can be cut out of."""
    return problem.objective == LATENCY and problem.semantics.execution is Execution.WORK_CONSERVING


class Sweeps:
    """Sweeps of windows over the best plan of a search, which are searched on the threads of ``pool``."""

    def __init__(self, incumbent: Incumbent, options: WindowsOptions, pool: ThreadPoolExecutor) -> None:
        self._incumbent = incumbent
        self._options = options
        self._cutter = WindowCutter(incumbent.costs)
        self._pool = pool
        self._rng = np.random.default_rng(incumbent.limits.seed)
        self._proposals, self._number = options.proposals, 0
        self.size = min(options.smallest, options.size)
        self._before = incumbent.best_score

    def sweep(self) -> None:
        """Search every second window once.

        Raises SearchStopped when the search has to end, or if evaluations do not suffice for a proposal per window.
        """
        incumbent, size = self._incumbent, self.size
        if incumbent.best is None:
            return
        line = UnitTimes.of(incumbent.problem, incumbent.best, takes_order=incumbent.takes_order)
        windows = self._cutter.windows(line, size, self._number % 2 * (size // 2))
        windows = windows[self._number // 2 % 2 :: 2] or windows  # adjacent ones would each take the other as fixed
        if (num := int(min(self._proposals, incumbent.evaluations_left // len(windows)))) < 1:
            raise SearchStopped
        seeds = self._rng.integers(1 << 62, size=len(windows)).tolist()
        tasks, pieces = list[Future[WindowResult]](), list[WindowResult]()
        try:
            for window, seed in zip(windows, seeds, strict=True):
                tasks.append(self._pool.submit(self._search, line, *window, num, seed))
            for task in tasks:
                piece = task.result()
                incumbent.report(count=num)
                incumbent.check()
                if piece.gain_s > LEAST_GAIN * line.total_s:
                    pieces.append(piece)
        finally:
            for task in tasks:
                task.cancel()
            self._join(line, pieces)
        self._proposals = int(self._proposals * self._options.growth)
        self._number += 1
        if self._number % SWEEPS_OF_SIZE == 0:
            if incumbent.best_score > self._before * (1 - GAIN_OF_SIZE):
                self.size = min(2 * self.size, self._options.size)
            self._before = incumbent.best_score

    def _search(self, line: UnitTimes, units: IntArray, window: Windowed, num: int, seed: int) -> WindowResult:
        o = self._options
        gain_s = searched(window, line.device[units], num, (o.hottest, o.coldest), seed)
        return WindowResult(units, window.lists.device, window.lists.end_s, gain_s)

    def _join(self, line: UnitTimes, pieces: Sequence[WindowResult]) -> None:
        """Evaluate the plan with the results of the windows; if it is no better, try each half of them."""
        if not pieces:
            return
        before = self._incumbent.best_score
        device, order = joined_pieces(line, pieces)
        ordered = [Plan(device, order)] if self._incumbent.takes_order else []
        self._incumbent.report([*ordered, Plan(device)])
        if self._incumbent.best_score >= before and len(pieces) > 1:
            self._join(line, pieces[: len(pieces) // 2])
            if self._incumbent.best_score >= before:
                self._join(line, pieces[len(pieces) // 2 :])


def searched(window: Windowed, pin: IntArray, num: int, heat: tuple[float, float], seed: int) -> float:
    """Anneal a window by ``num`` proposals, leave its best schedule in ``window.lists``, and return the seconds gained.

    Args:
        pin: Devices of the units at the start [W], in their order; with an odd ``seed`` the list scheduler is free to
            choose others at the start.
        heat: Temperatures at the start and the end, as shares of the seconds that the window takes.
    """
    lists = window.lists
    order = np.arange(len(pin))
    able = np.pad(np.isfinite(lists.time_s), ((0, 0), (0, 1)), constant_values=True)
    share = np.zeros(max(MOVES_OF_LISTS) + 1)
    share[list(MOVES_OF_LISTS)] = list(MOVES_OF_LISTS.values())
    chain = chain_of(able, np.stack([np.repeat(order, np.diff(lists.first)), lists.reader]), order, share, seed)
    chain.device[:], chain.rank[:] = pin, order
    window.propose(chain, 0)
    span_s = float(lists.end_s.max() - starts_of(lists).min())
    before_s = float(chain.state["value"][0])
    if seed % 2:
        chain.device[:] = lists.time_s.shape[1]
        window.propose(chain, 0)
    chain.state["temperature"], chain.state["cooling"] = heat[0] * span_s, (heat[1] / heat[0]) ** (1.0 / num)
    window.propose(chain, num)
    schedule(lists, chain.best_device, chain.best_rank)
    return before_s - float(chain.state["best"][0])


def starts_of(lists: Lists) -> FloatArray:
    """Return when units of the last schedule start, in seconds [U]."""
    return np.asarray(lists.end_s - lists.time_s[np.arange(len(lists.device)), lists.device], dtype=np.float64)


def joined_pieces(line: UnitTimes, pieces: Sequence[WindowResult]) -> tuple[IntArray, IntArray]:
    """Return devices [U] and ranks [U] of a schedule with the pieces put in; all units behind one gain its seconds."""
    device, end_s = line.device.copy(), line.end_s.copy()
    gained_s = np.zeros(len(device) + 1)
    for piece in pieces:
        gained_s[line.place[piece.units].max() + 1] += piece.gain_s
    gained_s = np.cumsum(gained_s)[:-1]
    end_s -= gained_s[line.place]
    for piece in pieces:
        device[piece.units] = piece.device
        end_s[piece.units] = piece.end_s - gained_s[line.place[piece.units]]
    return device, priority_by_end(end_s, line.place)
