"""The parts of the exact methods: ticks, modules, windows, memory, and how a search ends."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hsdag.methods.exact import milp_split
from hsdag.methods.exact.milp_split import SHARE_OF_ANNEALING, MilpSplitPlacer
from hsdag.methods.exact.modules import ModuleAnswer, ModuleSolver
from hsdag.methods.exact.solving import Ticks
from hsdag.methods.incumbent import Limits, Status
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Order, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate
from hsdag.scoring.base import SearchStopped
from hsdag.scoring.recording import RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve
from tests.hsdag.methods.exact.exact_reference import random_problem


def test_ticks_of_decimal_times_are_exact() -> None:
    ticks = Ticks.choose([np.array([0.25, 1.5, np.nan])], 100.0)
    assert ticks.is_exact
    assert ticks.down([0.25, 1.5]).tolist() == [25, 150]


def test_other_ticks_round_down() -> None:
    ticks = Ticks.choose([np.array([np.pi, 1 / 3])], 10.0)
    assert not ticks.is_exact
    assert np.all(ticks.seconds(ticks.down([np.pi, 1 / 3])) <= [np.pi, 1 / 3])


def test_equal_modules_are_solved_once_and_others_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    solved, solve_one = list[ScheduleProblem](), ModuleSolver._solved

    def noted(self: ModuleSolver, module: ScheduleProblem, pinned: dict[int, int]) -> ModuleAnswer:
        solved.append(module)
        return solve_one(self, module, pinned)

    monkeypatch.setattr(ModuleSolver, "_solved", noted)
    one = random_problem(2, 4, 2)
    bytes_more = replace(one, output_bytes=one.output_bytes + 1.0)
    with ModuleSolver(Limits(600.0, 1), 1) as solver:
        for module, pinned in (
            (one, {}),
            (random_problem(2, 4, 2), {}),
            (one, {0: 0}),
            (one, {0: 1}),
            (bytes_more, {}),
        ):
            solver.submit(module, pinned)()
    assert len(solved) == 4


def test_a_module_that_comes_after_the_deadline_is_bounded_by_its_longest_path() -> None:
    chain = ScheduleProblem.from_arrays([[3.0, 5.0], [4.0, 2.0], [1.0, 1.0]], [(0, 1)], link_latency_s=7.0)
    with ModuleSolver(Limits(600.0, 1), 1, deadline=-np.inf) as solver:
        answer = solver.submit(chain, {})()
    assert answer.device is None
    assert answer.bound_s == 5.0  # 3 and 2, without the transfer


@pytest.mark.parametrize("method", ["cpsat", "milp"])
def test_the_order_of_an_answer_gives_its_makespan(method: str) -> None:
    problem = random_problem(8, 9, 3)
    placer = make_placer(method)
    options = SolveOptions(method, semantics=Semantics(order=Order.PRIORITY), budget_s=600.0)
    solution = solve(problem, placer, options)
    assert solution.device is not None
    assert solution.priority is not None
    again = simulate(problem, solution.device, Semantics(order=Order.PRIORITY), solution.priority)
    assert again.makespan_s == solution.value_s


@pytest.mark.parametrize("method", ["cpsat", "milp", "milp-split"])
def test_the_evaluator_can_stop_a_search_at_any_moment(method: str) -> None:
    units = problem_of(random_problem(8, 30, 3, density=0.1))
    asked = itertools.count()
    recorder = RecordingEvaluator(ScheduleEvaluator.of(units), should_stop=lambda: next(asked) >= 60)
    result = make_placer(method).search(units, recorder)
    assert result.status is Status.TIME_LIMIT
    assert result.plan is not None


def test_many_channels_are_annealed_and_then_searched_by_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Limits]] = []

    def noted(name: str) -> Any:
        return SimpleNamespace(search=lambda _, __, limits: asked.append((name, limits)))

    monkeypatch.setattr(milp_split, "make_placer", noted)
    monkeypatch.setattr(milp_split, "FEW_OPS_OF_A_SEGMENT", 0)
    monkeypatch.setattr(milp_split, "MOST_OPS_OF_A_SEGMENT", 0)
    problem = random_problem(3, 12, 3)
    units, evaluator = problem_of(problem), ScheduleEvaluator(problem, Semantics())
    result = MilpSplitPlacer().search(units, evaluator, Limits(600.0))
    (first, annealing), (second, windows) = asked
    assert (first, second) == ("sa", "windows")
    assert annealing.seconds == pytest.approx(SHARE_OF_ANNEALING * windows.seconds, rel=0.05)
    assert annealing.known == (result.plan,)
    assert (result.status, result.lower_bound) == (Status.FEASIBLE, None)


def test_who_waits_for_a_module_can_be_stopped() -> None:
    def stop() -> None:
        raise SearchStopped

    with ModuleSolver(Limits(1.0, 1), 1, on_wait=stop) as solver:
        answer = solver.submit(random_problem(5, 60, 3, density=0.08), {})
        with pytest.raises(SearchStopped):
            answer()
