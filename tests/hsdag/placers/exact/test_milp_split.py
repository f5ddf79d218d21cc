"""MILP-SPLIT with several channels: list schedules, windows and the bound, against brute force and by invariants."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from hsdag.evaluators.base import SearchStopped
from hsdag.evaluators.recording import RecordingEvaluator
from hsdag.evaluators.schedule import ScheduleEvaluator
from hsdag.placers.exact import milp_split
from hsdag.placers.exact.base import Judge
from hsdag.placers.exact.milp_split import MilpSplitPlacer
from hsdag.placers.exact.modules import ModuleSolver
from hsdag.placers.exact.perturbed_lists import search_lists
from hsdag.placers.incumbent import Incumbent, Limits
from hsdag.placers.lists.schedulers import HeftPlacer
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.problems.units import problem_of
from hsdag.runtime.simulator import Order, Semantics, simulate
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve
from tests.hsdag.placers.exact.exact_reference import BruteForce, random_problem


def judge_of(problem: ScheduleProblem) -> Judge:
    units = replace(problem_of(problem), costs=problem)
    return Judge(Incumbent(units, ScheduleEvaluator(problem, Semantics()), Limits()))


def searched(problem: ScheduleProblem, seed: int = 0, deadline: float = np.inf) -> Judge:
    judge = judge_of(problem)
    search_lists(judge, deadline, seed)
    return judge


@pytest.fixture
def many_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph counts as one channel, however small; its bound takes little time."""
    monkeypatch.setattr(milp_split, "MOST_OPS_OF_A_SEGMENT", -1)
    monkeypatch.setattr(milp_split, "MODULE_S", 0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("many_channels")
@pytest.mark.parametrize("seed", range(12))
def test_windows_find_nothing_below_the_optimum_and_the_bound_is_not_above_it(seed: int) -> None:
    problem = random_problem(seed, 7, 2 + seed % 2)
    solution = solve(problem, MilpSplitPlacer(), SolveOptions("milp-split", budget_s=600.0))
    best_s = BruteForce(problem).makespan_s()
    assert solution.value_s is not None
    assert solution.value_s >= best_s * (1 - 1e-9)
    assert solution.lower_bound_s <= best_s * (1 + 1e-9)


def improvements(problem: ScheduleProblem) -> list[float]:
    """The values of ever better placements."""
    recorders: list[RecordingEvaluator] = []
    watcher = Watcher(on_event=lambda _, recorder: recorders.append(recorder))
    solve(problem, MilpSplitPlacer(), SolveOptions("milp-split", budget_s=60.0, seed=4), watcher)
    values_s: list[float] = np.unique(np.minimum.accumulate([e.score.value for e in recorders[-1].events])).tolist()
    return values_s


@pytest.mark.slow
@pytest.mark.usefixtures("many_channels")
def test_the_same_seed_takes_the_same_steps() -> None:
    problem = random_problem(5, 20, 3, density=0.1)
    values_s = [improvements(problem), improvements(problem)]
    assert values_s[0] == values_s[1]
    assert len(values_s[0]) > 1


def test_perturbed_lists_are_shorter_than_heft_and_simulate_to_what_is_said() -> None:
    problem = random_problem(3, 40, 3, density=0.1)
    judge, heft = searched(problem), HeftPlacer().schedule(problem)
    heft_s = simulate(problem, heft.device, Semantics(order=Order.PRIORITY), heft.ranks).makespan_s
    assert judge.best is not None
    assert judge.best_s < 0.95 * heft_s
    assert (
        float((judge.start_s(judge.best) + problem.time_s[np.arange(40), judge.best.placement]).max()) == judge.best_s
    )


def test_perturbed_lists_keep_within_memory() -> None:
    free = random_problem(3, 30, 3, density=0.1)
    tight = replace(free, memory_bytes=np.full(3, 0.4 * free.output_bytes.sum()))
    judge = searched(tight)
    assert judge.best is not None
    run = simulate(tight, judge.best.placement, Semantics(order=Order.PRIORITY), judge.best.order)
    assert (run.peak_memory_bytes <= tight.memory_bytes * (1 + 1e-9)).all()


def test_perturbed_lists_end_at_their_deadline() -> None:
    problem = random_problem(3, 40, 3, density=0.1)
    late = searched(problem, deadline=time.monotonic() - 1.0)
    assert late.best_s > searched(problem).best_s


def test_who_waits_for_a_module_can_be_stopped() -> None:
    def stop() -> None:
        raise SearchStopped

    with ModuleSolver(Limits(1.0, 1), 1, on_wait=stop) as solver:
        task = solver.submit(random_problem(5, 60, 3, density=0.08), {})
        with pytest.raises(SearchStopped):
            task.result()
        assert not task.future.done()
