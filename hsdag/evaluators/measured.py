"""Measured evaluation: every placement is compiled and run by its executor in the worker process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hsdag.evaluators.base import Evaluation, Evaluator
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph import IntArray
from hsdag.ir.placement import ExecutorName
from hsdag.runtime.measuring.candidate import Candidate, CandidateRunner
from hsdag.runtime.measuring.worker_client import CandidateFailed
from hsdag.runtime.problems.problem import Problem

_KEY = "search"


@dataclass(frozen=True)
class SearchMeasurement:
    """How a placement is measured during a search: ``warm_ups`` runs, then the median of up to ``runs``.

    A placement whose first runs are ``give_up`` times slower than the best so far is not measured further.
    The HSDAG paper (Table 2) takes 10 runs and the mean of the last 5: ``paper()``.
    """

    warm_ups: int = 2
    runs: int = 7
    give_up: float = 1.5
    use_mean: bool = False

    @staticmethod
    def paper() -> SearchMeasurement:
        """Table 2 of the HSDAG paper."""
        return SearchMeasurement(warm_ups=5, runs=5, give_up=float("inf"), use_mean=True)


def candidate_of(
    problem: Problem, devices: Sequence[DeviceSpec], placement: IntArray, executor: ExecutorName
) -> Candidate:
    """A placement [U] over ``devices`` as something to compile for an executor."""
    names = [spec.openvino_name for spec in devices]
    of_ops = [names[d] for d in problem.expand(placement).tolist()]
    if executor == "hetero":
        return Candidate.placed(of_ops)
    return Candidate.side_by_side(of_ops, names, objective=problem.objective)


class MeasuredEvaluator(Evaluator):
    """Latency (or period) of placements, measured one at a time."""

    def __init__(
        self,
        problem: Problem,
        devices: Sequence[DeviceSpec],
        runner: CandidateRunner,
        measurement: SearchMeasurement | None = None,
        executor: ExecutorName = "hetero",
    ) -> None:
        self.problem = problem
        self.measurement = measurement or SearchMeasurement()
        self._devices, self._executor = tuple(devices), executor
        self._runner = runner
        self._best_s = np.inf

    def candidate(self, placement: IntArray) -> Candidate:
        """The placement [U] as something to compile."""
        return candidate_of(self.problem, self._devices, placement, self._executor)

    def evaluate(self, placements: Sequence[IntArray]) -> list[Evaluation]:
        """Compile and time each placement; those that fail, crash or hang say why."""
        return [self._evaluate(placement) for placement in placements]

    def _evaluate(self, placement: IntArray) -> Evaluation:
        try:
            self._runner.open(_KEY, self.candidate(placement))
            seconds = self._seconds()
            self._runner.close(_KEY)
        except CandidateFailed as failure:
            return Evaluation(None, failure.reason)
        self._best_s = min(self._best_s, seconds)
        return Evaluation(seconds)

    def _seconds(self) -> float:
        how = self.measurement
        first = self._runner.run(_KEY, how.warm_ups)
        if min(first) > how.give_up * self._best_s:
            return float(min(first))
        times_s = self._runner.run(_KEY, how.runs)
        return float(np.mean(times_s) if how.use_mean else np.median(times_s))
