"""The scheduled evaluator: simulated costs, memory limits, orders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.runtime.costs.hetero_costs import HeteroCosts
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective, find_objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Order, Semantics
from hsdag.runtime.problem.units import problem_of as units_of
from hsdag.runtime.simulator.simulation import simulate, simulate_makespans
from hsdag.runtime.simulator.values import period_s
from hsdag.search.evaluators.memory import MemoryCheck, is_split_forced, over_memory
from hsdag.search.evaluators.schedule import ModelEvaluator, ScheduleEvaluator, evaluator_of, model_values
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


def test_blocking_links_are_judged_by_the_period_and_their_memory_by_one_run() -> None:
    problem = problem_of(3, memory=36.0)
    evaluator = ScheduleEvaluator(problem, Semantics(links=LinkSharing.BLOCKING), THROUGHPUT)
    assert any(e.failure is None for e in evaluator.evaluate([Plan(each) for each in every_placement(problem)]))


def urgent() -> ScheduleProblem:
    """Two ops on one device: 'near' comes first by index, but 'far' waits for 'late' only."""
    return ScheduleProblem.from_arrays(
        [[5.0, 50.0], [1.0, 50.0], [50.0, 5.0]], [(1, 2)], op_names=["near", "late", "far"]
    )


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
    assert evaluator.priority(plan) is None
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
    problem, plan = urgent(), Plan(np.array([0, 0, 1]))
    evaluator = ScheduleEvaluator(problem, Semantics(order=Order.PRIORITY))
    assert problem.topological_order[evaluator.priority(plan)].tolist() == [0, 1, 2]
    by_rank = simulate(problem, plan.placement, Semantics(order=Order.PRIORITY), evaluator.priority(plan))
    assert evaluator.evaluate([plan])[0].value == by_rank.makespan_s


def test_what_an_op_lacks_or_no_memory_holds_has_no_value() -> None:
    (lacking,) = ScheduleEvaluator(ScheduleProblem.from_arrays([[1.0, np.nan]], []), Semantics()).evaluate(
        [Plan(np.array([1]))]
    )
    assert lacking.failure == "an op is on a device that does not support it"
    problem = ScheduleProblem.from_arrays([[1.0] * 2] * 2, [(0, 1)], weight_bytes=6.0, output_bytes=1.0)
    for limits, filled, is_forced in (
        ([0.3, np.inf], [0.1 + 0.2, 1.0], False),  # which rounding may exceed
        ([11.0, 12.0], [11.1, 12.0], False),
        ([11.0, 11.0], [11.0, 11.0], True),
    ):
        limited = replace(problem, memory_bytes=np.array(limits))
        assert over_memory(limited, filled).tolist() == [filled[0] > 11, False]
        assert is_split_forced(limited) is is_forced
    check = MemoryCheck(replace(problem, memory_bytes=np.array([8.0, np.inf])), Semantics(order=Order.PRIORITY))
    assert check.resident_bytes.tolist() == [7.0, 7.0]
    assert [check.fits(np.array(each)) for each in ([0, 0], [0, 1])] == [False, True]
    assert check.peak_bytes(np.array([0, 0])).tolist() == [14.0, 0.0]  # without ranks in the order of the devices


def test_values_of_a_model_count_the_fullest_device_and_what_is_illegal_or_too_large_has_none() -> None:
    graph = graph_from_edges(["Add"] * 3, [(0, 1), (1, 2)], output_bytes=[1] * 3)
    costs = ScheduleProblem.from_graph(graph, [[1.0, 4.0], [2.0, 1.0], [np.nan, 1.0]], ("a", "b"), link_latency_s=0.0)
    units = units_of(replace(costs, weight_bytes=np.array([5.0, 2.0, 1.0])))
    plans = [Plan(np.array(each)) for each in ([0, 0, 1], [1, 1, 1], [0, 0, 0])]
    hetero = HeteroCosts.of(graph, costs)
    peaks = model_values(replace(units, objective=find_objective("memory")), hetero, plans)
    assert peaks.tolist() == [9.0, 10.0, np.inf]
    evaluator = ModelEvaluator(units, hetero, takes_order=False, scale=2.0)
    assert evaluator.values([]).tolist() == []
    assert evaluator.values(plans).tolist() == [2 * hetero.latency_s(np.array([[0, 0, 1]]))[0], 2 * 6.0, np.inf]
    assert units.costs is not None
    limited = replace(units, costs=replace(units.costs, memory_bytes=np.array([9.0, 9.0])))
    scores = ModelEvaluator(limited, hetero, takes_order=False).evaluate(plans)
    assert [score.failure is None for score in scores] == [True, False, False]
    assert isinstance(evaluator_of(units), ScheduleEvaluator)
    assert isinstance(evaluator_of(replace(units, ops=hetero)), ModelEvaluator)


def test_plans_of_units_are_scored_as_those_of_their_ops() -> None:
    plain = urgent()
    tied = units_of(replace(plain, labels=replace(plain.labels, colocate=("s", "s", ""))))
    by_unit = ScheduleEvaluator.of(tied)
    near_first, far_first = (Plan(np.array([0, 1]), np.array(order)) for order in ([0, 1], [1, 0]))
    assert by_unit.devices(near_first).tolist() == [0, 0, 1]
    assert np.argmin(np.asarray(by_unit.priority(far_first))) == 2
    assert by_unit.run(near_first).makespan_s == by_unit.evaluate([near_first])[0].value
