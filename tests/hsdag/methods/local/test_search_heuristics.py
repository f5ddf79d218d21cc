"""What holds for every heuristic placer, and what single ones find."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.methods.incumbent import Incumbent, Status
from hsdag.methods.lists.base import ListPlacer
from hsdag.methods.local.sa import SaPlacer
from hsdag.methods.registry import make_placer
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.bounds.makespan import lower_bound
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate, simulate_makespans
from hsdag.runtime.simulator.values import period_s
from hsdag.scoring.recording import Budget, Event, RecordingEvaluator
from hsdag.scoring.schedule import ScheduleEvaluator
from tests.hsdag.methods.searches import recorded

LISTS = ("met", "greedy", "heft", "cpop", "etf", "m-etf", "critical-path", "enumerative")
METHODS = (*LISTS, "ea", "sa")
BALANCING = ("greedy", "heft", "cpop", "etf", "m-etf", "critical-path")


def random_problem(seed: int, *, memory: bool = False) -> ScheduleProblem:
    """Up to 12 ops on up to 4 devices, some unsupported, labelled as shards; any device with memory holds most."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 13)), int(rng.integers(1, 5))
    edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < rng.choice([0.0, 0.1, 0.4])]
    times = rng.integers(0, 5, (n, d)).astype(float) if rng.random() < 0.3 else rng.random((n, d))
    times[rng.random((n, d)) < 0.15] = np.nan
    times[np.isnan(times).all(axis=1), 0] = 1.0
    meta_ops = tuple(f"m{v // 3}" if v // 3 != 1 else "" for v in range(n))
    weights, outputs = rng.random(n), rng.random(n)
    return ScheduleProblem.from_arrays(
        times,
        edges,
        output_bytes=outputs,
        weight_bytes=weights,
        memory_bytes=float(0.8 * (weights + outputs).sum() + (weights + outputs).max()) if memory else np.inf,
        link_latency_s=0.1,
        link_bandwidth_bytes_per_s=2.0,
        launch_s=0.2,
        op_overhead_s=float(rng.choice([0.0, 0.1])),
        labels=OpLabels(("Op",) * n, ("",) * n, meta_ops, tuple(rng.choice(["shard", "reduce"], n)), ("",) * n),
    )


def best_s(events: list[Event]) -> float:
    return min((e.score.value for e in events), default=np.inf)


def everything(problem: ScheduleProblem) -> np.ndarray:
    return np.array(list(itertools.product(range(problem.num_devices), repeat=problem.num_ops)))


@pytest.mark.parametrize("method", METHODS)
@given(
    st.integers(0, 2**32),
    st.sampled_from([LATENCY, THROUGHPUT]),
    st.sampled_from(list(Execution)),
    st.sampled_from(Links),
)
@settings(max_examples=settings().max_examples // 3)
def test_placements_are_supported_and_never_below_the_bound(
    method: str, seed: int, objective: Objective, how: Execution, links: Links
) -> None:
    if links is Links.BLOCKING and objective is LATENCY:
        links = Links.INDEPENDENT
    problem = random_problem(seed)
    events, returned = recorded(problem, method, Semantics(how, links=links), objective)
    assert all(problem.supported[np.arange(problem.num_ops), e.plan.placement].all() for e in events)
    assert best_s(events) >= lower_bound(objective, problem, how).value_s * (1 - 1e-12)
    assert returned is None or any(np.array_equal(e.plan.placement, returned) for e in events)


@pytest.mark.parametrize("method", METHODS)
@given(st.integers(0, 2**32), st.sampled_from([LATENCY, THROUGHPUT]))
@settings(max_examples=settings().max_examples // 3)
def test_memory_is_kept_where_it_suffices(method: str, seed: int, objective: Objective) -> None:
    problem = random_problem(seed, memory=True)
    spacious = replace(problem, memory_bytes=np.full(problem.num_devices, np.inf))
    semantics = Semantics()
    first = recorded(spacious, method, semantics, objective, most=1)[0][0].plan.placement
    events, _ = recorded(problem, method, semantics, objective)
    runs = [simulate(problem, e.plan.placement, ranks=e.plan.order) for e in events]
    fits = [(run.peak_memory_bytes <= problem.memory_bytes).all() for run in runs]
    legal = [e for e, fit in zip(events, fits, strict=True) if fit]
    assert [e for e in events if e.score.failure is None] == legal
    if problem.num_devices > 1 and problem.supported.all():
        assert legal
    if (simulate(problem, first).peak_memory_bytes <= problem.memory_bytes).all():
        assert np.array_equal(events[0].plan.placement, first)


@pytest.mark.parametrize("method", METHODS)
@given(st.integers(0, 2**32), st.integers(1, 80))
@settings(max_examples=settings().max_examples // 4)
def test_an_interrupted_search_has_recorded_its_warm_start_or_better(method: str, seed: int, most: int) -> None:
    problem = random_problem(seed)
    events, _ = recorded(problem, method, most=most)
    warm_start = np.nanargmin(problem.time_s, axis=1)
    assert np.array_equal(events[0].plan.placement, warm_start)
    assert best_s(events) <= simulate(problem, warm_start).makespan_s


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_search(method: str) -> None:
    problem = random_problem(12)
    one, other = (recorded(problem, method, seed=3) for _ in range(2))
    assert [e.plan for e in one[0]] == [e.plan for e in other[0]]


@pytest.mark.parametrize("method", [m for m in LISTS if m not in ("met", "enumerative")])
def test_list_schedulers_give_the_order_of_their_schedule(method: str) -> None:
    problem = random_problem(5)
    units, placer = problem_of(problem), make_placer(method)
    assert isinstance(placer, ListPlacer)
    assert placer.gives_order
    assert units.costs is not None
    for plan in placer.proposals(units, 0):
        assert plan.order is not None
        assert sorted(plan.order.tolist()) == list(range(problem.num_ops))
        assert np.all(plan.order[units.costs.edge_src] < plan.order[units.costs.edge_dst])


@pytest.mark.parametrize(("objective", "how"), [(THROUGHPUT, "work-conserving"), (LATENCY, "sequential")])
def test_there_are_no_ranks_where_order_has_no_say(objective: Objective, how: str) -> None:
    problem, semantics = random_problem(5), Semantics(Execution(how))
    units = problem_of(problem, objective, semantics)
    plan = make_placer("heft").search(units, ScheduleEvaluator(problem, semantics, objective)).plan
    assert plan is not None
    assert plan.order is None


@pytest.mark.parametrize("method", BALANCING)
def test_equal_ops_are_shared_out_evenly_for_throughput(method: str) -> None:
    problem = ScheduleProblem.from_arrays(np.ones((12, 4)), [])
    _, returned = recorded(problem, method, objective=THROUGHPUT)
    assert returned is not None
    assert np.bincount(returned).tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize("links", [Links.CHANNEL, Links.EGRESS, Links.BLOCKING])
def test_a_slow_link_keeps_a_chain_together_for_throughput(links: Links) -> None:
    problem = ScheduleProblem.from_arrays(np.ones((6, 2)), [(v, v + 1) for v in range(5)], link_latency_s=100.0)
    _, returned = recorded(problem, "etf", Semantics(links=links), THROUGHPUT)
    assert returned is not None
    assert period_s(problem, returned[None], Semantics(links=links))[0] == 6.0


@given(st.integers(0, 2**32), st.sampled_from(Links))
def test_balancing_a_single_choice_takes_the_least_period(seed: int, links: Links) -> None:
    # All but the last op are fixed; the last one decides which resource is busiest.
    rng = np.random.default_rng(seed)
    times = rng.random((6, 3))
    times[:5][np.arange(3) != rng.integers(3, size=5)[:, None]] = np.nan
    problem = ScheduleProblem.from_arrays(
        times,
        [(u, 5) for u in range(5)],
        output_bytes=rng.random(6),
        link_latency_s=0.1,
        link_bandwidth_bytes_per_s=2.0,
        transfer_overhead_s=0.05,
        op_overhead_s=0.02,
    )
    _, returned = recorded(problem, "heft", Semantics(links=links), THROUGHPUT)
    assert returned is not None
    choices = np.repeat(returned[None], 3, axis=0)
    choices[:, 5] = np.arange(3)
    periods = period_s(problem, choices, Semantics(links=links))
    alone = period_s(problem, returned[None], Semantics(links=links))[0]
    assert alone <= periods.min() * (1 + 1e-12)


def test_critical_path_runs_differ_and_the_best_is_kept() -> None:
    rng = np.random.default_rng(77)
    edges = [(u, v) for v in range(30) for u in range(v) if rng.random() < 0.1]
    problem = ScheduleProblem.from_arrays(rng.random((30, 3)), edges, link_latency_s=0.1)
    events, returned = recorded(problem, "critical-path", most=np.inf)
    assert returned is not None
    own = [e for e in events[1:] if e.score.failure is None]
    best = min(own, key=lambda event: event.score.value)
    assert best.plan.placement.tolist() == returned.tolist()
    assert len(own) > 3


@pytest.mark.parametrize("method", ["ea", "sa"])
@pytest.mark.parametrize("seed", [1, 2])
def test_small_problems_are_searched_to_the_optimum(method: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = [(u, v) for v in range(5) for u in range(v) if rng.random() < 0.4]
    problem = ScheduleProblem.from_arrays(rng.random((5, 2)), edges, link_latency_s=0.2)
    events, _ = recorded(problem, method, most=np.inf)
    best = simulate_makespans(problem, everything(problem)).min()
    assert best_s(events) == best if method == "ea" else best_s(events) <= best


def test_annealing_needs_no_costs() -> None:
    problem = ScheduleProblem.from_arrays(np.ones((4, 2)), [])
    units = replace(problem_of(problem), costs=None)
    found = make_placer("sa").search(units, ScheduleEvaluator(problem, Semantics())).plan
    assert found is not None
    assert np.bincount(found.placement).tolist() == [2, 2]


@pytest.mark.parametrize("method", ["ea", "sa"])
def test_a_search_without_a_choice_ends(method: str) -> None:
    problem = ScheduleProblem.from_arrays([[1.0, np.nan], [np.nan, 1.0]], [(0, 1)])
    events, returned = recorded(problem, method, most=np.inf)
    assert len({tuple(event.plan.placement) for event in events}) == 1
    assert returned is not None


class Timed(ScheduleEvaluator):
    """Simulated, but as dear as what is measured."""

    is_cheap = False


def test_annealing_of_few_dear_evaluations_ends_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    heats: list[float] = []
    temperature = SaPlacer.heat

    def noted(self: SaPlacer, incumbent: Incumbent) -> float:
        heats.append(temperature(self, incumbent))
        return heats[-1]

    monkeypatch.setattr(SaPlacer, "heat", noted)
    problem = ScheduleProblem.from_arrays(np.random.default_rng(0).random((12, 3)), [], link_latency_s=0.1)
    recorder = RecordingEvaluator(Timed(problem, Semantics()), Budget(evaluations=60))
    assert make_placer("sa").search(problem_of(problem), recorder).status is Status.TIME_LIMIT
    assert len(recorder.events) == 60
    assert heats[0] > 0
    assert heats[-1] < 0.1 * heats[0]
    assert len(heats) > 40
