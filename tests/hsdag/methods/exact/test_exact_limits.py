"""Exact methods at their limits and by their parts: time that is over, memories beyond 64 bits, ticks, modules."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import pytest

from hsdag.methods.base import Placer
from hsdag.methods.exact import base, milp
from hsdag.methods.exact.assignment import AssignmentModel
from hsdag.methods.exact.base import HEURISTICS, SHARE_OF_HEURISTIC, ExactSearch, warm_start
from hsdag.methods.exact.cpsat import CpSatPlacer, IntervalModel
from hsdag.methods.exact.formulation import Formulation, MemoryRule, identical_devices
from hsdag.methods.exact.milp import MilpModel, MilpPlacer, num_entries
from hsdag.methods.exact.solving import MOST_TICKS, SolverAnswer, Ticks, solve_model
from hsdag.methods.incumbent import Incumbent, Limits, Result, Status
from hsdag.methods.registry import make_placer
from hsdag.runtime.objectives import LATENCY, THROUGHPUT
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.base import Evaluator, SearchStopped
from hsdag.search.evaluators.recording import RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import random_problem
from tests.hsdag.methods.searches import heard, not_none, tight

SEQUENTIAL = Semantics(Execution.SEQUENTIAL)


def test_a_heuristic_of_the_warm_start_gets_a_share_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, given = random_problem(3, 8, 2), []

    search = Placer.search

    def noted(self: Placer[Any], problem: Problem, evaluator: Evaluator, limits: Limits) -> Result:
        given.append(limits.seconds)
        return search(self, problem, evaluator, limits)

    monkeypatch.setattr(Placer, "search", noted)
    warm_start(Incumbent(problem_of(problem), ScheduleEvaluator(problem, Semantics()), Limits(seconds=800.0)))
    assert len(given) == len(HEURISTICS)
    assert 0 < given[-1] <= given[0] <= 800.0 * SHARE_OF_HEURISTIC


def test_a_share_of_the_seconds_is_over_before_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(3, 8, 2)
    incumbent = Incumbent(problem_of(problem), ScheduleEvaluator(problem, Semantics()), Limits(10.0))
    monkeypatch.setattr(Incumbent, "elapsed_s", 6.0)
    assert [incumbent.is_over(share) for share in (0.5, 0.6, 0.7, 1.0)] == [True, True, False, False]


def test_a_stop_is_heard_before_there_is_an_answer() -> None:
    problem = random_problem(3, 8, 2)
    search = ExactSearch(Incumbent(problem_of(problem), heard(problem, 0, SEQUENTIAL), Limits()), "a test")
    assert search.incumbent.best is None
    with pytest.raises(SearchStopped):
        search.wake()


@pytest.mark.parametrize(("bound_s", "tolerance", "said_s"), [(5.0, 0.0, 2.0), (1.0, 0.0, 1.0), (1.0, 0.1, 0.9)])
def test_a_bound_is_lowered_by_its_tolerance_and_not_above_the_best(
    bound_s: float, tolerance: float, said_s: float
) -> None:
    problem = ScheduleProblem.from_arrays(np.ones((2, 2)), [])
    incumbent = Incumbent(problem_of(problem), ScheduleEvaluator(problem, Semantics()), Limits())
    incumbent.evaluate([Plan(np.zeros(2, dtype=np.int64))])
    search = ExactSearch(incumbent, "a test")
    search.begin(Formulation(problem), 1.0)
    search.prove(bound_s, tolerance)
    assert incumbent.lower_bound == Bound(said_s, "a test")


def test_bounds_in_ticks_are_reported_in_seconds_while_the_solver_runs_and_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = ScheduleProblem.from_arrays(np.ones((2, 2)), [])
    incumbent = Incumbent(problem_of(problem), ScheduleEvaluator(problem, Semantics()), Limits())
    incumbent.evaluate([Plan(np.zeros(2, dtype=np.int64))])
    search, reported = ExactSearch(incumbent, "a test"), []
    search.begin(Formulation(problem), 60.0)

    def solved(_: object, __: Limits, ___: object, on_wait: Callable[[float], None]) -> SolverAnswer[object]:
        on_wait(3.0)
        reported.append(incumbent.lower_bound)
        return SolverAnswer(bound=6.0)

    monkeypatch.setattr(base, "solve_model", solved)
    search.solve(IntervalModel(Formulation(problem), 2.0), Ticks(0.25), lambda _: None)
    assert [*reported, incumbent.lower_bound] == [Bound(0.75, "a test"), Bound(1.5, "a test")]


@pytest.mark.parametrize("rule", MemoryRule)
@pytest.mark.parametrize("scale", [1.0, 2.0**60, 1e25])
def test_sizes_beyond_64_bits_bind_as_small_ones_do(rule: MemoryRule, scale: float) -> None:
    """Three ops of 1 s with weights of 2, of which the fast device holds two: the third takes 5 s on the other."""
    problem = ScheduleProblem.from_arrays(
        [[1.0, 5.0]] * 3, [], weight_bytes=2 * scale, output_bytes=scale / 4, memory_bytes=[5 * scale, 9 * scale]
    )
    answer = solve_model(IntervalModel(Formulation(problem, rule), 20.0), Limits(600.0, 1))
    assert answer.bound == answer.value == 5


def test_memory_binds_in_the_linear_program() -> None:
    problem = ScheduleProblem.from_arrays([[1.0, 5.0]] * 3, [], weight_bytes=2.0, memory_bytes=[5.0, 9.0])
    model = MilpModel(Formulation(problem), 20.0)
    values = not_none(model.linear.solved(Limits(600.0, 1)).solution)
    assert values[model.makespan] * model.unit_s == pytest.approx(5.0)


def test_a_result_that_waits_for_its_last_reader_counts_in_peaks_alone() -> None:
    """On the fast device the first result is still there when the third is made; the last op goes elsewhere."""
    problem = ScheduleProblem.from_arrays(
        [[1.0, 5.0]] * 4, [(0, 1), (1, 2), (2, 3), (0, 3)], output_bytes=[4, 4, 4, 0], memory_bytes=[10, 20]
    )
    found: dict[MemoryRule, float | None] = {}
    for rule in MemoryRule:
        model = IntervalModel(Formulation(problem, rule), 30.0)
        found[rule] = solve_model(model, Limits(600.0, 1)).value
    assert (found[MemoryRule.RUNNING], found[MemoryRule.PEAK]) == (4, 8)


def test_what_an_op_takes_while_it_runs_keeps_others_off_its_device() -> None:
    problem = ScheduleProblem.from_arrays([[1.0, 5.0]] * 2, [], weight_bytes=2, output_bytes=2, memory_bytes=[5, 9])
    model = AssignmentModel(Formulation(problem), problem_of(problem, LATENCY, SEQUENTIAL), Ticks(1.0), 100)
    assert solve_model(model, Limits(600.0, 1)).value == 6
    exact = replace(problem, memory_bytes=np.array([4.0, 3.9]))
    assert Formulation(exact).allowed.tolist() == [[True, False]] * 2


def test_a_solver_that_tells_of_solutions_proves_the_last_of_them() -> None:
    found: list[object] = []
    model = IntervalModel(Formulation(random_problem(8, 12, 3)), 100.0)
    answer = solve_model(model, Limits(600.0, 1), found.append)
    assert answer.bound == answer.value == 215
    assert len(found) > 1


def test_a_program_of_zeros_and_ones_is_not_made_to_its_end_when_time_is_over() -> None:
    problem = problem_of(tight(), THROUGHPUT)
    incumbent = Incumbent(problem, ScheduleEvaluator(tight(), problem.semantics, THROUGHPUT), Limits())
    search = ExactSearch(incumbent, "a test")
    search.begin(Formulation(tight()), -1.0)
    with pytest.raises(base.OutOfTime):
        CpSatPlacer()._assignment(search)


@pytest.mark.parametrize("rule", MemoryRule)
def test_memory_binds_where_a_device_could_hold_a_byte_too_much(rule: MemoryRule) -> None:
    problem = random_problem(5, 7, 2, weight_bytes=np.arange(7.0))
    f = Formulation(problem)
    copies_bytes = sum(max(consumers.values(), default=0.0) for consumers in f.consumers)
    beside_bytes = {
        MemoryRule.RUNNING: f.running_bytes[:, 0].max(),
        MemoryRule.RESERVED: f.reserved_bytes.sum(),
        MemoryRule.PEAK: problem.output_bytes.sum() + copies_bytes,
    }[rule]
    for less, binds in ((0.0, False), (1.0, True)):
        memory_bytes = np.full(2, problem.weight_bytes.sum() + beside_bytes - less)
        capacity = Formulation(replace(problem, memory_bytes=memory_bytes), rule).capacity(0, list(range(7)))
        assert (capacity is not None) == binds


def test_a_duration_beyond_the_horizon_makes_no_tick_longer() -> None:
    ticks = Ticks.choose([np.array([np.pi, 1e6, np.inf, np.nan])], 10.0)
    assert ticks.length_s == 10.0 / MOST_TICKS
    assert MOST_TICKS + 1 < ticks.down(1e6) == ticks.down(np.inf) < MOST_TICKS * 1.01
    assert Ticks.choose([np.array([0.25, 1e6 + 1 / 3])], 10.0).length_s == 0.01


def test_ticks_of_decimal_times_are_exact_and_others_round_down() -> None:
    exact, other = (Ticks.choose([np.array([0.25, seconds, np.nan])], 100.0) for seconds in (1.5, np.pi))
    assert (exact.is_exact, other.is_exact) == (True, False)
    assert exact.down([0.25, 1.5, 0.29]).tolist() == [25, 150, 29]  # 0.29 / 0.01 is less than 29
    assert other.down(np.pi) == int(np.pi * MOST_TICKS / 100.0)


def test_devices_are_equal_where_all_of_their_figures_are() -> None:
    problem = ScheduleProblem.from_arrays(np.ones((2, 4)), [], memory_bytes=[9.0, 9.0, 9.0, 5.0])
    latency_s = np.zeros((4, 4))
    latency_s[2, 3] = latency_s[2, 0] = 1.0
    assert [kind.tolist() for kind in identical_devices(problem)] == [[0, 1, 2]]
    assert [kind.tolist() for kind in identical_devices(replace(problem, link_latency_s=latency_s))] == []
    latency_s = latency_s.copy()
    latency_s[2, 1] = 1.0
    assert [kind.tolist() for kind in identical_devices(replace(problem, link_latency_s=latency_s))] == [[0, 1]]


def begun(*_: object, **__: object) -> NoReturn:
    pytest.fail("there was no time for this")


def test_a_program_too_large_for_the_budget_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ScheduleProblem.from_arrays(np.ones((30, 8)), [])
    monkeypatch.setattr(milp, "MilpModel", begun)
    monkeypatch.setattr(milp, "ENTRIES_PER_S", num_entries(Formulation(problem)) / 600.0)
    evaluator = ScheduleEvaluator(problem, Semantics())
    found = MilpPlacer().search(problem_of(problem), evaluator, Limits(seconds=600.0))
    assert found.status is Status.TIME_LIMIT
    assert np.bincount(not_none(found.plan).placement).max() == 4


@pytest.mark.parametrize("seed", range(4))
def test_the_number_of_entries_is_known_before_they_are_made(seed: int) -> None:
    problem = random_problem(seed, 30, 3)
    problem = replace(problem, weight_bytes=np.full(30, 100.0), memory_bytes=np.full(3, 1500.0))
    made = len(MilpModel(Formulation(problem), 100.0).linear.index)
    assert 0.9 * made < num_entries(Formulation(problem)) < 2 * made


@pytest.mark.parametrize("method", ["cpsat", "milp"])
def test_a_stop_is_heard_while_a_model_is_made(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "HEURISTICS", ("heft",))
    monkeypatch.setattr(milp.LinearModel, "solved", begun)
    monkeypatch.setattr(base, "solve_model", begun)
    problem = random_problem(8, 60, 3, density=0.1)
    units = problem_of(problem)
    looks = itertools.count()
    counting = RecordingEvaluator(ScheduleEvaluator.of(units), should_stop=lambda: next(looks) < 0)
    warm_start(Incumbent(units, counting, Limits()))
    result = make_placer(method).search(units, heard(problem, next(looks) + 5, Semantics()))
    assert result.status is Status.TIME_LIMIT
