"""MILP-SPLIT with several channels, and modules that are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hsdag.methods.exact import milp_split
from hsdag.methods.exact.milp_split import SHARE_OF_ANNEALING, MilpSplitPlacer
from hsdag.methods.exact.modules import ModuleSolver
from hsdag.methods.incumbent import Limits, Status
from hsdag.runtime.problem.semantics import Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.base import SearchStopped
from hsdag.scoring.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import random_problem


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
