"""Solving problems: never worse than a single device, honest endings, bounds that hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.base.errors import OptionError, SearchError
from hsdag.methods.base import NoOptions, Placer
from hsdag.methods.cuts.pipeline import PipelinePlacer
from hsdag.methods.incumbent import Incumbent, Status
from hsdag.methods.lists.schedulers import EnumerativePlacer
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.packing import Packing, pack_weights
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Order, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate
from hsdag.search.driver import Watcher
from hsdag.search.evaluators.base import SearchStopped
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.search.simulate import simulate_placement
from hsdag.search.solution import SolveResult
from hsdag.search.solve import solve
from tests.hsdag.methods.exact.exact_reference import random_problem
from tests.hsdag.search.evaluators.test_schedule_evaluator import urgent

OPTIONS = SolveOptions("test", budget_s=60.0)


class Does(Placer[NoOptions]):
    """A method that does with its incumbent what a test says."""

    name = "test"
    needs_costs = False

    def __init__(self, what: Callable[[Incumbent], object]) -> None:
        super().__init__()
        self._what = what

    def _search(self, incumbent: Incumbent) -> Status:
        ended = self._what(incumbent)
        return ended if isinstance(ended, Status) else Status.FEASIBLE


class DoesInOrder(Does):
    """The same with orders."""

    gives_order = True


def all_plans(incumbent: Incumbent) -> None:
    problem = incumbent.problem
    every = itertools.product(range(problem.num_devices), repeat=problem.num_units)
    incumbent.evaluate([Plan(np.array(choice)) for choice in every])


EVERYTHING = Does(all_plans)


def ranked(unit_priority: dict[str, int]) -> Does:
    """Puts 'far' on the second device and the rest on the first, with ranks."""

    def consider(incumbent: Incumbent) -> None:
        names = incumbent.problem.units.graph.op_names
        placement = np.array([int(name == "far") for name in names])
        incumbent.consider(placement, np.array([unit_priority[name] for name in names]))

    return DoesInOrder(consider)


def proving(status: Status) -> Does:
    """Ends with a bound of its own."""
    return Does(lambda incumbent: (incumbent.report(bound=Bound(2.5, "a proof of its own")), status)[1])


def stopped_with_ranks(incumbent: Incumbent) -> None:
    incumbent.evaluate([Plan(np.array([0, 0, 1]), np.array([1, 0, 2]))])
    raise SearchStopped


def six_ops(seed: int, memory: float = np.inf) -> ScheduleProblem:
    tables: dict[str, Any] = {"weight_bytes": np.linspace(0.0, 6.0, 6), "memory_bytes": memory, "link_latency_s": 0.1}
    return random_problem(seed, 6, real=True, lacks=0.0, **tables)


def test_an_answer_that_meets_the_bound_is_optimal_and_ends_the_search() -> None:
    problem = ScheduleProblem.from_arrays([[1.0, 2.0], [1.0, 2.0]], [(0, 1)])
    solution = solve(problem, EVERYTHING, OPTIONS)
    assert (solution.status, solution.value, solution.gap) == (Status.OPTIMAL, 2.0, 0.0)
    assert solution.num_evaluations == problem.num_devices


@given(st.integers(0, 2**32), st.sampled_from([LATENCY, THROUGHPUT]), st.sampled_from(list(Execution)))
def test_a_bad_method_still_answers_the_best_single_device(seed: int, objective: Objective, how: Execution) -> None:
    options = replace(OPTIONS, objective=objective, semantics=Semantics(how))
    worst = Does(lambda incumbent: incumbent.evaluate([Plan(np.ones(6, dtype=np.int64))]))
    solution = solve(six_ops(seed), worst, options)
    assert solution.value == min(solution.single_devices.values())
    assert set(solution.single_devices) == {"d0", "d1"}


@pytest.mark.usefixtures("both_ways")
@given(st.integers(0, 2**32), st.sampled_from(list(LinkSharing)), st.sampled_from(list(Execution)))
def test_the_answer_simulates_to_what_it_promises(seed: int, links: LinkSharing, how: Execution) -> None:
    objective = THROUGHPUT if links is LinkSharing.BLOCKING else LATENCY
    options = replace(OPTIONS, objective=objective, semantics=Semantics(how, links=links))
    problem = six_ops(seed)
    solution = solve(problem, EVERYTHING, options)
    assert solution.plan is not None
    again = simulate_placement(problem, solution.plan.unordered, options.semantics, objective)
    assert again.value == solution.value
    if objective is LATENCY:
        semantics = options.semantics
        every = itertools.product(range(2), repeat=6)
        assert again.value == min(simulate(problem, each, semantics).makespan_s for each in every)
    assert solution.lower_bound <= again.value * (1 + 1e-12)


def test_the_end_of_the_budget_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, limits_s = six_ops(1), list[float]()
    noted = lambda *each: limits_s.append(each[2]) or pack_weights(*each)  # type: ignore[func-returns-value]  # noqa: E731
    monkeypatch.setattr("hsdag.search.solve.pack_weights", noted)
    solution = solve(problem, EVERYTHING, replace(OPTIONS, max_evaluations=5))
    assert (solution.status, solution.num_evaluations) == (Status.TIME_LIMIT, 5)
    assert (solution.value or np.inf) <= min(solution.single_devices.values())
    assert solve(problem, EVERYTHING, replace(OPTIONS, budget_s=1e-9)).status is Status.TIME_LIMIT
    assert limits_s == [2.0, 1e-9]


def test_an_interrupt_answers_the_best_so_far() -> None:
    solution = solve(six_ops(1), EVERYTHING, OPTIONS, Watcher(should_stop=lambda: True))
    assert solution.interrupted
    assert solution.status is Status.FEASIBLE
    assert solution.value == min(solution.single_devices.values())


@given(st.integers(0, 2**32), st.floats(9.0, 24.0))
def test_no_answer_exceeds_a_memory_and_infeasible_is_said_only_where_it_is(seed: int, memory: float) -> None:
    problem = six_ops(seed, memory)
    every = [np.array(p) for p in itertools.product(range(2), repeat=6)]
    is_possible = any((simulate(problem, p).peak_memory_bytes <= memory).all() for p in every)
    try:
        solution = solve(problem, EVERYTHING, OPTIONS)
    except SearchError:  # weights fit, and no placement does in its order
        assert not is_possible
        return
    if is_possible:
        assert solution.run is not None
        assert (solution.run.peak_memory_bytes <= memory).all()
        return
    assert (solution.status, solution.model_dump(by_alias=True)["placement"]) == (Status.INFEASIBLE, None)
    assert pack_weights(problem, problem_of(problem)).status is Packing.IMPOSSIBLE
    with pytest.raises(SearchError, match="no placement to write"):
        _ = solution.placement


def test_ranks_of_a_method_are_honoured_and_kept() -> None:
    solution = solve(urgent(), ranked({"near": 1, "late": 0, "far": 2}), OPTIONS)
    assert solution.value == 1 + 5  # first come, first served would take 5 + 1 + 5
    assert solution.semantics.order is Order.PRIORITY
    assert solution.priority == {"near": 1, "late": 0, "far": 2}
    assert solution.placement.priority == solution.priority


def test_ranks_that_harm_are_left_out() -> None:
    times, names = [[1.0, 50.0], [5.0, 50.0], [50.0, 5.0]], ["late", "near", "far"]
    problem = ScheduleProblem.from_arrays(times, [(0, 2)], op_names=names)
    delaying = ranked({"near": 0, "late": 1, "far": 2})

    def value(order: Order | None) -> float | None:
        return solve(problem, delaying, replace(OPTIONS, semantics=Semantics(order=order))).value

    assert value(None) == 1 + 5
    assert value(Order.PRIORITY) == 1 + 5  # in topological order, which needs no ranks of the method


@pytest.mark.parametrize(
    ("placer", "objective", "semantics", "message"),
    [
        (EVERYTHING, LATENCY, Semantics(order=Order.PRIORITY), "method 'test' gives none"),
        (PipelinePlacer(), LATENCY, Semantics(order=Order.PRIORITY), "method 'pipeline' gives none"),
        (EVERYTHING, LATENCY, Semantics(links=LinkSharing.BLOCKING), "links blocking is for objective throughput"),
        (EnumerativePlacer(), LATENCY, Semantics(), "'enumerative' needs the meta-op of each op"),
    ],
)
def test_what_can_be_refused_is_refused_before_anything_is_evaluated(
    placer: Placer[Any], objective: Objective, semantics: Semantics, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Plan] = []
    monkeypatch.setattr(ScheduleEvaluator, "evaluate", lambda _, plans: asked.extend(plans))
    with pytest.raises(OptionError, match=message):
        solve(urgent(), placer, replace(OPTIONS, objective=objective, semantics=semantics))
    assert asked == []


def test_the_document_has_the_schedule_by_start_and_where_no_device_runs_all_no_singles() -> None:
    problem = ScheduleProblem.from_arrays([[1.0, np.nan], [np.nan, 2.0], [1.0, np.nan]], [(0, 1)])
    document = solve(problem, EVERYTHING, OPTIONS).model_dump(mode="json", by_alias=True)
    rows = [(0, 0.0, 1.0), (2, 1.0, 2.0), (1, 1.0, 3.0)]
    assert document["schedule"] == [
        {"op": f"op{v}", "device": f"d{v % 2}", "start_s": start_s, "end_s": end_s} for v, start_s, end_s in rows
    ]
    assert (document["value"], document["status"], document["single_devices"]) == (3.0, "optimal", {})
    assert document["placement"] == {"op0": "d0", "op1": "d1", "op2": "d0"}


def test_what_a_method_proves_counts_unless_ops_are_tied_or_one_has_several_results() -> None:
    """Exact methods send all results of an op as one, so that their proofs are of another problem."""
    plain = ScheduleProblem.from_arrays([[1.0, 1.0]] * 3, [(0, 1), (0, 2)])
    tied = replace(plain, labels=replace(plain.labels, colocate=("s", "s", "")))
    ports = replace(plain, edge_port=np.array([0, 1]))
    ended = [solve(each, proving(Status.OPTIMAL), OPTIONS) for each in (plain, tied, ports)]
    assert [each.status for each in ended] == [Status.OPTIMAL, Status.FEASIBLE, Status.FEASIBLE]
    own, simple = Bound(2.5, "a proof of its own"), Bound(2.0, "the critical path")
    assert [each.bound for each in ended] == [own, simple, simple]
    assert solve(plain, proving(Status.FEASIBLE), OPTIONS).bound == own


def test_a_stopped_search_keeps_the_order_of_its_best() -> None:
    assert solve(urgent(), DoesInOrder(stopped_with_ranks), OPTIONS).value == 1 + 5


def test_the_best_so_far_is_told_every_second_and_less_often_where_telling_takes_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Telling takes 0.25 s, and may take a twentieth of the time; what is told already is not told again."""
    problem = ScheduleProblem.from_arrays([[4.0, 4.0], [2.0, 2.0], [1.0, 1.0]], [])
    now, told = [0.0], list[tuple[float, float | None]]()
    monkeypatch.setattr("hsdag.search.solve.time", SimpleNamespace(monotonic=lambda: now[0]))

    def search(incumbent: Incumbent) -> None:
        for second, placement in ((0.5, [0, 0, 1]), (1, [0, 1, 0]), (6, [1, 1, 0]), (6.25, [1, 0, 1]), (13, [0, 0, 1])):
            now[0] = 100.0 + second
            incumbent.evaluate([Plan(np.array(placement))])

    def tell(solution: SolveResult) -> None:
        told.append((now[0], solution.value))
        now[0] += 0.25

    for on_better in (None, tell):
        now[0] = 100.0
        assert solve(problem, Does(search), OPTIONS, on_better=on_better).elapsed_s <= 13.0
    assert told == [(101.0, 6.0), (106.25, 5.0)]
