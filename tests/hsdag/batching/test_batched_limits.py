"""Batched methods at their limits: many devices, little time, no room, and numbers far apart."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.batching.bound import BatchedBounds, loads_at
from hsdag.batching.checking import makespan_s
from hsdag.batching.incumbent import BatchIncumbent
from hsdag.batching.lists import BatchList, search_heft, upward_s
from hsdag.commands.batched import BatchOptions, BatchSolution, solve_batched
from hsdag.evaluators.base import SearchStopped
from hsdag.ir.errors import OptionError
from hsdag.placers.exact.batches import BatchedProblem, BatchTable
from hsdag.placers.exact.cpsat_model import IntervalModel
from hsdag.placers.exact.solving import solve_model
from hsdag.placers.incumbent import Limits, Status
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.search.driver import Watcher
from tests.hsdag.batching.batched_reference import random_batched


def wide(num_ops: int, num_devices: int) -> ScheduleProblem:
    """A random graph on many devices."""
    rng = np.random.default_rng(0)
    edges = [(int(rng.integers(v)), v) for v in range(1, num_ops)]
    return ScheduleProblem.from_arrays(rng.uniform(1, 9, (num_ops, num_devices)), edges, output_bytes=1.0,
                                       link_latency_s=0.1, link_bandwidth_bytes_per_s=8.0)  # fmt: skip


def solved(costs: ScheduleProblem, method: str, budget_s: float = 60.0, *, stopped: bool = False) -> BatchSolution:
    return solve_batched(costs, BatchOptions(method, 4, budget_s=budget_s), Watcher(should_stop=lambda: stopped))


@pytest.mark.parametrize("method", ["heft", "met", "greedy", "sa", "milp-split"])
def test_a_batched_search_that_is_stopped_at_once_has_an_answer(method: str) -> None:
    solution = solved(wide(20, 30), method, stopped=True)
    assert solution.interrupted
    assert solution.schedule is not None
    assert solution.value_s == makespan_s(solution.problem, solution.schedule)
    assert 0 < solution.lower_bound_s <= solution.value_s


def test_the_first_answer_looks_for_room() -> None:
    costs = replace(wide(6, 30), memory_bytes=np.full(30, 12.0), edge_bytes=np.ones(5))  # room for one op, whole
    solution = solved(costs, "heft", stopped=True)
    assert solution.schedule is not None
    assert len(set(solution.schedule.device[:, 0].tolist())) == 6


def test_list_scheduling_asks_the_clock_for_every_division_it_tries() -> None:
    problem, asked = BatchedProblem.of(wide(4, 3), BatchTable.quarters(wide(4, 3), 4, 0.0)), 0

    def wake() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise SearchStopped

    with pytest.raises(SearchStopped):
        BatchList(problem, wake, insertion=True).run(upward_s(problem))
    assert asked == 3


def test_ops_are_divided_over_fewer_devices_where_there_are_too_many_ways() -> None:
    few, many = (BatchedProblem.of(c, BatchTable.quarters(c, 4, 0.0)) for c in (wide(2, 5), wide(2, 30)))
    every = [row for row in itertools.product(range(5), repeat=5) if sum(row) == 4]
    assert [tuple(row) for row in few.divisions.tolist()] == every
    assert many.most_shares == 2
    assert len(many.divisions) == 30 + 30 * 29 // 2 * 3
    assert set((many.divisions > 0).sum(axis=1).tolist()) == {1, 2}
    assert "divided over at most 2 of 30 devices" in solved(wide(2, 30), "heft").assumption
    assert "divided" not in solved(wide(2, 5), "heft").assumption


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), insertion=st.booleans())
def test_divisions_that_are_left_out_would_not_have_been_taken(seed: int, insertion: bool) -> None:
    class Thorough(BatchList):
        def _least_end_s(self, v: int) -> np.ndarray:  # nothing is left out
            return np.zeros_like(super()._least_end_s(v))

    problem = random_batched(seed, 6, 3, 3)
    short, long = BatchList(problem, insertion=insertion), Thorough(problem, insertion=insertion)
    assert short.run(upward_s(problem)) == long.run(upward_s(problem))
    assert np.array_equal(short.device, long.device)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_cheapest_loads_are_those_of_all_divisions(seed: int) -> None:
    problem, price = random_batched(seed, 4, 3, 3), np.random.default_rng(seed).random(3)
    times = np.nan_to_num(problem.group_time_s, nan=np.inf)
    of_all = times[:, np.arange(3), problem.divisions]  # [N, K, D]
    assert loads_at(times, price) @ price == pytest.approx((of_all @ price).min(axis=1).sum())


def test_the_bound_of_many_devices_needs_no_table_of_divisions() -> None:
    costs = wide(40, 30)
    problem = BatchedProblem.of(costs, BatchTable.quarters(costs, 4, 0.0))
    tracemalloc.start()
    bound_s = BatchedBounds(problem, Limits(600.0, 1), lambda: 0.0).whole().value_s
    assert tracemalloc.get_traced_memory()[1] < 20e6  # 40 ops x 40,920 divisions x 30 devices are 400 MB
    tracemalloc.stop()
    found = BatchIncumbent(problem, 10.0)
    search_heft(found)
    assert 0 < bound_s <= found.best_s


@pytest.mark.parametrize("method", ["cpsat", "milp"])
def test_a_program_too_large_to_build_is_refused(method: str) -> None:
    with pytest.raises(OptionError, match=r"400 ops on 60 devices would have about .* rows.*use --method heft"):
        solved(wide(400, 60), method)


@pytest.mark.parametrize("method", ["cpsat", "milp", "milp-split", "heft", "sa"])
def test_an_op_that_fits_on_no_device_makes_a_batch_infeasible(method: str) -> None:
    costs = ScheduleProblem.from_arrays([[1.0, 2.0], [2.0, 1.0], [2.0, 1.0]], [(0, 1), (0, 2)],
                                        output_bytes=3.0, memory_bytes=4.0)  # fmt: skip
    solution = solved(costs, method)
    assert solution.status is Status.INFEASIBLE
    assert solution.schedule is None


@pytest.mark.parametrize("memory_bytes", [1e20, 1.3e20])
@pytest.mark.parametrize("method", ["cpsat", "milp-split"])
def test_memories_beyond_64_bits_bind_as_small_ones_do(method: str, memory_bytes: float) -> None:
    costs = ScheduleProblem.from_arrays(
        [[1.0, 2.0], [1.0, 2.0]], [], weight_bytes=[6.0, 6.0], memory_bytes=[10.0, 10.0]
    )
    scale = memory_bytes / 10
    large = replace(costs, weight_bytes=costs.weight_bytes * scale, memory_bytes=costs.memory_bytes * scale)
    roomy = replace(costs, memory_bytes=np.full(2, memory_bytes))
    assert solved(large, method).value_s == solved(costs, method).value_s == pytest.approx(8.0)
    assert solved(roomy, "cpsat").value_s == pytest.approx(16 / 3, rel=0.2)


def test_a_batch_longer_than_a_known_schedule_costs_no_resolution() -> None:
    costs = ScheduleProblem.from_arrays([[1e-9, 1e9], [2e9, 1e-9]], [(0, 1)], output_bytes=0.0)
    solution = solved(costs, "cpsat")
    assert solution.value_s == pytest.approx(8e-9)  # each op has one device, and the second waits for all of the first
    assert solution.status is Status.OPTIMAL


def test_what_takes_longer_than_the_horizon_is_on_no_device() -> None:
    costs = ScheduleProblem.from_arrays([[5.0, 7.0]], [])
    problem = BatchedProblem.of(costs, BatchTable.quarters(costs, 1, 0.0))
    narrow = IntervalModel.of_batches(problem, 4.0)
    assert solve_model(narrow, Limits(600.0, 1)).ending is Status.INFEASIBLE
    assert np.isnan(problem.within(6.0).batches.time_s).tolist() == [[[False], [True]]]


def test_devices_that_slow_each_other_down_are_refused_where_batches_do_not_know_of_it() -> None:
    with pytest.raises(OptionError, match="problem 'problem' has a slowdown, which schedules of batches do not know"):
        solved(replace(wide(3, 2), slowdown=np.full((2, 2), 1.5)), "heft")
