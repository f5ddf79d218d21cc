"""Min-cut: equal to brute force over a cost written out here, legal within memory, bounds that hold."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from hsdag.base.kernels import interpret
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.methods.cuts import alpha_expansion, cut_graph
from hsdag.methods.cuts.alpha_expansion import MAX_PAIRS, MAX_STARTS, best_cut, cheapest, expanded
from hsdag.methods.cuts.cut_graph import BoundaryCosts, Launches, _add, _Arcs, _Hyperedge, best_move, pair_cut
from hsdag.methods.cuts.mincut import MincutPlacer
from hsdag.methods.cuts.pipeline import PipelinePlacer
from hsdag.methods.incumbent import Limits, Result, Status
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate_makespans
from hsdag.runtime.simulator.values import period_s
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import every_placement, random_problem
from tests.hsdag.methods.searches import not_none

SOME = settings().max_examples // 2

SEQUENTIAL = Semantics(Execution.SEQUENTIAL)


def drawn(
    seed: int, num_ops: int, num_devices: int = 2, *, equal_links: bool = False, launches: bool = True
) -> ScheduleProblem:
    """Transfers that are cheap beside ops, over links of any speed unless they are equal; launches and weights."""
    rng, shape = np.random.default_rng(seed), (num_devices, num_devices)
    tables: dict[str, Any] = {
        "link_latency_s": 0.4 if equal_links else rng.uniform(0.1, 1.0, shape),
        "link_bandwidth_bytes_per_s": 24.0 if equal_links else rng.uniform(6.0, 60.0, shape),
        "weight_bytes": 6.0 * rng.random(num_ops),
        "launch_s": rng.uniform(0.0, 1.0, num_devices) if launches else 0.0,
        "transfer_overhead_s": 0.2,
    }
    return random_problem(seed, num_ops, num_devices, 0.3, real=True, **tables)


def plain_costs_s(problem: ScheduleProblem, table: IntArray, launches: Launches) -> FloatArray:
    """[B] simulated seconds of placements [B, ops]; of transfers that launch, each takes so much longer."""
    if launches is not Launches.RUNS:
        more_s = problem.launch_s[None] * (launches is Launches.TRANSFERS)
        without = np.zeros(problem.num_devices)
        problem = replace(problem, launch_s=without, link_latency_s=problem.link_latency_s + more_s)
    return simulate_makespans(problem, table, SEQUENTIAL)


def plain_cost_s(problem: ScheduleProblem, device: IntArray, launches: Launches = Launches.RUNS) -> float:
    return float(plain_costs_s(problem, device[None], launches)[0])


def search(
    problem: ScheduleProblem,
    how: Semantics = SEQUENTIAL,
    objective: Objective = LATENCY,
    judged_by: Semantics | None = None,
) -> Result:
    return MincutPlacer().search(problem_of(problem, objective, how), evaluator(problem, judged_by or how, objective))


def evaluator(
    problem: ScheduleProblem, how: Semantics = SEQUENTIAL, objective: Objective = LATENCY
) -> ScheduleEvaluator:
    return ScheduleEvaluator.of(problem_of(problem, objective, how))


@pytest.mark.parametrize("seed", range(60))
def test_the_cut_of_two_devices_equals_brute_force(seed: int) -> None:
    launches = list(Launches)[seed % 3]
    problem = drawn(seed, 1 + seed % 14)
    cut = not_none(pair_cut(BoundaryCosts.of(problem, launches), 0, 1))
    best_s = float(plain_costs_s(problem, every_placement(problem), launches).min())
    assert plain_cost_s(problem, cut.placement, launches) == pytest.approx(best_s, rel=1e-12)
    assert cut.bound_s == pytest.approx(best_s, rel=1e-12)


@given(st.integers(0, 2**32), st.sampled_from(Launches))
def test_the_cost_of_a_placement_is_the_plain_sum(seed: int, launches: Launches) -> None:
    problem = drawn(seed, 6, 3)
    device = np.array([np.flatnonzero(row)[-1] for row in problem.supported])
    assert BoundaryCosts.of(problem, launches).cost_s(device) == pytest.approx(plain_cost_s(problem, device, launches))


@given(st.integers(0, 2**32), st.integers(1, 7), st.booleans())
def test_a_move_to_one_device_is_the_best_of_all_where_links_are_equal_and_never_loses(
    seed: int, num_ops: int, equal_links: bool
) -> None:
    problem = drawn(seed, num_ops, 3, equal_links=equal_links)
    costs = BoundaryCosts.of(problem)
    before = costs.time_s.argmin(axis=1)
    for target in range(3):
        move = not_none(best_move(costs, before, target))
        sets = [np.array(chosen) for chosen in itertools.product([False, True], repeat=num_ops)]
        best_s = min(costs.cost_s(np.where(chosen, target, before)) for chosen in sets)
        assert costs.cost_s(move.placement) <= costs.cost_s(before) + 1e-12
        assert not equal_links or costs.cost_s(move.placement) == pytest.approx(best_s, rel=1e-12)


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize(("fixed_s", "slope_s"), [(1.0, 2.0), (5.0, -1.0), (-2.0, 1.0), (1.0, -1.0)])
def test_the_least_cut_of_a_hyperedge_costs_what_its_dearest_cut_member_costs(
    fixed_s: float, slope_s: float, forward: bool
) -> None:
    sizes, hub, center, none = np.array([4.0, 4.0, 3.0, 1.0]), 4, 5, np.empty(40, dtype=np.int64)
    arcs = _Arcs(none, none.copy(), np.empty(40), np.array([0, center]), np.zeros(1))
    readers = SimpleNamespace(size_bytes=sizes, reader=np.arange(4))
    interpret(_add, arcs, readers, _Hyperedge(hub, forward, fixed_s, slope_s), np.arange(4), np.arange(5))
    (n, end), (tail, head) = arcs.counts, (arcs.tail, arcs.head) if forward else (arcs.head, arcs.tail)
    least_s = max(0.0, fixed_s + slope_s)  # what smaller ones cost, larger ones do, too
    for cut in itertools.product([False, True], repeat=4):
        aways = [np.array([*cut, False, *centers]) for centers in itertools.product([False, True], repeat=end - center)]
        least_cut_s = min(arcs.capacity_s[:n][~away[tail[:n]] & away[head[:n]]].sum() for away in aways)
        dearest_s = max((max(least_s, fixed_s + slope_s * size) for size in sizes[list(cut)]), default=0.0)
        assert least_cut_s == pytest.approx(dearest_s)


@settings(max_examples=SOME)
@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 3))
def test_the_bound_is_below_every_simulated_placement_also_where_co_located_ops_are_one_unit(
    seed: int, num_ops: int, num_sets: int
) -> None:
    problem, rng = drawn(seed, num_ops, 2), np.random.default_rng(seed)
    sets = [f"s{k}" if k < num_sets else "" for k in rng.integers(0, 5, num_ops).tolist()]
    labels = replace(problem.labels, colocate=tuple(sets))
    problem = replace(problem, time_s=rng.random(problem.time_s.shape), labels=labels)
    bound = search(problem).lower_bound
    units = problem_of(problem)
    every = units.expand(np.array(list(itertools.product(range(2), repeat=units.num_units))))
    assert bound is not None
    assert bound.value <= simulate_makespans(problem, every, SEQUENTIAL).min()


@settings(max_examples=SOME)
@given(st.integers(0, 2**32), st.integers(1, 9), st.sampled_from([1, 2, 3]), st.sampled_from(Execution))
def test_for_throughput_the_answer_is_no_worse_than_that_of_pipeline(
    seed: int, num_ops: int, num_devices: int, execution: Execution
) -> None:
    """The placer is told that subgraphs run one after another, as ``hsdag place`` does, whatever the period counts."""
    problem, judged_by = drawn(seed, num_ops, num_devices), Semantics(execution)
    units, judge = problem_of(problem, THROUGHPUT, SEQUENTIAL), evaluator(problem, judged_by, THROUGHPUT)
    plan = PipelinePlacer().search(units, judge).plan
    if plan is None:  # devices that lack ops may leave no stages
        reject()
    staged = units.expand(plan.placement)
    answer = units.expand(not_none(search(problem, SEQUENTIAL, THROUGHPUT, judged_by).plan).placement)
    found_s, staged_s = period_s(problem, np.stack([answer, staged]), judged_by)
    assert found_s <= staged_s


@pytest.mark.slow
@settings(max_examples=SOME)
@given(
    st.integers(0, 2**32), st.integers(2, 6), st.sampled_from([2, 3]), st.floats(0.3, 1.2), st.sampled_from(Execution)
)
def test_within_memory_the_answer_is_legal_and_found_wherever_there_is_one(
    seed: int, num_ops: int, num_devices: int, share: float, execution: Execution
) -> None:
    problem, how = drawn(seed, num_ops, num_devices), Semantics(execution)
    room = share * (problem.weight_bytes.sum() + problem.output_bytes.sum()) * np.linspace(1.0, 0.7, num_devices)
    problem = replace(problem, memory_bytes=room)
    every = [np.array(device) for device in itertools.product(range(num_devices), repeat=num_ops)]
    judge, result = ScheduleEvaluator(problem, how), search(problem, how)
    if all(score.failure is not None for score in judge.evaluate([Plan(device) for device in every])):
        assert (result.plan, "no placement that fits into memory" in result.note) == (None, True)
        return
    answer = problem_of(problem).expand(not_none(result.plan).placement)
    assert judge.evaluate([Plan(answer)])[0].failure is None


@given(st.integers(0, 2**32), st.integers(1, 3))
@settings(max_examples=20)
def test_a_search_that_is_stopped_has_evaluated_the_best_single_device_first(seed: int, count: int) -> None:
    problem = replace(drawn(seed, 7), time_s=np.random.default_rng(seed).random((7, 2)))
    units = problem_of(problem, LATENCY, SEQUENTIAL)
    recorder = RecordingEvaluator(ScheduleEvaluator.of(units), Budget(evaluations=count))
    if MincutPlacer().search(units, recorder).status is Status.TIME_LIMIT:
        assert len(recorder.events) == count
    assert len(np.unique(recorder.events[0].plan.placement)) == 1
    alone_s = [plain_cost_s(problem, np.full(7, d)) for d in range(2)]
    assert recorder.events[0].plan.placement[0] == np.argmin(alone_s)


NUM_DEVICES = 20


def costs_of(num_ops: int = 30) -> BoundaryCosts:
    """The first half is fast on one of twenty devices, the second on another, and every other op fastest on a third."""
    time_s = np.full((num_ops, NUM_DEVICES), 2.0)
    time_s[::2, 0] = 0.9
    time_s[: num_ops // 2, 7] = time_s[num_ops // 2 :, 13] = 1.0
    return BoundaryCosts.of(ScheduleProblem.from_arrays(time_s, chain(num_ops), output_bytes=1.0, link_latency_s=0.5))


def chain(num_ops: int) -> list[tuple[int, int]]:
    return [(v, v + 1) for v in range(num_ops - 1)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The pairs that are cut, in turn, and the moves to a device as (-1, device)."""
    made: list[tuple[int, int]] = []
    pair_cut, best_move = cut_graph.pair_cut, cut_graph.best_move

    def cut(costs: BoundaryCosts, one: int, other: int) -> Any:
        made.append((one, other))
        return pair_cut(costs, one, other)

    def move(costs: BoundaryCosts, placement: Any, target: int) -> Any:
        made.append((-1, target))
        return best_move(costs, placement, target)

    monkeypatch.setattr(alpha_expansion, "pair_cut", cut)
    monkeypatch.setattr(alpha_expansion, "best_move", move)
    return made


def test_of_many_devices_the_pairs_that_could_be_cheapest_are_cut(calls: list[tuple[int, int]]) -> None:
    costs = costs_of()
    assert costs.cost_s(best_cut(costs)) == 30 * 1.0 + 0.5
    pairs = [each for each in calls if each[0] >= 0]
    assert pairs[0] == (7, 13)
    assert len(pairs) == MAX_PAIRS < NUM_DEVICES * (NUM_DEVICES - 1) // 2


def test_a_move_that_gains_nothing_changes_nothing_and_all_devices_have_one(calls: list[tuple[int, int]]) -> None:
    problem = ScheduleProblem.from_arrays(np.ones((5, 3)), chain(5), output_bytes=1.0, link_latency_s=1.0)
    costs, alone = BoundaryCosts.of(problem), np.zeros(5, dtype=np.int64)
    assert expanded(costs, alone) is alone
    assert calls == [(-1, 0), (-1, 1), (-1, 2)]
    assert [costs.cost_s(each) for each in cheapest(costs)] == [5.0]


@pytest.mark.parametrize("most", [0, 1, 5, MAX_PAIRS + 3])
def test_cuts_end_where_time_is_over_with_the_best_so_far(calls: list[tuple[int, int]], most: int) -> None:
    costs = costs_of()
    found = list(cheapest(costs, lambda: len(calls) >= most))
    assert len(calls) == most
    assert (costs.cost_s(found[-1]) == 30 * 1.0 + 0.5) == (most > 0)


def test_a_search_whose_time_is_over_still_evaluates_what_it_has_cut(calls: list[tuple[int, int]]) -> None:
    problem = ScheduleProblem.from_arrays(np.ones((40, NUM_DEVICES)), chain(40), output_bytes=1.0)
    units = problem_of(problem, semantics=SEQUENTIAL)
    result = MincutPlacer().search(units, ScheduleEvaluator(problem, SEQUENTIAL), Limits(seconds=0.0))
    assert result.plan is not None
    assert len(calls) <= MAX_STARTS
