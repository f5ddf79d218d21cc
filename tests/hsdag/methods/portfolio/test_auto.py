"""The portfolio: its methods share what they know, and no failure of one ends the search."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.cli.app import run
from hsdag.ir.errors import OptionError
from hsdag.methods.exact.cpsat import CpSatPlacer
from hsdag.methods.incumbent import Incumbent, Limits, Status
from hsdag.methods.portfolio.auto import MOST_UNITS_FOR_ALL, AutoPlacer
from hsdag.methods.registry import make_placer
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.problem_file import write_problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.values import simulated_values
from hsdag.scoring.recording import Budget, RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.solving.solution import SolveResult
from hsdag.solving.solve import solve
from tests.hsdag.methods.local.test_search_heuristics import everything, random_problem

FAILURE = "the solver has no licence"


def solved(problem: ScheduleProblem, most: int | None = None, **changes: str) -> SolveResult:
    options = SolveOptions("auto", budget_s=60.0, max_evaluations=most)
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


@pytest.mark.parametrize(("memory", "asked"), [(100.0, True), (130.0, False)])
def test_stages_are_asked_for_where_no_device_holds_all_weights(memory: float, asked: bool) -> None:
    chain = [(v, v + 1) for v in range(11)]
    problem = ScheduleProblem.from_arrays(
        np.ones((12, 2)), chain, weight_bytes=10.0, memory_bytes=memory, link_latency_s=0.1
    )
    placer = make_placer("auto", changes={"without": "cpsat,sa,milp-split,rules,mincut"}, is_cheap=True)
    solution = solve(problem, placer, SolveOptions("auto", semantics=Semantics(Execution.SEQUENTIAL)))
    assert ("pipeline" in [each.method for each in solution.members]) == asked
    assert solution.value_s == pytest.approx(12.1 if asked else 12.0)


@given(st.integers(0, 2**32), st.sampled_from([LATENCY, THROUGHPUT]), st.sampled_from(list(Execution)), st.booleans())
@settings(max_examples=max(settings().max_examples // 4, 1))
def test_the_answer_is_no_worse_than_any_placement_of_a_small_problem(
    seed: int, objective: Objective, how: Execution, memory: bool
) -> None:
    problem, semantics = random_problem(seed, memory=memory), Semantics(how)
    if problem.num_ops * np.log2(problem.num_devices) > 10:
        return
    placer = make_placer("auto", changes={"without": "cpsat,milp-split"}, is_cheap=True)
    solution = solve(problem, placer, SolveOptions("auto", objective, 60.0, 6_000, semantics=semantics))
    every = everything(problem)
    every = every[problem.supported[np.arange(problem.num_ops), every].all(axis=1)]
    values = simulated_values(objective, problem, every, semantics)
    if not memory:
        assert solution.value_s is not None
        assert solution.value_s <= values.min() * (1 + 1e-9)
    assert solution.value_s is None or solution.value_s >= solution.lower_bound_s * (1 - 1e-9)


def test_a_method_that_fails_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: CpSatPlacer, __: Incumbent) -> Status:
        raise RuntimeError(FAILURE)

    monkeypatch.setattr(CpSatPlacer, "_search", fail)
    solution = solved(dense(), 3000)
    failed = [(each.method, each.failure, each.status) for each in solution.members if each.failure]
    assert failed[0] == ("cpsat", f"RuntimeError: {FAILURE}", None)
    assert "sa" in [each.method for each in solution.members]
    assert solution.value_s is not None


def test_every_method_begins_with_the_best_of_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[float] = []

    def noted(_: CpSatPlacer, incumbent: Incumbent) -> Status:
        known.extend(score.value for score in incumbent.evaluate(incumbent.limits.known))
        return Status.OPTIMAL

    monkeypatch.setattr(CpSatPlacer, "_search", noted)
    before = [each for each in solved(dense()).members if each.method != "cpsat"]
    assert known == [before[-1].after]


def test_plans_that_are_known_come_first_and_the_slow_lists_do_not_come_again() -> None:
    problem = dense()
    units, known = problem_of(problem), Plan(np.arange(9) % 2)
    recorder = RecordingEvaluator(ScheduleEvaluator(problem, Semantics()), Budget(evaluations=2000))
    result = make_placer("auto", changes={"without": "cpsat"}).search(
        units, recorder, Limits(known=(known,), is_again=True)
    )
    assert recorder.events[0].plan == known
    assert [each.method for each in result.contributions][:4] == ["met", "heft", "greedy", "sa"]


def test_methods_can_be_left_out() -> None:
    solution = solve(
        dense(), make_placer("auto", changes={"without": "cpsat, heft"}), SolveOptions("auto", max_evaluations=3_000)
    )
    assert not {"cpsat", "heft"} & {each.method for each in solution.members}
    with pytest.raises(OptionError, match="auto cannot do without 'gurobi', which is no method"):
        make_placer("auto", changes={"without": "gurobi"})


def test_evaluations_of_all_methods_count() -> None:
    problem = dense(30)
    recorder = RecordingEvaluator(ScheduleEvaluator(problem, Semantics()), Budget(evaluations=3000))
    placer = make_placer("auto", changes={"without": "cpsat,milp-split"})
    assert placer.search(problem_of(problem), recorder, Limits()).status is Status.TIME_LIMIT
    assert recorder.num_evaluations <= 3000


def test_sequential_execution_asks_the_minimum_cut() -> None:
    problem = dense()
    options = SolveOptions("auto", semantics=Semantics(Execution.SEQUENTIAL))
    solution = solve(problem, make_placer("auto", is_cheap=True), options)
    assert "mincut" in [each.method for each in solution.members]
    assert solution.status is Status.OPTIMAL


def test_the_table_and_json_show_who_contributed_what(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_problem(dense(), path)
    assert run(["solve", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["method"] == "auto"
    members = document["members"]
    assert {"met", "heft", "cpsat"} <= {each["method"] for each in members}
    assert members[-1]["after"] == document["value"]
    assert all(a["ended_s"] <= b["began_s"] for a, b in itertools.pairwise(members))
    assert run(["solve", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "by second" in shown
    assert "cpsat" in shown


def members(problem: ScheduleProblem, budget_s: float = 60.0, **options: Any) -> list[str]:
    placer = make_placer("auto", changes={"without": "cpsat,milp-split,enumerative"}, is_cheap=True)
    found = solve(problem, placer, SolveOptions("auto", budget_s=budget_s, max_evaluations=300, **options))
    return [each.method for each in found.members]


def test_a_large_schedule_is_searched_by_windows_before_all_of_it_is() -> None:
    rng, num = np.random.default_rng(0), MOST_UNITS_FOR_ALL + 1
    problem = ScheduleProblem.from_arrays(rng.random((num, 5)), [(v, v + 1) for v in range(num - 1)])
    incumbent = Incumbent(problem_of(problem), ScheduleEvaluator(problem, Semantics()), Limits())
    turns = [turn.method for turn in itertools.islice(AutoPlacer()._turns(incumbent), 12)]
    assert turns[:9] == ["met", "heft", "cpop", "etf", "m-etf", "critical-path", "greedy", "windows", "sa"]


def test_learned_rules_are_asked_with_the_lists() -> None:
    asked = members(dense(30))
    assert asked.index("greedy") < asked.index("rules") < asked.index("sa")
    assert "rules" not in members(dense(30), objective=THROUGHPUT)
    assert "rules" not in members(dense(30), semantics=Semantics(Execution.SEQUENTIAL))
