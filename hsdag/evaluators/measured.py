"""Measured evaluation: every placement is compiled and run by its executor in the worker process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hsdag.evaluators.base import Evaluator, Score
from hsdag.evaluators.bench import Bench, Objection
from hsdag.evaluators.measurement import SearchMeasurement
from hsdag.evaluators.schedule import UNSUPPORTED
from hsdag.ir.device import DeviceSpec
from hsdag.ir.placement import ExecutorName
from hsdag.runtime.measuring.candidate import Candidate, CandidateRunner
from hsdag.runtime.problems.plan import Plan
from hsdag.runtime.problems.problem import Problem
from hsdag.runtime.problems.semantics import Execution


def candidate_of(problem: Problem, devices: Sequence[DeviceSpec], plan: Plan, executor: ExecutorName) -> Candidate:
    """A plan over ``devices`` as something to compile for an executor; HETERO takes no order."""
    names = [spec.openvino_name for spec in devices]
    of_ops = [names[d] for d in problem.expand(plan.placement).tolist()]
    if executor == "hetero":
        return Candidate.placed(of_ops)
    ranks = None if plan.order is None else problem.expand(plan.order).tolist()
    return Candidate.side_by_side(of_ops, names, ranks, problem.objective, executor)


class MeasuredEvaluator(Evaluator):
    """Latency (or period) of plans, measured one at a time on ``bench``.

    ``objection`` says of an open candidate why it is none, and then it is not timed.
    """

    def __init__(
        self,
        problem: Problem,
        devices: Sequence[DeviceSpec],
        runner: CandidateRunner,
        measurement: SearchMeasurement | None = None,
        executor: ExecutorName = "hetero",
        *,
        objection: Objection | None = None,
    ) -> None:
        self.problem, self.bench = problem, Bench(runner, measurement, objection)
        self._devices, self._executor = tuple(devices), executor
        self.takes_order = executor != "hetero" and problem.objective.uses_order(Execution.WORK_CONSERVING)
        self._best_s = np.inf

    def candidate(self, plan: Plan) -> Candidate:
        """What is compiled of a plan."""
        return candidate_of(self.problem, self._devices, plan, self._executor)

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        """Compile and time each placement; those that fail, crash or hang say why."""
        return [self._evaluate(plan) for plan in plans]

    def _evaluate(self, plan: Plan) -> Score:
        if not self.problem.is_legal(plan.placement):
            return Score.failed(UNSUPPORTED)
        score = self.bench.alone(self.candidate(plan), self._best_s)
        self._best_s = min(self._best_s, score.value)
        return score
