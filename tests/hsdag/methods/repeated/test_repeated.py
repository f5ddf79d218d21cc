"""Repeated structure: blocks are found, one's plan is laid over all, and bounds of parts add up."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.methods.exact.formulation import Formulation
from hsdag.methods.exact.stages import EFFORT, Stages, barriers_of, cuts_of
from hsdag.methods.incumbent import Incumbent, Limits, Result, Status
from hsdag.methods.registry import make_placer
from hsdag.methods.repeated import placer
from hsdag.methods.repeated.blocks import (
    Blocks,
    _matched,
    between_cuts,
    find_blocks,
    in_periods,
    outside_inputs,
    part_of,
)
from hsdag.methods.repeated.tiling import Layer, PlanLibrary, best_exchange
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.pins import Pin, with_pinned_ops
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate_makespans
from hsdag.search.evaluators.base import Score
from hsdag.search.evaluators.recording import Budget, RecordingEvaluator
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from tests.hsdag.methods.exact.exact_reference import every_placement, least_makespan_s, random_problem
from tests.hsdag.methods.repeated.chains import BLOCK, chain
from tests.hsdag.methods.searches import not_none

SIZE = len(BLOCK)


def blocks_of(problem: ScheduleProblem) -> Blocks:
    return not_none(find_blocks(problem))


def searched(
    problem: ScheduleProblem,
    method: str = "repeated",
    semantics: Semantics = Semantics(),  # noqa: B008
    objective: Objective | None = None,
    most: int = 4000,
) -> tuple[Result, RecordingEvaluator]:
    units = problem_of(problem, objective or LATENCY, semantics=semantics)
    evaluator = ScheduleEvaluator.of(units)
    recorder = RecordingEvaluator(evaluator, Budget(evaluations=most))
    return make_placer(method, is_cheap=True).search(units, recorder, Limits(num_workers=1)), recorder


def test_counterparts_have_one_position_and_blocks_follow_each_other() -> None:
    problem = chain([1.0] * 6)
    found = blocks_of(problem)
    inner = found.position[1 + SIZE : 1 + 5 * SIZE].reshape(4, SIZE)
    assert (inner == inner[0]).all()
    assert len(np.unique(inner[0])) == SIZE
    assert (found.block[problem.edge_src] <= found.block[problem.edge_dst]).all()


def test_a_block_of_another_width_is_of_another_kind_wherever_it_comes_again() -> None:
    found = blocks_of(chain([1.0, 1.0, 1.0, 2.0] * 3))
    of_op = found.kind[found.block]
    wide, narrow = 1 + 3 * SIZE + 3, 1 + 2 * SIZE + 3
    assert of_op[wide] == of_op[wide + 4 * SIZE] != of_op[narrow] == of_op[narrow + 4 * SIZE]


def divided(kinds: list[int], size: int = 9) -> tuple[ScheduleProblem, Blocks]:
    """Blocks of these kinds in a row, each a chain of ops of its own times; little is sent behind kind 2."""
    kind = np.repeat(kinds, size)
    time_s = 1.0 + kind + np.tile(np.arange(size) / 100, len(kinds))
    num = len(kind)
    problem = ScheduleProblem.from_arrays(
        np.repeat(time_s[:, None], 2, axis=1),
        [(v, v + 1) for v in range(num - 1)],
        output_bytes=np.where(kind == 2, 1.0, 8.0),
    )
    return problem, Blocks(np.arange(num) // size, np.arange(num) % size + size * kind, np.array(kinds))


def test_parts_of_a_period_are_one_block_that_begins_where_least_is_sent() -> None:
    problem, blocks = divided([1, 2, 0] * 5)
    found = in_periods(problem, blocks)
    assert np.bincount(found.block).tolist() == [18, 27, 27, 27, 27, 9]
    assert found.kind[1:5].tolist() == [0] * 4
    assert len(np.unique(found.position[found.block == 2])) == 27


@pytest.mark.parametrize("kinds", [[0] * 9, [0, 1, 2] * 2, [0, 1, 2, 2, 1, 0, 0, 1, 1, 2, 0, 2]])
def test_equal_blocks_and_those_in_no_order_stay_as_they_are(kinds: list[int]) -> None:
    problem, blocks = divided(kinds)
    assert in_periods(problem, blocks) is blocks


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_all_ops_lie_before_or_behind_a_cut(seed: int, num_ops: int) -> None:
    problem = random_problem(seed, num_ops, shuffled=True, edge_bytes=0.0, link_latency_s=0.0)
    reach, works = Formulation(problem).reach, (np.nan_to_num(problem.time_s) != 0).any(axis=1)
    counts = works | (reach & works[:, None]).any(axis=0)
    place, cuts = cuts_of(problem)
    others = (reach | reach.T | np.eye(num_ops, dtype=np.bool_))[counts]
    expected = np.flatnonzero(counts & others.all(axis=0) & (place < counts.sum() - 1))
    assert sorted(cuts.tolist()) == expected.tolist()
    assert np.argsort(place)[num_ops - counts.sum() :].tolist() == [v for v in problem.topological_order if counts[v]]


@pytest.mark.parametrize(("size", "is_cut"), [(1.0, True), (3.0, False)])
def test_what_is_sent_past_a_cut_comes_before_it_is_read(size: float, is_cut: bool) -> None:
    edges = [(0, 1), (1, 2), (2, 3), (0, 3)]
    problem = ScheduleProblem.from_arrays(
        np.ones((4, 2)), edges, edge_bytes=[0, 0, 0, size], output_bytes=0.0, link_bandwidth_bytes_per_s=1.0
    )
    assert [1 in found(problem)[1].tolist() for found in (barriers_of, cuts_of)] == [True, is_cut]


@pytest.mark.parametrize("num_cuts", [0, 4])
def test_blocks_stay_where_no_cut_divides_most_of_them(num_cuts: int) -> None:
    """Each barrier reads sixteen ops that read the one before."""
    layers = [(17 * k + 16, 17 * k + i) for k in range(num_cuts) for i in range(16)]
    edges = [(v, barrier) for barrier, v in layers] + [(barrier, v + 17) for barrier, v in layers if v < 51]
    blocks = Blocks(np.repeat(np.arange(8), [9, 8] * 4), np.full(68, -1), np.full(8, -1))
    assert between_cuts(ScheduleProblem.from_arrays(np.ones((68, 2)), edges), blocks) is blocks


def apart(times: Sequence[int]) -> ScheduleProblem:
    """Ops without edges, of which only those of equal times look alike."""
    return ScheduleProblem.from_arrays(np.array(times)[:, None], [])


def test_one_kind_of_block_that_is_large_enough_suffices() -> None:
    block = np.repeat(np.arange(4), [8, 8, 2, 2])
    times = [*range(8)] * 2 + [20, 21] * 2
    found = not_none(_matched(apart(times), block))
    assert found.kind[0] == found.kind[1] != found.kind[2] == found.kind[3]
    assert _matched(apart(times[16:]), block[16:] - 2) is None
    block = np.repeat(np.arange(4), [8, 8, 6, 5])
    assert not_none(_matched(apart([*times[:16], *range(30, 41)]), block, 0.75)).kind.tolist() == [0, 0, 1, -1]


def test_ops_that_are_pinned_otherwise_are_no_counterparts() -> None:
    problem = chain([1.0] * 6)
    pinned = with_pinned_ops(problem, [Pin(problem.op_names[1 + 2 * SIZE + 1], problem.device_names[1])])
    found = blocks_of(pinned)
    assert found.position[1 + 2 * SIZE + 1] != found.position[1 + 3 * SIZE + 1]


def test_what_a_part_reads_costs_it_no_time_and_the_rest_leaves_it_its_memory() -> None:
    problem = chain([1.0] * 4, weight_bytes=1.0, memory_bytes=100.0)
    ops = np.arange(1 + SIZE, 1 + 2 * SIZE)
    inputs = outside_inputs(problem, ops)
    part = part_of(problem, inputs, ops)
    assert inputs.tolist() == [SIZE]
    assert part.time_s[0].tolist() == [0.0, 0.0]
    assert part.time_s[1:].tolist() == problem.time_s[ops].tolist()
    elsewhere = 1.0 * (problem.num_ops - SIZE) + 0.5  # weights, and the result of the one op without inputs
    assert part.memory_bytes == pytest.approx(100.0 * (1 - elsewhere / 200.0))


def test_a_plan_that_is_known_is_laid_over_all_blocks() -> None:
    problem = chain([1.0] * 8)
    found, library = blocks_of(problem), PlanLibrary.empty(blocks_of(problem), 2)
    units = found.fullest(int(found.kind[found.block[1 + 4 * SIZE]]))
    left = np.array([problem.labels.types[v] == "left" for v in units])
    library.learn(found, units, left.astype(np.int64), np.arange(len(units), dtype=float))
    device, _ = Layer(problem, found).lay(library)
    types = np.array(problem.labels.types)
    for first in range(1 + SIZE, 1 + 7 * SIZE, SIZE):
        block = slice(first, first + SIZE)
        assert len(set(device[block][types[block] == "left"])) == 1
        assert set(device[block][types[block] == "left"]) != set(device[block][types[block] == "right"])


def test_blocks_are_laid_with_devices_exchanged_such_that_each_begins_where_the_one_before_ends() -> None:
    problem = chain([1.0] * 8)
    found, library = blocks_of(problem), PlanLibrary.empty(blocks_of(problem), 2)
    for kind in range(int(found.kind.max()) + 1):
        units = found.fullest(kind)
        reads = np.isin(units, problem.edge_dst[~np.isin(problem.edge_src, units)])
        library.learn(found, units, reads.astype(np.int64), np.arange(len(units), dtype=float))
    device, _ = Layer(problem, found).lay(library)
    src, dst = problem.edge_src, problem.edge_dst
    between = (found.block[src] < found.block[dst]) & (found.block[src] > 1) & (found.block[dst] < found.num_blocks - 1)
    assert between.sum() > 2
    assert (device[src[between]] == device[dst[between]]).all()


@pytest.mark.parametrize("loads", [1, 2])
def test_what_needs_no_input_and_what_is_made_of_it_alone_is_of_the_block_that_reads_it(loads: int) -> None:
    found, size = blocks_of(chain([1.0] * 8, loads=loads)), SIZE + loads
    for n in range(2, 7):
        of_loads = found.block[1 + n * size + SIZE : 1 + (n + 1) * size]
        assert set(of_loads) == {found.block[1 + n * size + 7]}


def test_what_needs_no_input_waits_for_the_blocks_before_its_own() -> None:
    problem = chain([1.0] * 8, loads=1)
    found = blocks_of(problem)
    _, rank = Layer(problem, found).lay(PlanLibrary.empty(found, 2))
    order = found.block[np.argsort(rank)]
    last_of = {block: np.flatnonzero(order == block)[-1] for block in range(found.num_blocks)}
    assert all(place > last_of[block - 2] for place, block in enumerate(order.tolist()) if block > 1)


def test_equal_devices_are_exchanged_where_that_helps_and_others_are_not() -> None:
    found = best_exchange(lambda each: float(abs(each[:6] - np.arange(6)[::-1]).sum()), np.arange(7), [np.arange(6)])
    assert found.tolist() == [5, 4, 3, 2, 1, 0, 6]


def test_auto_adds_up_the_bounds_of_the_stages_of_a_large_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.methods.auto.auto.PAIRS_EFFORT", 0.0)
    problem = chain(np.geomspace(1.0, 9.0, 14).tolist())
    stages = Stages(problem, Execution.WORK_CONSERVING, lambda: None, EFFORT)
    assert searched(problem, "auto")[1].bound == stages.bound


def in_stages(seed: int, num_devices: int) -> ScheduleProblem:
    """Every third of eight ops reads all before it and is read by all behind it; those of odd seeds read each other
    past it, too; there is no room for all weights."""
    base = random_problem(seed, 8, num_devices)
    drawn = zip(base.edge_src.tolist(), base.edge_dst.tolist(), strict=True)
    edges = {(u, v) for u, v in drawn if seed % 2 or (u + 1) // 3 == v // 3}
    edges |= {(0, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (5, 6), (5, 7)}
    tables: Any = {"edge_bytes": None, "weight_bytes": 1.0, "memory_bytes": 1.0}
    tables["launch_s"] = np.arange(1.0, num_devices + 1)
    return random_problem(seed, 8, num_devices, edges=sorted(edges), **tables)


def optimum_s(problem: ScheduleProblem, execution: Execution) -> float:
    """By brute force."""
    if execution is Execution.WORK_CONSERVING:
        return least_makespan_s(problem)
    return float(simulate_makespans(problem, every_placement(problem), Semantics(execution)).min())


@pytest.mark.parametrize("execution", Execution)
@given(seed=st.integers(0, 2**32), num_devices=st.integers(1, 3))
def test_no_schedule_is_below_stages_one_behind_the_other(execution: Execution, seed: int, num_devices: int) -> None:
    problem = in_stages(seed, num_devices)
    stages, best_s = Stages(problem, execution, lambda: None), optimum_s(problem, execution)

    def solve(part: ScheduleProblem, _: int, least_s: float) -> tuple[Any, float]:
        found_s = optimum_s(part, execution)
        assert least_s <= found_s * (1 + 1e-9)
        return SimpleNamespace(makespan_s=found_s), found_s

    bounds = [stages.bound.value]
    while stages.improve(solve):
        bounds.append(stages.bound.value)
    assert bounds == sorted(bounds)
    assert max(bounds[-1], Stages(problem, execution, bool, EFFORT, barriers_of).bound.value) <= best_s
    place, cuts = cuts_of(problem)
    if len(cuts) > 1 and not seed % 2 and problem.op_overhead_s == 0 and (place >= 0).all():  # nothing is left out
        assert bounds[-1] == pytest.approx(best_s, rel=1e-6)


@pytest.mark.parametrize("execution", Execution)
def test_a_deep_chain_of_small_stages_is_proven_optimal(execution: Execution) -> None:
    """In turn all 21 of a block are on one device; else a branch of 9 and what follows are on the other, 0.5 away."""
    result, recorder = searched(chain([1.0] * 6, launch_s=[2.0, 3.0]), semantics=Semantics(execution))
    assert result.status is Status.OPTIMAL
    assert result.score == pytest.approx(1.2 + 6 * 12.5 if execution is Execution.WORK_CONSERVING else 2 + 1.2 + 6 * 21)
    assert not_none(result.lower_bound).value == pytest.approx(result.score, rel=1e-6)
    assert not_none(recorder.bound).argument == "stages one behind the other"


def test_a_search_gives_up_where_nothing_repeats() -> None:
    result, recorder = searched(chain([1.0, 1.3, 1.7, 2.2]))
    assert (result.plan, result.note, recorder.num_evaluations) == (None, "nothing in the graph repeats", 0)


def test_kinds_of_blocks_share_time_and_evaluations_by_size_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the clock takes 5 s of 100, of which 15 are for trying plans in a row."""
    given: Any = []
    clock, tried, problem = itertools.count(), itertools.count(), chain([1.0, 1.0, 1.0, 2.0] * 3)
    units, found = problem_of(problem), blocks_of(problem)
    recorder = RecordingEvaluator(ScheduleEvaluator.of(units), Budget(evaluations=1000))
    incumbent = Incumbent(units, recorder, Limits())
    monkeypatch.setattr(Incumbent, "elapsed_s", property(lambda _: 5.0 * next(clock)))
    monkeypatch.setattr(Incumbent, "left_s", 100.0)
    monkeypatch.setattr(placer, "searched_apart", lambda *of: given.append(of[3:]) or (iter(()), 0.0))
    placer._searched_blocks(incumbent, found, 0.6)
    weight = np.array([len(found.fullest(kind)) for kind in range(3)]) ** 1.5 * np.bincount(found.kind + 1)[1:] ** 0.5
    share = 0.6 * weight / weight.sum()
    np.testing.assert_allclose(given, np.stack([100 * np.cumsum(share) - [5, 10, 15], 1000 * share], axis=1))
    monkeypatch.setattr(ScheduleEvaluator, "evaluate", lambda *_: [Score(float(next(tried)))])
    placer._best_together(incumbent, found, [[PlanLibrary.empty(found, 2)] * 9])
    assert next(tried) == 1 + 2


def test_memory_is_held_by_the_whole_chain() -> None:
    problem = chain([1.0] * 8, weight_bytes=1.0, memory_bytes=[60.0, 25.0])
    result, _ = searched(problem)
    assert result.plan is not None
    assert np.bincount(result.plan.placement, minlength=2)[1] <= 25


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("objective", [None, THROUGHPUT])
def test_counterparts_share_a_device_where_no_order_counts(objective: Objective | None) -> None:
    problem = chain([1.0] * 8)
    execution = Execution.SEQUENTIAL if objective is None else Execution.WORK_CONSERVING
    result, recorder = searched(problem, semantics=Semantics(execution=execution), objective=objective, most=600)
    found = blocks_of(problem)
    assert result.plan is not None
    for event in recorder.events:
        for position in range(found.position.max() + 1):
            assert len(set(event.plan.placement[found.position == position])) == 1
    if objective is not None:  # the loads of both devices are close to half of everything
        assert result.score <= 0.55 * float(problem.time_s[:, 0].sum())


def test_a_search_begins_with_what_is_known_and_is_the_same_on_any_number_of_threads() -> None:
    units = problem_of(chain([1.0] * 6))
    known, scores = Plan(np.arange(units.num_units) % 2), []
    for threads in (1, 2):
        recorder = RecordingEvaluator(ScheduleEvaluator.of(units), Budget(evaluations=2000))
        scores.append(
            make_placer("repeated").search(units, recorder, Limits(known=(known,), num_workers=threads)).score
        )
        assert recorder.events[0].plan == known
    assert scores[0] == scores[1]
