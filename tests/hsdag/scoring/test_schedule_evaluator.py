"""The scheduled evaluator: simulated costs, memory limits, orders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Order, Semantics
from hsdag.runtime.simulator.simulation import simulate, simulate_makespans
from hsdag.runtime.simulator.values import period_s
from hsdag.scoring.memory import over_memory
from hsdag.scoring.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import every_placement, random_problem


def problem_of(seed: int, memory: float = np.inf) -> ScheduleProblem:
    tables: dict[str, Any] = {"weight_bytes": np.arange(5.0), "memory_bytes": memory, "launch_s": 0.2}
    return random_problem(seed, 5, real=True, shuffled=True, lacks=0.0, **tables)


@given(st.integers(0, 2**32), st.sampled_from([LATENCY, THROUGHPUT]), st.sampled_from(list(Execution)))
def test_evaluations_are_the_simulators_figures(seed: int, objective: Objective, how: Execution) -> None:
    problem, semantics = problem_of(seed), Semantics(how)
    placements = every_placement(problem)
    found = ScheduleEvaluator(problem, semantics, objective).evaluate([Plan(placement) for placement in placements])
    figures = {LATENCY: simulate_makespans, THROUGHPUT: period_s}[objective]
    assert [e.value for e in found] == figures(problem, placements, semantics).tolist()


@given(st.integers(0, 2**32), st.floats(6.0, 24.0))
def test_a_placement_fails_exactly_where_its_peak_exceeds_a_memory(seed: int, memory: float) -> None:
    problem = problem_of(seed, memory)
    placements = every_placement(problem)
    found = ScheduleEvaluator(problem, Semantics()).evaluate([Plan(placement) for placement in placements])
    for placement, evaluation in zip(placements, found, strict=True):
        fits = bool((simulate(problem, placement).peak_memory_bytes <= memory).all())
        assert (evaluation.failure is None) == fits
        assert fits or "the memory of d" in str(evaluation.failure)


@pytest.mark.parametrize(("held_bytes", "is_over"), [(0.3, False), (0.1 + 0.2, False), (0.30001, True)])
def test_a_memory_may_be_filled_and_rounding_exceeds_none(held_bytes: float, is_over: bool) -> None:
    problem = ScheduleProblem.from_arrays([[1.0]], [], memory_bytes=0.3)
    assert over_memory(problem, [held_bytes]).tolist() == [is_over]


def test_an_op_on_a_device_that_lacks_it_fails() -> None:
    problem = ScheduleProblem.from_arrays([[1.0, np.nan]], [])
    (evaluation,) = ScheduleEvaluator(problem, Semantics()).evaluate([Plan(np.array([1]))])
    assert evaluation.failure == "an op is on a device that does not support it"


def test_blocking_links_are_judged_by_the_period_and_their_memory_by_one_run() -> None:
    problem = problem_of(3, memory=36.0)
    evaluator = ScheduleEvaluator(problem, Semantics(links=Links.BLOCKING), THROUGHPUT)
    assert any(e.failure is None for e in evaluator.evaluate([Plan(each) for each in every_placement(problem)]))


def urgent() -> ScheduleProblem:
    """Two ops on one device: 'near' comes first by index, but 'far' waits for 'late' only."""
    return ScheduleProblem.from_arrays(
        [[5.0, 50.0], [1.0, 50.0], [50.0, 5.0]], [(1, 2)], op_names=["near", "late", "far"]
    )


def test_a_plan_is_scored_in_its_order() -> None:
    evaluator = ScheduleEvaluator(urgent(), Semantics())
    placement, order = np.array([0, 0, 1]), np.array([1, 0, 2])
    scores = evaluator.evaluate([Plan(placement), Plan(placement, order)])
    assert [score.value for score in scores] == [5.0 + 1 + 5, 1.0 + 5]


@pytest.mark.parametrize(
    ("semantics", "objective"),
    [
        (Semantics(order=Order.FIFO), LATENCY),
        (Semantics(Execution.SEQUENTIAL), LATENCY),
        (Semantics(), THROUGHPUT),
    ],
)
def test_an_order_does_not_matter_where_another_is_prescribed_or_none_is_defined(
    semantics: Semantics, objective: Objective
) -> None:
    evaluator = ScheduleEvaluator(urgent(), semantics, objective)
    plan = Plan(np.array([0, 0, 1]), np.array([1, 0, 2]))
    assert not evaluator.takes_order
    assert evaluator.ranks(plan) is None
    assert evaluator.evaluate([plan]) == evaluator.evaluate([plan.unordered])


def test_the_memory_of_a_plan_is_that_of_its_order() -> None:
    """Two chains on one device: one after the other takes 12 bytes, side by side 21 of the 13 there are."""
    crossed = ScheduleProblem.from_arrays(
        [[1.0]] * 4, [(0, 2), (1, 3)], output_bytes=[10.0, 10.0, 1.0, 1.0], memory_bytes=13.0
    )
    alone, in_turn = Plan(np.zeros(4, dtype=np.int64)), Plan(np.zeros(4, dtype=np.int64), np.array([0, 2, 1, 3]))
    failed, fits = ScheduleEvaluator(crossed, Semantics()).evaluate([alone, in_turn])
    assert failed.failure == "the memory of d0 is exceeded"
    assert fits.value == 4.0


def test_by_priority_a_plan_without_an_order_runs_in_topological_order() -> None:
    problem = urgent()
    evaluator = ScheduleEvaluator(problem, Semantics(order=Order.PRIORITY))
    plan = Plan(np.array([0, 0, 1]))
    ranks = evaluator.ranks(plan)
    assert ranks is not None
    assert problem.topological_order[ranks].tolist() == [0, 1, 2]
    by_rank = simulate(problem, plan.placement, Semantics(order=Order.PRIORITY), ranks)
    assert evaluator.evaluate([plan])[0].value == by_rank.makespan_s
