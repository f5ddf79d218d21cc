"""What holds for every method: legal answers, no worse than a device alone, no better than the bound, at any time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hsdag.models import find_workload
from hsdag.placers.base import PlacerSettings
from hsdag.placers.registry import make_placer, method_names
from hsdag.runtime.platforms import load_platform
from hsdag.runtime.problem import Objective
from hsdag.runtime.schedule_problem import ScheduleProblem
from hsdag.search.searching import Watcher
from hsdag.search.solution import Solution, SolveOptions
from hsdag.search.solve import solve
from hsdag.search.workload import workload_problem

SPLITTING = tuple(name for name in method_names() if name != "best-device")
FOR = {"pipeline": Objective.THROUGHPUT}


@pytest.fixture(scope="module")
def chain() -> ScheduleProblem:
    """A matrix chain sharded over four devices, which no single device holds with all its results in memory."""
    problem = workload_problem(find_workload("chainmm").build(4, {}), load_platform("p100x4"))
    return replace(problem, memory_bytes=np.full(4, np.inf))


@pytest.fixture(scope="module")
def tight(chain: ScheduleProblem) -> ScheduleProblem:
    """The same with room for a third of all results on each device."""
    return replace(chain, memory_bytes=np.full(4, chain.output_bytes.sum() / 3))


def answer(
    problem: ScheduleProblem, method: str, should_stop: Callable[[], bool] = lambda: False, budget_s: float = 3.0
) -> Solution:
    options = SolveOptions(method=method, objective=FOR.get(method, Objective.LATENCY), budget_s=budget_s)
    settings = PlacerSettings(is_cheap=True, semantics=options.semantics, budget_s=budget_s)
    return solve(problem, make_placer(method, settings), options, Watcher(should_stop=should_stop))


def check(solution: Solution) -> None:
    """Legal, not above a single device, not below the bound."""
    assert solution.run is not None
    assert solution.value_s is not None
    assert solution.lower_bound_s <= solution.value_s * (1 + 1e-9)
    singles = [s for s in solution.single_s.values() if s is not None]
    assert solution.value_s <= min(singles, default=np.inf) * (1 + 1e-9)
    assert (solution.run.peak_memory_bytes <= solution.problem.memory_bytes * (1 + 1e-9)).all()


@pytest.mark.parametrize("method", method_names())
def test_answers_are_legal_and_between_the_bound_and_the_best_device(chain: ScheduleProblem, method: str) -> None:
    check(answer(chain, method))


@pytest.mark.parametrize("method", [m for m in SPLITTING if m not in ("hsdag", "mincut")])
def test_methods_for_parallel_work_use_the_devices(chain: ScheduleProblem, method: str) -> None:
    solution = answer(chain, method)
    assert solution.value_s is not None
    if method != "met":  # which knows no load and puts equal devices' ops on the first
        assert solution.value_s < 0.6 * min(s for s in solution.single_s.values() if s is not None)


@pytest.mark.parametrize("method", SPLITTING)
def test_memory_is_honoured(tight: ScheduleProblem, method: str) -> None:
    check(answer(tight, method))


@pytest.mark.parametrize("method", method_names())
def test_an_interrupt_at_any_moment_leaves_a_legal_answer(chain: ScheduleProblem, method: str) -> None:
    for patience in np.random.default_rng(len(method)).integers(0, 40, 3).tolist():
        asked = iter(range(patience))
        check(answer(chain, method, lambda asked=asked: next(asked, None) is None))  # type: ignore[misc]
