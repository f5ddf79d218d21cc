"""Batches divided over devices: legal schedules between bound and optimum, and searches at their limits."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.cli.app import run
from hsdag.ir.errors import OptionError
from hsdag.methods.batched.annealing import Cooling, Move, State, anneal
from hsdag.methods.batched.dispatch import Tables, dispatched_s, divide, loaded, schedule_of
from hsdag.methods.batched.problem import BatchedProblem, BatchSchedule, BatchTable
from hsdag.methods.batched.search import (
    BY_OPS,
    METHODS,
    BatchIncumbent,
    cool,
    loads_at,
    search_met,
    simple_bound,
    warm_start,
)  # fmt: skip
from hsdag.methods.incumbent import Status
from hsdag.runtime.problem.problem_file import write_problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.search.driver import Watcher
from hsdag.solving.batched import BatchOptions, BatchSolution, solve_batched
from tests.hsdag.methods.batched.batched_reference import BatchedBruteForce, makespan_s, random_batched

CHAIN = ScheduleProblem.from_arrays([[1.0, 1.0], [2.0, 2.0]], [(0, 1)], output_bytes=1.0)
SHAPES = [(3, 2, 2), (2, 2, 3), (2, 3, 3), (4, 2, 2)]


def wide(num_ops: int, num_devices: int) -> ScheduleProblem:
    """A random graph on many devices."""
    rng = np.random.default_rng(0)
    edges = [(int(rng.integers(v)), v) for v in range(1, num_ops)]
    return ScheduleProblem.from_arrays(rng.uniform(1, 9, (num_ops, num_devices)), edges, output_bytes=1.0,
                                       link_latency_s=0.1, link_bandwidth_bytes_per_s=8.0)  # fmt: skip


def solved(costs: ScheduleProblem, method: str, budget_s: float = 60.0, *, stopped: bool = False) -> BatchSolution:
    return solve_batched(costs, BatchOptions(method, 4, budget_s=budget_s), Watcher(should_stop=lambda: stopped))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_a_schedule_between_its_bound_and_the_optimum(method: str, seed: int) -> None:
    problem = random_batched(seed, 3, 2, 2)
    options = BatchOptions(method, problem.batches.num_inputs, budget_s=1.0)
    solution = solve_batched(problem.costs, options, table=problem.batches)
    optimum_s = BatchedBruteForce(problem).makespan_s()
    assert solution.schedule is not None
    assert solution.value_s is not None
    assert solution.value_s == pytest.approx(makespan_s(problem, solution.schedule))
    assert solution.lower_bound_s <= optimum_s * (1 + 1e-9)
    assert solution.value_s >= optimum_s * (1 - 1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), shape=st.sampled_from(SHAPES))
def test_no_bound_is_above_the_optimum(seed: int, shape: tuple[int, int, int]) -> None:
    problem = random_batched(seed, *shape)
    assert simple_bound(problem)[0].value_s <= BatchedBruteForce(problem).makespan_s() * (1 + 1e-9)


def test_the_load_is_shared_as_devices_are_fast() -> None:
    problem = BatchedProblem.of(ScheduleProblem.from_arrays([[1.0, 3.0]], []),
                                BatchTable(4, (1, 2, 3, 4), np.array([[[1.0, 2, 3, 4], [3.0, 6, 9, 12]]])))  # fmt: skip
    assert simple_bound(problem)[0].value_s == pytest.approx(3.0, rel=1e-3)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_cheapest_loads_are_those_of_all_divisions(seed: int) -> None:
    problem, price = random_batched(seed, 4, 3, 3), np.random.default_rng(seed).random(3)
    times = np.nan_to_num(problem.group_time_s, nan=np.inf)
    of_all = times[:, np.arange(3), problem.divisions]  # [N, K, D]
    assert loads_at(times, price) @ price == pytest.approx((of_all @ price).min(axis=1).sum())


def test_quarters_are_the_sizes_of_the_paper() -> None:
    table = BatchTable.quarters(CHAIN, 16, 0.5)
    assert table.sizes == (4, 8, 12, 16)
    assert table.num_groups == 4
    assert table.time_s[1, 0].tolist() == [5.0, 9.0, 13.0, 17.0]  # 2 (0.5 + 0.5 b)


def test_ops_of_a_chain_are_divided_alike() -> None:
    costs = ScheduleProblem.from_arrays(
        np.ones((7, 2)), [(0, 1), (1, 2), (0, 3), (3, 4), (2, 5), (4, 5), (5, 6)], output_bytes=1.0
    )
    problem = BatchedProblem.of(costs, BatchTable.quarters(costs, 4, 0.0))
    assert [problem.chains[v] for v in (1, 3, 5)] == [problem.chains[v] for v in (2, 4, 6)]
    assert len(set(problem.chains.tolist())) == 4
    tables, state = begun(problem, Cooling(0.1, 0.1, moves=(Move.GROUP,), by_chain=True))
    state.device[:] = 0
    anneal(tables, state, 50, 1e6, 1.0, 0)
    assert state.device[[1, 3, 5]].tolist() == state.device[[2, 4, 6]].tolist()
    assert len(np.unique(state.device, axis=0)) > 1


def test_two_equal_devices_double_the_throughput() -> None:
    solution = solve_batched(CHAIN, BatchOptions("milp-split", 4, 0.0, 5.0))
    assert solution.inputs_per_s == pytest.approx(4 / 6.0)
    assert solution.status is Status.OPTIMAL


@pytest.mark.parametrize("method", ["heft", "met", "greedy", "sa", "milp-split"])
def test_a_search_that_is_stopped_at_once_has_an_answer(method: str) -> None:
    solution = solved(wide(20, 30), method, stopped=True)
    assert solution.interrupted
    assert solution.schedule is not None
    assert solution.value_s is not None
    assert solution.value_s == pytest.approx(makespan_s(solution.problem, solution.schedule))
    assert 0 < solution.lower_bound_s <= solution.value_s


def test_ops_are_divided_over_fewer_devices_where_there_are_too_many_ways() -> None:
    few, many = (BatchedProblem.of(c, BatchTable.quarters(c, 4, 0.0)) for c in (wide(2, 5), wide(2, 30)))
    every = [row for row in itertools.product(range(5), repeat=5) if sum(row) == 4]
    assert [tuple(row) for row in few.divisions.tolist()] == every
    assert len(many.divisions) == 30 + 30 * 29 // 2 * 3
    assert set((many.divisions > 0).sum(axis=1).tolist()) == {1, 2}
    assert "divided over at most 2 of 30 devices" in solved(wide(2, 30), "heft").assumption
    assert "divided" not in solved(wide(2, 5), "heft").assumption


@pytest.mark.parametrize("method", ["milp-split", "heft", "sa"])
def test_an_op_that_fits_on_no_device_makes_a_batch_infeasible(method: str) -> None:
    costs = ScheduleProblem.from_arrays([[1.0, 2.0], [2.0, 1.0], [2.0, 1.0]], [(0, 1), (0, 2)],
                                        output_bytes=3.0, memory_bytes=4.0)  # fmt: skip
    solution = solved(costs, method)
    assert solution.status is Status.INFEASIBLE
    assert solution.schedule is None


def test_greedy_divides_an_op_where_its_last_batch_ends_first_and_met_where_devices_work_least() -> None:
    costs = ScheduleProblem.from_arrays([[4.0, 6.0], [1.0, 9.0]], [(0, 1)], output_bytes=1.0, link_latency_s=0.5)
    greedy, met = solved(costs, "greedy"), solved(costs, "met")
    assert greedy.schedule is not None
    assert met.schedule is not None
    # ends of the first op: 16 s for all groups, 12 and 6 s for three and one; of the second: 16.5 s for all groups on
    # the first device, 15 s where three stay there
    assert greedy.schedule.device.tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]
    assert met.schedule.device.tolist() == [[0] * 4, [0] * 4]


def test_an_op_waits_for_the_groups_that_it_reads_from_other_devices() -> None:
    problem = BatchedProblem.of(
        ScheduleProblem.from_arrays([[1.0, 9.0], [9.0, 1.0]], [(0, 1)], output_bytes=2.0, link_latency_s=0.5,
                                    link_bandwidth_bytes_per_s=4.0),
        BatchTable(2, (1, 2), np.array([[[1.0, 2.0], [9.0, 18.0]], [[9.0, 18.0], [1.0, 2.0]]])),
    )  # fmt: skip
    tables, device = Tables.of(problem), np.zeros((2, 2), dtype=np.int64)
    assert divide(tables, np.arange(2), problem.divisions, True, device)
    assert device.tolist() == [[0, 0], [1, 1]]
    assert makespan_s(problem, schedule_of(tables, device, np.zeros(2))) == 2.0 + 0.5 + 2 * 2.0 / 4.0 + 2.0


def test_an_op_stays_where_its_input_is_when_sending_takes_longer_than_a_faster_device_saves() -> None:
    costs = ScheduleProblem.from_arrays([[2.0, 9.0], [3.0, 2.0]], [(0, 1)], output_bytes=1.0,
                                        link_bandwidth_bytes_per_s=1.0)  # fmt: skip
    problem = BatchedProblem.of(costs, BatchTable(2, (2,), costs.time_s[:, :, None].copy(), 2))
    device = np.zeros((2, 1), dtype=np.int64)
    assert divide(Tables.of(problem), np.arange(2), problem.divisions, True, device)
    assert device.tolist() == [[0], [0]]  # ends at 2 + 3 s, and on the other device at 2 + 2 + 2 s


@given(seed=st.integers(0, 10_000), by_end=st.booleans())
def test_dividing_keeps_to_memory_and_to_sizes_that_are_allowed(seed: int, by_end: bool) -> None:
    problem = random_batched(seed, 6, 3, 3)
    tables, device = Tables.of(problem), np.zeros((6, 3), dtype=np.int64)
    if divide(tables, problem.costs.topological_order.copy(), problem.divisions, by_end, device):
        assert loaded(tables, device)


def test_devices_that_slow_each_other_down_are_refused_where_batches_do_not_know_of_it() -> None:
    with pytest.raises(OptionError, match="problem 'problem' has a slowdown, which schedules of batches do not know"):
        solved(replace(wide(3, 2), slowdown=np.full((2, 2), 1.5)), "heft")


def dispatched(problem: BatchedProblem, seed: int, cutoff_s: float = np.inf) -> tuple[float, BatchSchedule]:
    """A random placement with random priorities."""
    rng, tables = np.random.default_rng(seed), Tables.of(problem)
    device = rng.integers(problem.costs.num_devices, size=(problem.costs.num_ops, problem.num_groups))
    if not loaded(tables, device):
        device[:] = 0
    priority = rng.random(problem.costs.num_ops)
    schedule = schedule_of(tables, device, priority)
    return dispatched_s(tables, device, priority, cutoff_s), schedule


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), num_ops=st.integers(1, 9), num_groups=st.integers(1, 4))
def test_what_is_dispatched_is_a_schedule_of_that_makespan(seed: int, num_ops: int, num_groups: int) -> None:
    problem = random_batched(seed, num_ops, 3, num_groups)
    value_s, schedule = dispatched(problem, seed)
    assert makespan_s(problem, schedule) == pytest.approx(value_s)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), num_ops=st.integers(2, 9))
def test_no_batch_could_begin_earlier_while_its_device_rests(seed: int, num_ops: int) -> None:
    problem = random_batched(seed, num_ops, 2, 2)
    value_s, schedule = dispatched(problem, seed)
    for v, d in zip(*np.nonzero(np.isfinite(schedule.start_s)), strict=True):
        earlier = schedule.start_s.copy()
        for rest_s in _rests(problem, schedule, int(d)):
            earlier[v, d] = rest_s
            if rest_s < schedule.start_s[v, d] - 1e-9 and _has_room(problem, schedule, int(v), int(d), rest_s):
                with pytest.raises(ValueError, match="does not wait"):
                    makespan_s(problem, BatchSchedule(schedule.device, earlier))
    assert value_s >= 0


def _busy(problem: BatchedProblem, schedule: BatchSchedule, d: int) -> dict[int, tuple[float, float]]:
    ops = np.flatnonzero(np.isfinite(schedule.start_s[:, d])).tolist()
    size = (schedule.device == d).sum(axis=1)
    taken_s = {v: float(problem.group_time_s[v, d, size[v]]) + problem.costs.op_overhead_s for v in ops}
    return {v: (float(schedule.start_s[v, d]), float(schedule.start_s[v, d]) + taken_s[v]) for v in ops}


def _rests(problem: BatchedProblem, schedule: BatchSchedule, d: int) -> list[float]:
    """When a device has come to the end of a batch, or could begin its first."""
    return [0.0, *(end for _, end in _busy(problem, schedule, d).values())]


def _has_room(problem: BatchedProblem, schedule: BatchSchedule, v: int, d: int, at_s: float) -> bool:
    busy = _busy(problem, schedule, d)
    taken_s = busy[v][1] - busy[v][0]
    return taken_s > 0 and all(w == v or end <= at_s or begin >= at_s + taken_s for w, (begin, end) in busy.items())


@pytest.mark.parametrize("seed", range(20))
def test_a_cutoff_ends_what_is_longer_and_nothing_else(seed: int) -> None:
    problem = random_batched(seed, 8, 2, 2)
    value_s, _ = dispatched(problem, seed)
    assert dispatched(problem, seed, value_s + 1e-9)[0] == value_s
    assert dispatched(problem, seed, value_s - 1e-6)[0] == np.inf


def test_of_two_ready_batches_the_one_of_higher_priority_begins() -> None:
    costs = ScheduleProblem.from_arrays([[1.0], [2.0]], [])
    tables = Tables.of(BatchedProblem.of(costs, BatchTable.quarters(costs, 1, 0.0)))
    schedule = schedule_of(tables, np.zeros((2, 1), dtype=np.int64), np.array([1.0, 2.0]))
    assert schedule.start_s[:, 0].tolist() == [2.0, 0.0]


def begun(problem: BatchedProblem, walk: Cooling = BY_OPS) -> tuple[Tables, State]:
    found = BatchIncumbent(problem, 10.0)
    warm_start(found)
    assert found.best is not None
    return Tables.of(problem), State.begin(problem, walk, found.prices, found.best)


@pytest.mark.parametrize("move", Move)
def test_after_many_steps_a_walk_stands_where_it_believes_to(move: Move) -> None:
    moved = 0
    for seed in range(6):
        problem = random_batched(seed, 7, 3, 3)
        tables, state = begun(problem, Cooling(0.1, 0.1, moves=(move,), by_chain=seed % 2 == 1))
        first = state.device.copy(), state.priority.copy()
        anneal(tables, state, 2000, 1e6, 1.0, seed)
        believed = state.value_s.copy()
        anneal(tables, state, 0, 5.0, 1.0, seed)
        assert state.value_s.tolist() == pytest.approx(believed.tolist())
        found_s = makespan_s(problem, schedule_of(tables, state.best_device, state.best_priority))
        assert believed[2] == pytest.approx(found_s)
        assert believed[2] <= believed[0]
        moved += not np.array_equal((state.device, state.priority)[move is Move.PRIORITY], first[move is Move.PRIORITY])
    assert moved > 2


def test_a_walk_divides_numbers_that_list_schedules_do_not() -> None:
    costs = ScheduleProblem.from_arrays([[t, t] for t in (3.0, 3.0, 2.0, 2.0, 2.0)], [])
    found = BatchIncumbent(BatchedProblem.of(costs, BatchTable.quarters(costs, 1, 0.0)), 10.0)
    search_met(found)
    assert found.best_s == 12.0
    cool(found, Cooling(0.1, 0.001), 5.0)
    assert found.best_s == 6.0


def test_equal_seeds_take_equal_walks_and_others_other_ones() -> None:
    problem, ends = random_batched(3, 9, 3, 4), []
    for seed in (5, 5, 6):
        tables, state = begun(problem)
        anneal(tables, state, 500, 50.0, 1.0, seed)
        ends.append((state.device.tolist(), state.priority.tolist()))
    assert ends[0] == ends[1] != ends[2]


def test_of_equal_makespans_a_walk_prefers_the_cheaper_load() -> None:
    costs = ScheduleProblem.from_arrays([[10.0, 99.0, 99.0], [99.0, 5.0, 1.0]], [])
    problem = BatchedProblem.of(costs, BatchTable.quarters(costs, 1, 0.0))
    start = BatchSchedule(np.array([[0], [1]]), np.array([[0.0, np.nan, np.nan], [np.nan, 0.0, np.nan]]))
    state = State.begin(problem, BY_OPS, np.array([0.4, 0.3, 0.3]), start)
    anneal(Tables.of(problem), state, 200, 1e-6, 1.0, 0)
    assert state.value_s[0] == 10.0
    assert state.device.tolist() == [[0], [2]]


def test_the_command_line_divides_a_batch_and_says_what_it_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "problem.json"
    write_problem(CHAIN, path)
    assert run(["solve", str(path), "--method", "heft", "--batch", "8", "--fixed-share", "0.25", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["assumed"] == "t(b) = t(1) (0.25 + 0.75 b)"
    assert document["batch_sizes"] == [2, 4, 6, 8]
    assert document["inputs_per_s"] == pytest.approx(8 / document["value"])
    assert sorted(i for batch in document["schedule"] if batch["op"] == "op1" for i in batch["inputs"]) == [*range(8)]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--execution", "sequential", "--batch", "4"], "--execution sequential does not go with --batch"),
        (["--batch", "4", "--set", "nonsense=1"], "--set does not go with --batch"),
        (["--batch", "4", "--preset", "quick"], "--preset quick does not go with --batch"),
        (["--batch", "4", "--workers", "local:2"], "--workers does not go with --batch"),
        (["--batch", "4", "--pin", "op0=dev0"], "--pin does not go with --batch"),
        (["--batch", "4", "--method", "mincut"], "'mincut' has no batched form; choose one of best-device, met"),
        (["--fixed-share", "0.5"], "give --batch too"),
        (["--batch", "0"], "--batch must be at least 1, not 0"),
        (["--batch", "4", "--fixed-share", "2"], "--fixed-share must be between 0 and 1, not 2"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], complaint: str
) -> None:
    path = tmp_path / "problem.json"
    write_problem(CHAIN, path)
    assert run(["solve", str(path), "--method", "heft", *options]) == 2
    assert complaint in capsys.readouterr().err
