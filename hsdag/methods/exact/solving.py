"""Run CP-SAT with solutions reported as they come, a time limit and early stops; represent time in whole ticks."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from ortools.sat.python import cp_model

from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.incumbent import Limits

MOST_TICKS = 2**30
"""Most ticks of a horizon; the presolve of OR-Tools 9.15 fails where products of two times exceed 64 bits."""
MOST_COUNTED = 2**62
ONE_ROUNDING, ROUNDINGS = 1e-14, 1e-12
"""Relative rounding error of one double, and of a sum of many, when counted in ticks."""
BEYOND = 1e-9
"""Share of the horizon by which a duration must exceed it to be too long, which allows for rounding in sums."""


@dataclass(frozen=True)
class Ticks:
    """Durations as whole numbers of ``length_s``, rounded down, so that a schedule's ticks bound its time from below.

    For starts and durations of any schedule, floor(s + d) >= floor(s) + floor(d), so every schedule in seconds is one
    in ticks. ``is_exact`` says that no duration was rounded. Durations are cut at ``most`` ticks, for which no schedule
    within the horizon has room.
    """

    length_s: float
    is_exact: bool = False
    most: int = MOST_COUNTED

    @staticmethod
    def choose(durations_s: Iterable[ArrayLike], horizon_s: float) -> Ticks:
        """Return ticks of the largest power of ten that divides all durations, or else of a small share of the horizon.

        Durations beyond the horizon are ignored, since no schedule within it contains them. NaN stands for a missing
        duration.
        """
        values = np.concatenate([np.ravel(np.asarray(table, dtype=np.float64)) for table in durations_s])
        values = np.unique(values[values <= horizon_s * (1 + BEYOND)])
        for power in range(3, -16, -1):
            length_s = 10.0**power
            if horizon_s / length_s > MOST_TICKS:
                break
            counts = values / length_s
            if np.all(np.abs(counts - np.rint(counts)) <= ONE_ROUNDING * np.maximum(np.rint(counts), 0.5)):
                return Ticks(length_s, True, _beyond(horizon_s / length_s))
        return Ticks(horizon_s / MOST_TICKS, most=_beyond(MOST_TICKS))

    def down(self, seconds: ArrayLike) -> IntArray:
        """Return the whole ticks within ``seconds``, at most ``most``; 0 for NaN."""
        counts = np.minimum(np.nan_to_num(np.asarray(seconds, dtype=np.float64) / self.length_s, nan=0.0), self.most)
        nearest = np.rint(counts)
        near = np.abs(counts - nearest) <= ROUNDINGS * np.maximum(nearest, 0.5)
        return np.where(near, nearest, np.floor(counts)).astype(np.int64)

    def seconds(self, ticks: ArrayLike) -> FloatArray:
        """Convert ticks to seconds."""
        return np.asarray(np.asarray(ticks, dtype=np.float64) * self.length_s, dtype=np.float64)


def _beyond(horizon_ticks: float) -> int:
    """Return more ticks than any model with this horizon has: one for rounding, and what durations may exceed it by."""
    return int(np.ceil(horizon_ticks * (1 + BEYOND))) + 2


POLL_S = 0.05
"""Seconds between calls of ``on_wait`` while a solver runs."""

T = TypeVar("T")


class CpSatModel(ABC, Generic[T]):
    """A CP-SAT model that minimises, and that can interpret its solutions."""

    model: cp_model.CpModel

    @abstractmethod
    def read(self, value: Callable[[cp_model.IntVar], int]) -> T:
        """Return the solution that the values of the variables describe."""


@dataclass(frozen=True, eq=False)
class SolverAnswer(Generic[T]):
    """A solver's final answer: the best solution, its value and the proven bound, in the model's unit.

    The bound is infinite if there is no solution.
    """

    bound: float
    value: float | None = None
    solution: T | None = None


def solve_model(
    model: CpSatModel[T],
    limits: Limits,
    on_solution: Callable[[T], object] = lambda _: None,
    on_wait: Callable[[float], None] = lambda _: None,
) -> SolverAnswer[T]:
    """Solve a model; pass every better solution to ``on_solution`` and, regularly, the bound in ticks to ``on_wait``.

    Both are called in the calling thread; their exceptions end the solver and reach the caller. Equal limits and seeds
    give equal answers unless time runs out.
    """
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(min(limits.seconds, 1e9), 1e-3)
    solver.parameters.num_workers = limits.num_workers
    solver.parameters.random_seed = limits.seed % 2**31
    solver.parameters.catch_sigint_signal = False
    solutions = _Solutions(model)
    ended, bounds = list[cp_model.CpSolverStatus](), [0.0]
    solver.best_bound_callback = bounds.append
    thread = threading.Thread(target=lambda: ended.append(solver.solve(model.model, solutions)), daemon=True)
    thread.start()
    deadline = time.monotonic() + limits.seconds
    try:
        while thread.is_alive() or not solutions.queue.empty():
            try:
                on_solution(solutions.queue.get(timeout=POLL_S))
            except queue.Empty:
                on_wait(whole_bound(bounds[-1]))
            if time.monotonic() > deadline:
                solutions.is_over = True
                solver.stop_search()
    finally:
        solutions.is_over = True
        while thread.is_alive():  # the solver ignores a stop before its search begins
            solver.stop_search()
            thread.join(POLL_S)
    return _answer(model, solver, ended[0])


class _Solutions(cp_model.CpSolverSolutionCallback, Generic[T]):
    """Callback that puts solutions into a queue; it is called in threads of the solver."""

    def __init__(self, model: CpSatModel[T]) -> None:
        super().__init__()
        self.queue: queue.Queue[T] = queue.Queue()
        self.is_over = False
        self._model = model

    def on_solution_callback(self) -> None:
        self.queue.put(self._model.read(self.value))
        if self.is_over:
            self.stop_search()


def _answer(model: CpSatModel[T], solver: cp_model.CpSolver, status: cp_model.CpSolverStatus) -> SolverAnswer[T]:
    """Return the solver's answer after it has ended."""
    if status == cp_model.INFEASIBLE:
        return SolverAnswer(np.inf)
    assert status != cp_model.MODEL_INVALID, model.model.validate()
    bound = whole_bound(solver.best_objective_bound)
    if status == cp_model.UNKNOWN:
        return SolverAnswer(bound)
    return SolverAnswer(bound, round(solver.objective_value), model.read(solver.value))


def whole_bound(bound: float) -> int:
    """Round a bound up to whole ticks, allowing for the solver's rounding; at least 0."""
    return int(min(max(np.ceil(bound - 1e-6 * max(1.0, abs(bound) * 1e-9)), 0.0), MOST_COUNTED))
