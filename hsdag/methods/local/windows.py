"""WindowsPlacer: pieces of a schedule are searched again while the rest stands still: a step costs a piece, not all.

Legend: U placement units, W units of a window, E edges, D devices.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.computation_graph import Csr, FloatArray, IntArray, inverse_of
from hsdag.ir.kernels import bare
from hsdag.methods.base import Placer
from hsdag.methods.incumbent import LEAST_GAIN, Incumbent, Status
from hsdag.methods.lists.schedulers import HeftPlacer
from hsdag.methods.local.chain import Chain, chain_of, draw, end_proposal, is_kept
from hsdag.methods.local.sa import MOVES_OF_LISTS
from hsdag.methods.local.values import Lists, lists_for, lists_of, schedule
from hsdag.runtime.objectives import LATENCY
from hsdag.runtime.problem.plan import Plan, priority_by_end
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution
from hsdag.scoring.base import SearchStopped
from hsdag.scoring.schedule import ScheduleEvaluator

SWEEPS_OF_SIZE, GAIN_OF_SIZE = 4, 0.01
"""Sweeps that search every op with others before it and behind it; and the share that they gain, or windows grow."""


class Windowed(NamedTuple):
    """List schedules of a window, and what stands behind it."""

    lists: Lists
    tail_s: FloatArray  # [W, D] seconds from a unit's end on a device to the end of the whole schedule
    least_s: FloatArray  # [1] when that ends, were there no window

    def propose(self, c: Chain, num: int) -> None:
        """See ``Values``."""
        _propose_windowed(self, c, num)


@bare
def _propose_windowed(g: Windowed, c: Chain, num: int) -> None:
    for _ in range(max(num, 1)):
        limit = draw(c, num)
        if c.state[0].num_changed > 0:
            schedule(g.lists, c.device, c.rank)
            whole_s = g.least_s[0]  # until what stands behind the window has ended, moved as a block
            for u in range(len(g.tail_s)):
                whole_s = max(whole_s, g.lists.end_s[u] + g.tail_s[u, g.lists.device[u]])
            is_kept(c, whole_s, limit)
            end_proposal(c)


@dataclass(frozen=True, eq=False)
class Timeline:
    """When units run, as far as that is known: those of a lower place are before those of a higher one."""

    place: IntArray  # [U]
    device: IntArray  # [U]
    start_s: FloatArray  # [U] infinite for units of which nothing is known
    end_s: FloatArray  # [U] with the overhead that follows
    total_s: float

    @staticmethod
    def of(problem: Problem, plan: Plan, *, takes_order: bool) -> Timeline:
        """The simulated one of a plan. Raises ValueError for a problem without costs."""
        costs, of_op = problem.simulated
        run = ScheduleEvaluator.of(problem).run(plan if takes_order else plan.unordered)
        start_s, end_s = np.full(problem.num_units, np.inf), np.zeros(problem.num_units)
        np.minimum.at(start_s, of_op, run.start_s)
        np.maximum.at(end_s, of_op, run.end_s + costs.op_overhead_s)
        place = inverse_of(np.lexsort((problem.units.graph.position, end_s, start_s)))
        return Timeline(place, plan.placement, start_s, end_s, run.makespan_s)


class WindowCutter:
    """Cuts windows out of schedules of one problem."""

    def __init__(self, costs: ScheduleProblem) -> None:
        lists = lists_of(costs)
        self.costs = costs
        self._inputs = Csr.build(costs.num_ops, costs.edge_dst, costs.edge_src)
        self._readers = Csr.build(costs.num_ops, costs.edge_src, costs.edge_dst)
        self.time_s, self._latency_s, self._s_per_byte = lists.time_s, lists.latency_s, lists.s_per_byte

    def cut(self, line: Timeline, units: IntArray, begun_s: FloatArray, left_s: FloatArray) -> Windowed:
        """The window of ``units`` [W], of places in a row.

        What has a lower place stands, and what has a higher one ends the schedule as a block. ``begun_s`` [D] is when
        devices are there, ``left_s`` [D] what they still run behind the window.
        """
        first, last = line.place[units[0]], line.place[units[-1]]
        sent_s, tail_s = np.zeros((2, len(units), len(begun_s)))
        tail_s[:] = left_s
        own, edges = _edges_of(self._inputs, units)
        away = self.costs.edge_src[edges]
        known = line.place[away] < first
        own, edges, away = own[known], edges[known], away[known]
        np.maximum.at(sent_s, own, line.end_s[away][:, None] + self._link_s(edges, line.device[away]))
        own, edges = _edges_of(self._readers, units)
        away = self.costs.edge_dst[edges]
        behind = line.place[away] > last
        due_s = (line.total_s - line.start_s[away[behind]])[:, None]
        np.maximum.at(tail_s, own[behind], due_s + self._link_s(edges[behind], line.device[away[behind]], is_sent=True))
        inside = (line.place[away] >= first) & ~behind
        pairs = np.stack([own[inside], line.place[away[inside]] - first])
        size_bytes = self.costs.edge_bytes[edges[inside]]
        lists = lists_for(self.time_s[units], pairs, size_bytes, self._latency_s, self._s_per_byte, sent_s, begun_s)
        return Windowed(lists, tail_s, np.array([(begun_s + left_s).max()]))

    def _link_s(self, edges: IntArray, device: IntArray, *, is_sent: bool = False) -> FloatArray:
        """[E, D] what edges cost from ``device`` [E] to every other, or, of those that are sent, from these to it."""
        latency_s, s_per_byte = self._latency_s, self._s_per_byte
        if is_sent:
            latency_s, s_per_byte = latency_s.T, s_per_byte.T
        found: FloatArray = latency_s[device] + self.costs.edge_bytes[edges][:, None] * s_per_byte[device]
        return found

    def windows(self, line: Timeline, size: int, offset: int) -> list[tuple[IntArray, Windowed]]:
        """Disjoint windows of ``size`` neighbours in time from a place on, and one of what is before that."""
        order = inverse_of(line.place)
        sent, read = line.place[self.costs.edge_src], line.place[self.costs.edge_dst]
        passing = np.flatnonzero(read - sent > size)  # edges that could pass over a window
        bounds = sorted({0, *range(offset, len(order), size), len(order)})
        on = [np.flatnonzero(line.device[order] == d) for d in range(self.costs.num_devices)]
        found = []
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
            found.append((units, window))
        return found


def _edges_of(csr: Csr, units: IntArray) -> tuple[IntArray, IntArray]:
    """Of each unit's edges, its place among ``units`` and the edge, unit by unit."""
    counts = csr.indptr[units + 1] - csr.indptr[units]
    own = np.repeat(np.arange(len(units)), counts)
    shift = np.repeat(csr.indptr[units] - np.append(0, np.cumsum(counts)[:-1]), counts)
    return own, csr.edges[np.arange(len(own)) + shift]


@dataclass(frozen=True, eq=False)
class Piece:
    """What a search of a window has found."""

    units: IntArray  # [W]
    device: IntArray  # [W]
    end_s: FloatArray  # [W]
    gain_s: float


@dataclass(frozen=True)
class WindowsOptions:
    """Raises OptionError for a value out of range."""

    smallest: int = 60
    """Units of a window at first, which is searched in the least time;"""
    size: int = 240
    """and at last: windows double where all of them together gain little."""
    proposals: int = 2000
    """For each window in the first sweep; the next ones make more,"""
    growth: float = 1.5
    """by this factor each."""
    hottest: float = 0.002
    """The temperature at the beginning of a window's search, as a share of the seconds that the window takes,"""
    coldest: float = 0.0001
    """and at its end."""
    most_idle_sweeps: int = 4
    """Sweeps in a row without a better plan after which the search ends."""

    def __post_init__(self) -> None:
        counts = self.smallest, self.size, self.proposals, self.most_idle_sweeps, self.growth
        if not (min(counts) >= 1 and np.isfinite(self.growth) and 0 < self.coldest <= self.hottest < np.inf):
            raise OptionError("windows takes counts and a growth of at least 1, and finite 0 < coldest <= hottest")


class WindowsPlacer(Placer[WindowsOptions]):
    """Annealing of windows of a schedule (Kirkpatrick et al. 1983), for graphs of which a whole simulation takes long.

    A window is some hundred neighbours in time. It is scheduled by lists between what stands before it and what stands
    behind it, which moves as a block. Every other window is searched at once; what they gain counts when the whole plan
    is simulated. The next sweep's windows begin in the middle of these. The same seed and number of sweeps give
    the same search on any number of threads.
    """

    name = "windows"
    objectives = ("latency",)
    executions = (Execution.WORK_CONSERVING,)
    options_type = WindowsOptions
    gives_order = True
    is_seeded = True

    def _search(self, incumbent: Incumbent) -> Status:
        incumbent.evaluate(list(incumbent.limits.known) or list(HeftPlacer().proposals(incumbent.problem, 0)))
        with Sweeps(incumbent, self.options) as sweeps:
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
        line = Timeline.of(problem, Plan(problem.supported.argmax(axis=1)), takes_order=False)
        units = inverse_of(line.place)[:2]
        window = WindowCutter(problem.costs).cut(line, units, *np.zeros((2, problem.num_devices)))
        searched(window, line.device[units], 1, (1.0, 1.0), seed=0)


def has_schedule(problem: Problem) -> bool:
    """Whether plans are judged by a schedule, which windows can be cut out of."""
    return problem.objective == LATENCY and problem.semantics.execution is Execution.WORK_CONSERVING


class Sweeps(AbstractContextManager["Sweeps"]):
    """Sweeps of windows over the best plan of a search; use as a context manager, which ends the threads."""

    def __init__(self, incumbent: Incumbent, options: WindowsOptions) -> None:
        self._incumbent = incumbent
        self._options = options
        self._cutter = WindowCutter(incumbent.costs)
        self._pool = ThreadPoolExecutor(max(incumbent.limits.num_workers, 1))
        self._rng = np.random.default_rng(incumbent.limits.seed)
        self._proposals, self._number = options.proposals, 0
        self.size = min(options.smallest, options.size)
        self._before = incumbent.best_score

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def sweep(self) -> None:
        """Search every other window once. Raises SearchStopped in between, and where not each may have a proposal."""
        incumbent, size = self._incumbent, self.size
        if incumbent.best is None:
            return
        line = Timeline.of(incumbent.problem, incumbent.best, takes_order=incumbent.takes_order)
        windows = self._cutter.windows(line, size, self._number % 2 * (size // 2))
        windows = windows[self._number // 2 % 2 :: 2] or windows  # side by side they would not know of each other
        if (num := int(min(self._proposals, incumbent.evaluations_left // len(windows)))) < 1:
            raise SearchStopped
        seeds = self._rng.integers(1 << 62, size=len(windows)).tolist()
        tasks = [
            self._pool.submit(self._search, line, *window, num, seed)
            for window, seed in zip(windows, seeds, strict=True)
        ]
        found: list[Piece] = []
        try:
            for task in tasks:
                piece = task.result()
                incumbent.report(count=num)
                incumbent.check()
                if piece.gain_s > LEAST_GAIN * line.total_s:
                    found.append(piece)
        finally:
            for task in tasks:
                task.cancel()
            self._join(line, found)
        self._proposals = int(self._proposals * self._options.growth)
        self._number += 1
        if self._number % SWEEPS_OF_SIZE == 0:
            if incumbent.best_score > self._before * (1 - GAIN_OF_SIZE):
                self.size = min(2 * self.size, self._options.size)
            self._before = incumbent.best_score

    def _search(self, line: Timeline, units: IntArray, window: Windowed, num: int, seed: int) -> Piece:
        o = self._options
        gain_s = searched(window, line.device[units], num, (o.hottest, o.coldest), seed)
        return Piece(units, window.lists.device, window.lists.end_s, gain_s)

    def _join(self, line: Timeline, pieces: Sequence[Piece]) -> None:
        """Have the plan evaluated with what the windows have found, where that is no better with halves of it."""
        if not pieces:
            return
        before = self._incumbent.best_score
        device, order = joined(line, pieces)
        ordered = [Plan(device, order)] if self._incumbent.takes_order else []
        self._incumbent.report([*ordered, Plan(device)])
        if self._incumbent.best_score >= before and len(pieces) > 1:
            self._join(line, pieces[: len(pieces) // 2])
            if self._incumbent.best_score >= before:
                self._join(line, pieces[len(pieces) // 2 :])


def searched(window: Windowed, pin: IntArray, num: int, heat: tuple[float, float], seed: int) -> float:
    """Let ``num`` proposals search from pins [W] in this order, with an odd ``seed`` without pins; the seconds gained.

    The window's lists have the best schedule then. ``heat`` are the temperatures at the beginning and the end, as
    shares of what the window takes.
    """
    lists = window.lists
    own = np.arange(len(pin))
    able = np.pad(np.isfinite(lists.time_s), ((0, 0), (0, 1)), constant_values=True)
    share = np.zeros(max(MOVES_OF_LISTS) + 1)
    share[list(MOVES_OF_LISTS)] = list(MOVES_OF_LISTS.values())
    chain = chain_of(able, np.stack([np.repeat(own, np.diff(lists.first)), lists.reader]), own, share, seed)
    chain.device[:], chain.rank[:] = pin, own
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
    """[U] when units of the last schedule start."""
    return np.asarray(lists.end_s - lists.time_s[np.arange(len(lists.device)), lists.device], dtype=np.float64)


def joined(line: Timeline, pieces: Sequence[Piece]) -> tuple[IntArray, IntArray]:
    """Devices [U] and ranks [U] of a schedule with pieces put in; what each gains, all behind it does."""
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
