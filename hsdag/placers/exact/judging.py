"""Judging schedules of exact methods: every one is simulated before it counts, with the ranks it comes with.

Legend: U placement units, D devices.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from hsdag.evaluators.base import Evaluator
from hsdag.evaluators.schedule import one_inference, over_memory
from hsdag.ir.errors import SearchError
from hsdag.ir.graph import FloatArray, IntArray, inverse_of
from hsdag.placers.base import PlacerSettings
from hsdag.placers.registry import make_placer, method_names
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator import Order, simulate

HEURISTICS = ("heft", "cpop", "etf", "m-etf", "mincut", "greedy")
"""Those of a moment, whose best is where an exact method begins."""
MOST_UNITS_FOR_HEURISTICS = 20000
SHARE_OF_HEURISTIC = 0.25
"""What one heuristic may take of the budget that is left when it begins: the rest is for what comes after it."""


class OutOfTime(Exception):  # noqa: N818 - an ending we expect, not an error
    """A model could not be made in time."""


class Judge:
    """Keeps the best placement that was evaluated, and the best simulated order of it.

    ``best_s`` is the smaller of what the evaluator says and what the simulator says with the ranks, and
    ``best_after_s`` the seconds after which it was known.
    """

    def __init__(
        self, problem: Problem, costs: ScheduleProblem, evaluator: Evaluator, settings: PlacerSettings
    ) -> None:
        self.problem, self.costs, self._evaluator, self._settings = problem, costs, evaluator, settings
        semantics = settings.semantics
        self.is_ordered = problem.objective.uses_order(semantics.execution) and semantics.order in (
            None,
            Order.PRIORITY,
        )
        self.best_s = np.inf
        self.best: IntArray | None = None
        self.best_after_s = 0.0
        self._begin = time.monotonic()
        self._ranks: dict[bytes, tuple[float, IntArray]] = {}

    def consider(self, device: IntArray, ranks: IntArray | None = None) -> float:
        """Evaluate a placement [U], simulate it with ``ranks`` [U], and return the smaller of its legal values."""
        device = np.ascontiguousarray(device, dtype=np.int64)
        if self.is_ordered and ranks is not None:
            self._order(device, ranks)
        evaluation = self._evaluator.evaluate([device])[0]
        value_s = np.inf if evaluation.latency_s is None else evaluation.latency_s
        if device.tobytes() in self._ranks:
            value_s = min(value_s, self._ranks[device.tobytes()][0])
        if value_s < self.best_s:
            self.best_s, self.best, self.best_after_s = value_s, device, time.monotonic() - self._begin
        return value_s

    def _order(self, device: IntArray, ranks: IntArray) -> None:
        value_s = self.simulated_s(device, ranks)
        known = self._ranks.get(device.tobytes())
        if not np.isfinite(value_s) or (known is not None and known[0] <= value_s):
            return
        if np.isfinite(self.costs.memory_bytes).any():
            semantics = replace(one_inference(self._settings.semantics), order=Order.PRIORITY)
            peak = simulate(self.costs, device, semantics, ranks).peak_memory_bytes
            if over_memory(self.costs, peak).any():
                return
        self._ranks[device.tobytes()] = value_s, ranks

    def simulated_s(self, device: IntArray, ranks: IntArray) -> float:
        """Seconds that a placement [U] takes in the order of ``ranks`` [U], whether it fits into memory or not."""
        semantics = replace(self._settings.semantics, order=Order.PRIORITY)
        return float(self.problem.objective.simulated(self.costs, device[None], semantics, ranks)[0])

    def ranks(self, placement: IntArray) -> IntArray | None:
        """[U] the best order known of a placement, smallest first; None where there is none."""
        known = self._ranks.get(np.ascontiguousarray(placement, dtype=np.int64).tobytes())
        return None if known is None else known[1]

    def start_s(self, placement: IntArray) -> FloatArray:
        """[U] simulated starts under the best order known."""
        ranks = self.ranks(placement)
        order = Order.PRIORITY if ranks is not None else None
        semantics = replace(one_inference(self._settings.semantics), order=order)
        return simulate(self.costs, placement, semantics, ranks).start_s

    def wake(self) -> None:
        """Let the evaluator end the search: it is asked, and so is the best placement, where there is one, again."""
        self._evaluator.check()
        if self.best is not None:
            self._evaluator.evaluate([self.best])

    def left_s(self, deadline: float) -> float:
        """Seconds until ``deadline``, a moment of time.monotonic(), for those who make a model.

        Raises OutOfTime where there are none, SearchStopped when the evaluator does.
        """
        self._evaluator.check()
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise OutOfTime
        return left_s

    def warm_start(self) -> None:
        """Consider every single device and what the heuristics find."""
        num_units, num_devices = self.problem.num_units, self.problem.num_devices
        in_order = inverse_of(self.costs.topological_order)
        fastest = np.nanargmin(self.costs.time_s, axis=1)
        alone = [np.full(num_units, d) for d in range(num_devices)]
        for device in [*alone, fastest]:
            if self.problem.is_legal(device):
                self.consider(device, in_order)
        if num_units > MOST_UNITS_FOR_HEURISTICS:
            return
        for method in HEURISTICS:
            if method in method_names():
                self._try(method)

    def _try(self, method: str) -> None:
        """One heuristic, where it knows what to do, within its share of what is left."""
        left_s = max(self._settings.budget_s - (time.monotonic() - self._begin), 0.0)
        settings = replace(self._settings, preset="default", budget_s=SHARE_OF_HEURISTIC * left_s)
        placer = make_placer(method, settings)
        try:
            found = placer.search(self.problem, self._evaluator)
        except SearchError:
            return
        ranks = getattr(placer, "ranks", lambda _: None)(found)
        self.consider(found, ranks)


def start_ranks(costs: ScheduleProblem, start: np.ndarray) -> IntArray:
    """[U] ranks by start [U]; ties in topological order."""
    position = inverse_of(costs.topological_order)
    return inverse_of(np.lexsort((position, start)))
