"""The placement that a search begins with: evaluated first, never answered with less, and told where it fails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsdag.ir.errors import PlacementError
from hsdag.methods.registry import make_placer
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solution import SolveResult
from hsdag.search.solve import solve
from hsdag.sources import find_family

PROBLEM = find_family("random-wired").problem(3)


@pytest.fixture(scope="module")
def best() -> SolveResult:
    return solve(PROBLEM, make_placer("auto", is_cheap=True), SolveOptions("auto", budget_s=60.0, max_evaluations=600))


@pytest.mark.parametrize("method", ["sa", "doppler", "auto"])
def test_a_search_begins_with_the_start_and_the_answer_is_not_worse(method: str, best: SolveResult) -> None:
    assert best.device is not None
    assert best.value_s is not None
    few = SolveOptions(method, budget_s=60.0, max_evaluations=PROBLEM.num_devices + 1)
    begun = replace(few, start=Plan(best.device, best.priority))
    placer = make_placer(method, is_cheap=True)
    values = [solve(PROBLEM, placer, each).value_s for each in (few, begun, replace(begun, max_evaluations=1))]
    assert values[1:] == [best.value_s, best.value_s]
    assert (values[0] or 0.0) > best.value_s


def test_a_start_that_fails_is_told() -> None:
    problem = ScheduleProblem.from_arrays([[1.0, 1.0]] * 2, [], weight_bytes=[9.0, 9.0], memory_bytes=10.0)
    told: list[str] = []
    options = SolveOptions("heft", start=Plan(np.array([0, 0])))
    assert solve(problem, make_placer("heft"), options, Watcher(on_phase=told.append)).value_s == 1.0
    assert any(line.startswith("the placement to start with fails: ") for line in told)


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ([1, 1], r"has op 'op0' on d1, which does not support it$"),
        ([0, 1], "op 'op0' on another device than the rest of its set"),
    ],
)
def test_a_start_that_is_illegal_or_splits_a_colocation_set_is_refused(start: list[int], said: str) -> None:
    plain = ScheduleProblem.from_arrays([[1.0, np.nan], [1.0, 1.0]], [(0, 1)])
    problem = replace(plain, labels=replace(plain.labels, colocate=("s", "s")))
    with pytest.raises(PlacementError, match=said):
        solve(problem, make_placer("heft"), SolveOptions("heft", start=Plan(np.array(start))))
