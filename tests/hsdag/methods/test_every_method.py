"""What holds for every method: legal answers, no worse than a device alone, no better than the bound, at any time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hsdag.base.errors import OptionError, SearchError
from hsdag.commands.sources import workload_problem
from hsdag.methods import method_names
from hsdag.methods.incumbent import Status
from hsdag.methods.registry import find_method, make_placer
from hsdag.models import find_workload
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.platforms.platform import load_platform
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.search.driver import Watcher
from hsdag.search.evaluators.base import Score
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.search.solution import SolveResult
from hsdag.search.solve import solve
from tests.hsdag.methods.exact.exact_reference import every_placement, random_problem

FOR = {"pipeline": THROUGHPUT}


@pytest.fixture(scope="module")
def chain() -> ScheduleProblem:
    """A matrix chain sharded over four devices, which no single device holds with all its results in memory."""
    problem = workload_problem(find_workload("chainmm").build(4, {}), load_platform("p100x4"))
    return replace(problem, memory_bytes=np.full(4, np.inf))


SECONDS = {"cpsat": 0.3, "milp": 0.3, "milp-split": 0.3}
"""Budgets of the methods whose work is not in evaluations; they begin with list schedules, however busy the machine."""


def answer(
    problem: ScheduleProblem, method: str, should_stop: Callable[[], bool] = lambda: False, num_evaluations: int = 100
) -> SolveResult:
    options = SolveOptions(
        method, FOR.get(method, LATENCY), budget_s=SECONDS.get(method, 60.0), max_evaluations=num_evaluations
    )
    return solve(problem, options.placer(), options, Watcher(should_stop=should_stop))


def check(solution: SolveResult) -> None:
    """Legal, not above a single device, not below the bound."""
    assert solution.run is not None
    assert solution.value is not None
    assert solution.lower_bound <= solution.value * (1 + 1e-9)
    singles = [s for s in solution.single_devices.values() if s is not None]
    assert solution.value <= min(singles, default=np.inf) * (1 + 1e-9)
    assert (solution.run.peak_memory_bytes <= solution.problem.memory_bytes * (1 + 1e-9)).all()


@pytest.mark.parametrize("method", method_names())
def test_answers_are_legal_and_methods_for_parallel_work_use_the_devices(chain: ScheduleProblem, method: str) -> None:
    solution = answer(chain, method)
    check(solution)
    assert solution.value is not None
    if method not in ("best-device", "hsdag", "mincut", "met", "repeated"):  # met knows no load; nothing repeats here
        assert solution.value < 0.6 * min(s for s in solution.single_devices.values() if s is not None)


@pytest.mark.slow
@pytest.mark.parametrize("method", method_names())
def test_an_interrupt_at_any_moment_leaves_the_best_that_was_evaluated(
    chain: ScheduleProblem, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments are drawn from the times at which an undisturbed search asks whether to stop: every one is met."""
    known_s, asked = [np.inf], itertools.count()
    evaluate, num_units = ScheduleEvaluator.evaluate, problem_of(chain).num_units

    def evaluated(self: ScheduleEvaluator, plans: Sequence[Plan]) -> list[Score]:
        scores = evaluate(self, plans)
        whole = [len(plan.placement) == num_units for plan in plans]  # coarse has parts of the problem searched, too
        known_s.extend(score.value for score, is_whole in zip(scores, whole, strict=True) if is_whole)
        return scores

    answer(chain, method, lambda: next(asked) < 0, num_evaluations=60)
    num_asked = next(asked)
    monkeypatch.setattr(ScheduleEvaluator, "evaluate", evaluated)
    for patience in np.random.default_rng(len(method)).integers(0, num_asked, 2).tolist():
        known_s[:], asked = [np.inf], itertools.count()
        solution = answer(chain, method, lambda asked=asked, patience=patience: next(asked) >= patience)  # type: ignore[misc]
        check(solution)
        assert solution.value is not None
        assert solution.value <= min(known_s)


@pytest.mark.parametrize("method", [name for name in method_names() if find_method(name).needs_costs])
def test_unknown_costs_are_answered_with_what_to_do(method: str) -> None:
    problem = random_problem(1, 3, 2)
    units = replace(problem_of(problem, FOR.get(method, LATENCY)), costs=None)
    with pytest.raises(OptionError, match=f"^method '{method}' needs the costs .* use reward hybrid or a problem"):
        make_placer(method).search(units, ScheduleEvaluator(problem, Semantics()))


EXECUTIONS = [
    (Semantics(), LATENCY),
    (Semantics(links=LinkSharing.CHANNEL), LATENCY),
    (Semantics(links=LinkSharing.EGRESS), THROUGHPUT),
    (Semantics(links=LinkSharing.BLOCKING), THROUGHPUT),
    (Semantics(), THROUGHPUT),
    (Semantics(Execution.SEQUENTIAL), LATENCY),
    (Semantics(Execution.SEQUENTIAL, links=LinkSharing.EGRESS), LATENCY),
]


def small_problem(seed: int) -> ScheduleProblem:
    """Up to five ops on two or three devices: memories, launches, co-location, ops that a device lacks."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 6)), int(rng.integers(2, 4))
    weights = rng.integers(0, 5, n).astype(float)
    problem = random_problem(seed, n, d, weight_bytes=weights, launch_s=rng.integers(0, 3, d).astype(float))
    tied = rng.random() < 0.5 and problem.supported.all()
    together = tuple("set" if tied and v in (0, n - 1) else "" for v in range(n))
    labels = replace(problem.labels, colocate=together, meta_ops=tuple(f"m{v // 2}" for v in range(n)))
    share, total = float(rng.choice([np.inf, 0.9, 0.6])), float(weights.sum() + problem.output_bytes.sum())
    room = np.full(d, share * total if np.isfinite(share) else np.inf)
    return replace(problem, memory_bytes=room, labels=replace(labels, roles=("shard",) * n))


def least_s(problem: ScheduleProblem, semantics: Semantics, objective: Objective) -> float:
    """Simulated seconds of the best legal placement; infinite where none is."""
    every, tied = every_placement(problem), [v for v, name in enumerate(problem.labels.colocate) if name]
    every = every[(every[:, tied] == every[:, tied[:1]]).all(axis=1)]
    every = every[problem.supported[np.arange(problem.num_ops), every].all(axis=1)]
    scores = ScheduleEvaluator(problem, semantics, objective).evaluate([Plan(device) for device in every])
    return min((score.value for score in scores), default=np.inf)


@pytest.mark.slow
@pytest.mark.parametrize("method", method_names())
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), how=st.sampled_from(EXECUTIONS))
def test_no_bound_is_above_an_optimum_and_no_answer_illegal_or_below_its_bound(
    method: str, seed: int, how: tuple[Semantics, Objective]
) -> None:
    problem, (semantics, objective), learns = small_problem(seed), how, find_method(method).learns
    objective, known = FOR.get(method, objective), find_method(method).objectives
    assume(known is None or objective.name in known)
    seconds, most, best_s = 0.5 if learns else 2.0, 8 if learns else 60, least_s(problem, semantics, objective)
    options = SolveOptions(method, objective, budget_s=seconds, max_evaluations=most, semantics=semantics)
    try:
        solution = solve(problem, options.placer(), options)
    except (SearchError, OptionError):  # tight memory that the method gave up on, or no single device for best-device
        special = (
            "beam",
            "best-device",
            "coarse",
            "repeated",
            "windows",
        )  # of one device, of some graphs, of schedules
        assert method in special or np.isfinite(problem.memory_bytes[0])
        return
    if solution.status is Status.INFEASIBLE:
        assert np.isinf(best_s)
    assert solution.lower_bound <= best_s * (1 + 1e-9)
    if solution.plan is None:
        return
    check(solution)
    device = solution.plan.placement
    assert problem.supported[np.arange(problem.num_ops), device].all()
    assert len({d for d, s in zip(device.tolist(), problem.labels.colocate, strict=True) if s}) <= 1
    if semantics.execution is Execution.SEQUENTIAL or objective is THROUGHPUT:  # else orders have a say
        assert solution.value is not None
        assert solution.value >= best_s * (1 - 1e-9)
