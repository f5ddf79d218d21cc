"""How a placement is measured during a search, and what becomes of those that fail."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from hsdag.base.processes import CandidateFailed
from hsdag.ir.device import parse_devices
from hsdag.ir.placement.placement import ExecutorName
from hsdag.runtime.measuring.messages import Candidate
from hsdag.runtime.measuring.runner import CandidateRunner
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.base import Score, SearchMeasurement
from hsdag.search.evaluators.measured import MeasuredEvaluator, candidate_of


@pytest.mark.parametrize(("best_s", "value", "counts"), [(math.inf, 3.0, [2, 7]), (1.9, 4.0, [2])])
def test_the_median_counts_and_what_is_far_slower_than_the_best_is_given_up(
    best_s: float, value: float, counts: list[int]
) -> None:
    asked: list[int] = []

    def run(count: int) -> list[float]:
        asked.append(count)
        return [4.0, 5.0] if count == 2 else [3.0] * 4 + [90.0] * 3

    assert SearchMeasurement(2, 7, 1.5).seconds(run, best_s) == value
    assert asked == counts


class Crashing:
    """Loses its worker to every split, and measures one second of all others."""

    def open(self, _: str, candidate: Candidate) -> None:
        if candidate.devices is not None:
            raise CandidateFailed("the worker was ended by SIGSEGV")

    def run(self, _: str, runs: int) -> list[float]:
        return [1.0] * runs

    def close(self, _: str) -> None:
        pass


def test_a_candidate_that_takes_the_worker_down_or_is_objected_to_is_a_failure_and_the_next_one_is_measured() -> None:
    problem, devices = problem_of(ScheduleProblem.from_arrays(np.ones((2, 2)), [(0, 1)])), parse_devices("A=CPU,B=CPU")
    plans, runner = [Plan(np.array(each)) for each in ([0, 1], [1, 1])], cast(CandidateRunner, Crashing())
    lost, objected = Score(failure="the worker was ended by SIGSEGV"), Score(failure="it differs")
    assert MeasuredEvaluator(problem, devices, runner).evaluate(plans) == [lost, Score(1.0)]
    strict = MeasuredEvaluator(problem, devices, runner, objection=lambda _: "it differs")
    assert strict.evaluate(plans) == [lost, objected]


@pytest.mark.parametrize(
    ("executor", "objective", "priority", "takes_order"),
    [("hetero", LATENCY, None, False), ("work-conserving", LATENCY, (1, 0), True), ("cuda", THROUGHPUT, (1, 0), False)],
)
def test_hetero_takes_no_order_and_a_period_hangs_on_none(
    executor: ExecutorName, objective: Objective, priority: tuple[int, ...] | None, takes_order: bool
) -> None:
    plain, devices = problem_of(ScheduleProblem.from_arrays(np.ones((2, 2)), [(0, 1)])), parse_devices("A=CPU,B=CPU")
    problem, plan = replace(plain, objective=objective), Plan(np.array([0, 1]), np.array([1, 0]))
    assert candidate_of(problem, devices, plan, executor).priority == priority
    assert candidate_of(problem, devices, plan.unordered, executor).priority is None
    measured = MeasuredEvaluator(problem, devices, cast(CandidateRunner, Crashing()), executor=executor)
    assert measured.takes_order is takes_order
