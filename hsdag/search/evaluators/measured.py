"""Evaluate placements by measuring: a worker process compiles and runs each of them under its executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np

from hsdag.base.processes import CandidateFailed
from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.ir.placement.placement import ExecutorName
from hsdag.runtime.measuring.messages import Candidate
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.search.evaluators.base import Evaluator, Score, SearchMeasurement
from hsdag.search.evaluators.schedule import UNSUPPORTED

Objection: TypeAlias = Callable[[str], str | None]
"""Function from an opened candidate's key to the reason to reject it, or None; rejected candidates are not timed."""
_KEY = "search"
"""Key under which the one open candidate is kept in the worker."""


def candidate_of(problem: Problem, devices: Sequence[DeviceSpec], plan: Plan, executor: ExecutorName) -> Candidate:
    """Return the candidate that runs a plan over ``devices`` under an executor; HETERO ignores the plan's order."""
    index = DeviceIndex.of(devices)
    of_ops = index.openvino_named(problem.expand(plan.placement).tolist())
    if executor == "hetero":
        return Candidate.placed(of_ops)
    priority = None if plan.priority is None else problem.expand(plan.priority).tolist()
    return Candidate.side_by_side(
        of_ops, index.openvino_names, priority, by_load=problem.objective.is_steady, executor=executor
    )


@dataclass(eq=False)
class MeasuredEvaluator(Evaluator):
    """Evaluator that measures plans one at a time: their latency, or their period, in seconds.

    Args:
        runner: Opens and runs candidates in its worker process.
        objection: Rejects opened candidates; None accepts all.
    """

    problem: Problem
    devices: Sequence[DeviceSpec]
    runner: CandidateRunner
    measurement: SearchMeasurement = field(default_factory=SearchMeasurement)
    executor: ExecutorName = "hetero"
    objection: Objection | None = None

    def __post_init__(self) -> None:
        self.takes_order = self.executor != "hetero" and self.problem.objective.depends_on_order
        self._best_s = np.inf

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Compile and time each plan; the score of one that fails, crashes or hangs has the reason."""
        return [self._evaluate(plan) for plan in plans]

    def _evaluate(self, plan: Plan) -> Score:
        if not self.problem.is_legal(plan.placement):
            return Score(failure=UNSUPPORTED)
        try:
            self.runner.open(_KEY, candidate_of(self.problem, self.devices, plan, self.executor))
            reason = None if self.objection is None else self.objection(_KEY)
            value = math.inf if reason else self.measurement.seconds(partial(self.runner.run, _KEY), self._best_s)
            self.runner.close(_KEY)
        except CandidateFailed as failure:
            return Score(failure=failure.reason)
        self._best_s = min(self._best_s, value)
        return Score(value, reason)
