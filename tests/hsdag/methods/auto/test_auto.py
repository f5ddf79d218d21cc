"""The portfolio: its methods share what they know, and no failure of one ends the search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hsdag.base.errors import OptionError
from hsdag.methods import method_names
from hsdag.methods.auto.auto import LEAST_S, MOST_CHOICES_TO_PROVE, MOST_UNITS_FOR_ALL, QUICK_LISTS, AutoPlacer
from hsdag.methods.exact.cpsat import CpSatPlacer
from hsdag.methods.incumbent import Incumbent, Limits, Status
from hsdag.methods.registry import make_placer
from hsdag.methods.turns import Turn
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem import Problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.search.solution import SolveResult
from hsdag.search.solve import solve

FAILURE = "the solver has no licence"


def solved(problem: ScheduleProblem, most: int | None = None, **changes: str) -> SolveResult:
    options = SolveOptions("auto", budget_s=600.0, max_evaluations=most)
    return solve(problem, make_placer("auto", changes=changes, is_cheap=True), options)


def dense(num_ops: int = 9, seed: int = 2) -> ScheduleProblem:
    rng = np.random.default_rng(seed)
    edges = [(u, v) for v in range(num_ops) for u in range(v) if rng.random() < 0.3]
    return ScheduleProblem.from_arrays(rng.random((num_ops, 2)), edges, link_latency_s=0.1)


def test_a_small_problem_is_proven_and_the_search_ends_there() -> None:
    solution = solved(dense())
    assert solution.status is Status.OPTIMAL
    assert solution.gap is not None
    assert solution.gap <= 1e-6
    assert solution.members[-1].method == "cpsat"
    assert solution.members[-1].bound is not None


def test_a_method_that_fails_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: CpSatPlacer, __: Incumbent) -> Status:
        raise RuntimeError(FAILURE)

    monkeypatch.setattr(CpSatPlacer, "_search", fail)
    solution = solved(dense(), 3000)
    failed = [(each.method, each.failure, each.status) for each in solution.members if each.failure]
    assert failed[0] == ("cpsat", f"RuntimeError: {FAILURE}", None)
    assert "sa" in [each.method for each in solution.members]
    assert solution.value is not None


def test_known_plans_come_first_methods_can_be_left_out_and_evaluations_of_all_count() -> None:
    units, known = problem_of(dense(30)), Plan(np.arange(30) % 2)
    recorder = RecordingEvaluator(ScheduleEvaluator.of(units), Budget(evaluations=3000))
    placer = make_placer("auto", changes={"without": "cpsat, milp-split,heft"})
    result = placer.search(units, recorder, Limits(known=(known,)))
    assert recorder.events[0].plan == known
    assert not {"cpsat", "milp-split", "heft"} & {each.method for each in result.contributions}
    assert result.status is Status.TIME_LIMIT
    assert recorder.num_evaluations <= 3000
    with pytest.raises(OptionError, match="auto cannot do without 'gurobi', which is no method"):
        make_placer("auto", changes={"without": "gurobi"})


def test_only_quick_lists_come_again_and_a_schedule_is_searched_in_windows_by_its_size() -> None:
    assert turns(problem_of(dense()), 4, Limits(is_again=True)) == [*QUICK_LISTS, "cpsat"]
    rng, num = np.random.default_rng(0), MOST_UNITS_FOR_ALL + 1
    large = ScheduleProblem.from_arrays(rng.random((num, 5)), [(v, v + 1) for v in range(num - 1)])
    expected = ["met", "heft", "greedy", "beam", "windows", "sa"]
    assert turns(problem_of(large), 6) == expected
    found = turns(problem_of(dense(MOST_CHOICES_TO_PROVE // 2 + 1)), 11)
    assert found[-6:] == ["sa", "milp-split", "beam", "windows", "sa", "windows"]


def test_turns_begin_with_the_best_plan_and_seeds_in_a_row_until_three_in_a_row_gain_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[tuple[str, Limits]] = []
    monkeypatch.setattr(Turn, "take", lambda turn, *of: given.append((turn.method, of[2])))
    units, known = problem_of(dense()), (Plan(np.zeros(9, dtype=np.int64)),)
    evaluator = ScheduleEvaluator.of(units)
    assert AutoPlacer().search(units, evaluator, Limits(seed=3, known=known)).status is Status.FEASIBLE
    last = [("cpsat", 3), ("sa", 3), ("cpsat", 4), ("sa", 4), ("sa", 5)]
    assert [(method, limits.seed) for method, limits in given[-5:]] == last
    assert {limits.known for _, limits in given} == {known}
    given.clear()
    monkeypatch.setattr(Incumbent, "left_s", LEAST_S)
    AutoPlacer().search(units, evaluator)
    assert (given[0][0], given[0][1].seconds) == ("met", 0.1 * LEAST_S)
    monkeypatch.setattr(Incumbent, "left_s", LEAST_S / 2)
    assert AutoPlacer().search(units, evaluator).status is Status.TIME_LIMIT


def test_what_a_method_has_another_one_find_is_shown_as_that_ones() -> None:
    others = ",".join(method for method in method_names() if method != "milp-split")
    members = solved(dense(MOST_CHOICES_TO_PROVE // 2 + 1), 1000, without=others).members
    parts, own = members[:-1], members[-1]
    assert {each.method for each in parts} <= {"sa in milp-split", "windows in milp-split"}
    assert parts[0].has_gained
    assert own.method == "milp-split"
    assert not own.has_gained
    assert parts[-1].ended_s == own.began_s


def turns(units: Problem, count: int, limits: Limits | None = None) -> list[str]:
    """The first so many methods that are asked."""
    incumbent = Incumbent(units, ScheduleEvaluator.of(units), limits or Limits())
    return [turn.method for turn in itertools.islice(AutoPlacer()._turns(incumbent), count)]
