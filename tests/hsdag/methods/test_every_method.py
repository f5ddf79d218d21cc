"""What holds for every method: legal answers, no worse than a device alone, no better than the bound, at any time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hsdag.ir.errors import OptionError, SearchError
from hsdag.methods import method_names
from hsdag.methods.incumbent import Status
from hsdag.methods.registry import find_method, make_placer
from hsdag.models import find_workload
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.platforms.reader import load_platform
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.scoring.base import Score
from hsdag.scoring.schedule import ScheduleEvaluator
from hsdag.search.driver import Watcher
from hsdag.search.options import SolveOptions
from hsdag.search.solution import SolveResult
from hsdag.search.solve import solve
from hsdag.sources import workload_problem
from tests.hsdag.methods.exact.exact_reference import every_placement, least_makespan_s, random_problem

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
    assert solution.value_s is not None
    assert solution.lower_bound_s <= solution.value_s * (1 + 1e-9)
    singles = [s for s in solution.single_s.values() if s is not None]
    assert solution.value_s <= min(singles, default=np.inf) * (1 + 1e-9)
    assert (solution.run.peak_memory_bytes <= solution.problem.memory_bytes * (1 + 1e-9)).all()


@pytest.mark.parametrize("method", method_names())
def test_answers_are_legal_and_methods_for_parallel_work_use_the_devices(chain: ScheduleProblem, method: str) -> None:
    solution = answer(chain, method)
    check(solution)
    assert solution.value_s is not None
    if method not in ("best-device", "hsdag", "mincut", "met", "repeated"):  # met knows no load; nothing repeats here
        assert solution.value_s < 0.6 * min(s for s in solution.single_s.values() if s is not None)


@pytest.mark.slow
@pytest.mark.parametrize("method", method_names())
def test_an_interrupt_at_any_moment_leaves_the_best_that_was_evaluated(
    chain: ScheduleProblem, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments are drawn from the times at which an undisturbed search asks whether to stop: every one is met."""
    known_s, asked = [np.inf], itertools.count()
    evaluate = ScheduleEvaluator.evaluate

    def evaluated(self: ScheduleEvaluator, plans: Sequence[Plan]) -> list[Score]:
        scores = evaluate(self, plans)
        known_s.extend(score.value for score in scores)
        return scores

    answer(chain, method, lambda: next(asked) < 0, num_evaluations=60)
    num_asked = next(asked)
    monkeypatch.setattr(ScheduleEvaluator, "evaluate", evaluated)
    for patience in np.random.default_rng(len(method)).integers(0, num_asked, 2).tolist():
        known_s[:], asked = [np.inf], itertools.count()
        solution = answer(chain, method, lambda asked=asked, patience=patience: next(asked) >= patience)  # type: ignore[misc]
        check(solution)
        assert solution.value_s is not None
        assert solution.value_s <= min(known_s)


@pytest.mark.parametrize("method", [name for name in method_names() if find_method(name).needs_costs])
def test_unknown_costs_are_answered_with_what_to_do(method: str) -> None:
    problem = random_problem(1, 3, 2)
    units = replace(problem_of(problem, FOR.get(method, LATENCY)), costs=None)
    with pytest.raises(OptionError, match=f"^method '{method}' needs the costs .* use --reward hybrid or a problem"):
        make_placer(method).search(units, ScheduleEvaluator(problem, Semantics()))


EXECUTIONS = [
    (Semantics(), LATENCY),
    (Semantics(links=Links.CHANNEL), LATENCY),
    (Semantics(links=Links.EGRESS), THROUGHPUT),
    (Semantics(links=Links.BLOCKING), THROUGHPUT),
    (Semantics(), THROUGHPUT),
    (Semantics(Execution.SEQUENTIAL), LATENCY),
    (Semantics(Execution.SEQUENTIAL, links=Links.EGRESS), LATENCY),
]


@st.composite
def small_problems(draw: st.DrawFn) -> ScheduleProblem:
    """Up to five ops on two or three devices: memories, launches, co-location, ops that a device lacks."""
    problem = random_problem(draw(st.integers(0, 2**32)), draw(st.integers(1, 5)), draw(st.integers(2, 3)))
    n, d = problem.num_ops, problem.num_devices
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    weights = rng.integers(0, 5, n).astype(float)
    room = draw(st.sampled_from([np.inf, 0.9, 0.6])) * float(weights.sum() + problem.output_bytes.sum())
    tied = draw(st.booleans()) and problem.supported.all()
    colocate = tuple("set" if tied and v in (0, n - 1) else "" for v in range(n))
    return replace(
        problem,
        weight_bytes=weights,
        memory_bytes=np.full(d, room if np.isfinite(room) else np.inf),
        launch_s=rng.integers(0, 3, d).astype(float),
        labels=replace(
            problem.labels, colocate=colocate, meta_ops=tuple(f"m{v // 2}" for v in range(n)), roles=("shard",) * n
        ),
    )


def legal_costs_s(problem: ScheduleProblem, semantics: Semantics, objective: Objective) -> np.ndarray:
    """Simulated seconds of all placements that are legal; those of all orders count where order has a say."""
    every = every_placement(problem)
    sets = problem.labels.colocate
    together = [v for v in range(problem.num_ops) if sets[v]]
    every = every[(every[:, together] == every[:, together[:1]]).all(axis=1)]
    every = every[problem.supported[np.arange(problem.num_ops), every].all(axis=1)]
    judged = ScheduleEvaluator(problem, semantics, objective).evaluate([Plan(device) for device in every])
    return np.array([score.value for score in judged] or [np.inf])


@pytest.mark.slow
@pytest.mark.parametrize("method", method_names())
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(problem=small_problems(), how=st.sampled_from(EXECUTIONS))
def test_no_bound_is_above_an_optimum_and_no_answer_illegal_or_below_its_bound(
    method: str, problem: ScheduleProblem, how: tuple[Semantics, Objective]
) -> None:
    semantics, objective = how
    objective, known = FOR.get(method, objective), find_method(method).objectives
    assume(known is None or objective.name in known)
    most = 8 if find_method(method).learns else 60
    seconds = 0.5 if find_method(method).learns else 2.0
    options = SolveOptions(method, objective, budget_s=seconds, max_evaluations=most, semantics=semantics)
    costs_s = legal_costs_s(problem, semantics, objective)
    try:
        solution = solve(problem, options.placer(), options)
    except (SearchError, OptionError):  # tight memory that the method gave up on, or no single device for best-device
        special = ("best-device", "repeated", "windows")  # of one device, where something repeats, of schedules alone
        assert method in special or np.isfinite(problem.memory_bytes).any()
        return
    if solution.status is Status.INFEASIBLE:
        assert np.isinf(costs_s).all()
    assert solution.lower_bound_s <= costs_s.min() * (1 + 1e-9)
    if solution.device is None:
        return
    check(solution)
    assert solution.value_s is not None
    assert solution.value_s >= solution.lower_bound_s * (1 - 1e-9)
    assert problem.supported[np.arange(problem.num_ops), solution.device].all()
    assert len({d for d, s in zip(solution.device.tolist(), problem.labels.colocate, strict=True) if s}) <= 1
    if semantics.execution is Execution.SEQUENTIAL or objective is THROUGHPUT:
        assert solution.value_s >= costs_s.min() * (1 - 1e-9)
    elif semantics.links is Links.INDEPENDENT:
        best_s = least_makespan_s(problem)  # without memories and ties
        assert solution.value_s >= best_s * (1 - 1e-9)
        is_limited = any(problem.labels.colocate) or np.isfinite(problem.memory_bytes[0])
        assert is_limited or solution.lower_bound_s <= best_s + 1e-9
