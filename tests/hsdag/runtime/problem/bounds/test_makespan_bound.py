"""Bounds: on loads, paths and makespans, against what the best schedules take."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.bounds import makespan
from hsdag.runtime.problem.bounds.between import UNRELATED, between_all, heads_and_tails
from hsdag.runtime.problem.bounds.makespan import PATHS, WINDOWS, lower_bound, makespan_bound
from hsdag.runtime.problem.bounds.relaxation import Relaxation
from hsdag.runtime.problem.bounds.simple import (
    CRITICAL_PATH,
    LOAD,
    Bound,
    critical_path_s,
    dual_load,
    largest,
    loads_of_ops,
    period_bound,
)
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Order, Semantics
from hsdag.runtime.simulator.simulation import simulate_makespans
from hsdag.runtime.simulator.values import period_s
from tests.hsdag.methods.exact.exact_reference import every_placement, least_makespan_s, random_problem

ROUNDING = 1 + 1e-12


def drawn(seed: int, num_ops: int, num_devices: int) -> ScheduleProblem:
    """Unlike devices, or in a third of the problems equal ones; links of any speed; in a third overheads."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, num_ops, num_devices, density=float(rng.choice([0.2, 0.35, 0.6])))
    problem = replace(problem, link_latency_s=problem.link_latency_s * float(rng.integers(0, 5)))
    if rng.random() < 1 / 3:
        time_s = np.repeat(np.nanmax(problem.time_s, axis=1)[:, None], num_devices, 1)
        problem = replace(problem, time_s=time_s, link_latency_s=np.full((num_devices, num_devices), 4.0))
    return problem


def equal_devices(
    times: list[float], edges: list[tuple[int, int]], latency_s: float, num_devices: int = 2, op_overhead_s: float = 0.0
) -> ScheduleProblem:
    time_s = np.repeat(np.array(times)[:, None], num_devices, 1)
    return ScheduleProblem.from_arrays(time_s, edges, link_latency_s=latency_s, op_overhead_s=op_overhead_s)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 3))
def test_no_schedule_beats_the_bound(seed: int, num_ops: int, num_devices: int) -> None:
    problem = drawn(seed, num_ops, num_devices)
    assert makespan_bound(problem).value_s <= least_makespan_s(problem) * ROUNDING


@settings(max_examples=12)
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(2, 3))
def test_no_schedule_beats_the_bound_of_large_problems(seed: int, num_ops: int, num_devices: int) -> None:
    problem = drawn(seed, num_ops, num_devices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(makespan, "PAIRS_EFFORT", 0.0)
        assert makespan_bound(problem).value_s <= least_makespan_s(problem) * ROUNDING


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([Links.INDEPENDENT, Links.EGRESS, Links.CHANNEL]))
def test_no_plan_of_ops_with_several_results_beats_the_bound_over_any_links(
    seed: int, num_ops: int, links: Links
) -> None:
    rng = np.random.default_rng(seed)
    plain = drawn(seed, num_ops, 2)
    twice = np.repeat(np.stack([plain.edge_src, plain.edge_dst], axis=1), 2, axis=0)
    problem = ScheduleProblem.from_arrays(
        plain.time_s,
        twice,
        edge_bytes=rng.integers(0, 6, len(twice)),
        edge_port=rng.integers(0, 3, len(twice)),
        link_latency_s=plain.link_latency_s,
        link_bandwidth_bytes_per_s=plain.link_bandwidth_bytes_per_s,
        op_overhead_s=plain.op_overhead_s,
        transfer_overhead_s=float(rng.integers(0, 2)),
    )
    how, ranks = Semantics(order=Order.PRIORITY, links=links), itertools.permutations(range(num_ops))
    placements = every_placement(problem)
    best_s = min(simulate_makespans(problem, placements, how, np.array(rank), 1).min() for rank in ranks)
    assert makespan_bound(problem).value_s <= best_s * ROUNDING


def test_the_bound_is_the_optimum_of_many_small_problems_and_near_it_for_the_rest() -> None:
    problems = [drawn(seed, 6, 2) for seed in range(40)]
    shares = np.array([makespan_bound(p).value_s / least_makespan_s(p) for p in problems])
    assert (shares > 1 - 1e-9).sum() >= 16
    assert shares.mean() > 0.94


@pytest.mark.parametrize("ends", [[], [(0, 1), (0, 2), (0, 3)]])
def test_inputs_that_would_arrive_too_late_run_one_after_another(ends: list[tuple[int, int]]) -> None:
    """Three ops of 4 s are read by one: side by side, a result arrives 9 s later."""
    joined = equal_devices([1.0, 4.0, 4.0, 4.0, 1.0], [*ends, (1, 4), (2, 4), (3, 4)], latency_s=9.0, num_devices=3)
    assert makespan_bound(joined) == Bound(3 * 4 + 1.0 + (1.0 if ends else 0.0), PATHS)


def test_readers_that_would_be_reached_too_late_run_one_after_another() -> None:
    forked = equal_devices([1.0, 4.0, 4.0, 4.0], [(0, 1), (0, 2), (0, 3)], latency_s=9.0, num_devices=3)
    assert makespan_bound(forked) == Bound(1 + 3 * 4.0, PATHS)


def test_one_input_comes_from_elsewhere_where_that_is_sooner() -> None:
    joined = equal_devices([4.0, 4.0, 4.0, 1.0], [(0, 3), (1, 3), (2, 3)], latency_s=5.0, num_devices=3)
    assert makespan_bound(joined) == Bound(4 + 5 + 1.0, PATHS)


def test_overheads_of_a_join_and_of_a_fork_are_between_its_ops() -> None:
    joined = equal_devices([4.0, 4.0, 1.0], [(0, 2), (1, 2)], latency_s=9.0, op_overhead_s=0.5)
    forked = equal_devices([1.0, 4.0, 4.0], [(0, 1), (0, 2)], latency_s=9.0, op_overhead_s=0.5)
    assert [makespan_bound(p) for p in (joined, forked)] == 2 * [Bound(4 + 0.5 + 4 + 0.5 + 1, PATHS)]


def test_an_op_of_one_device_and_its_reader_of_another_pay_for_their_transfer() -> None:
    problem = ScheduleProblem.from_arrays(
        [[2.0, np.nan], [np.nan, 3.0]], [(0, 1)], link_latency_s=1.0, output_bytes=8.0, link_bandwidth_bytes_per_s=4.0
    )
    assert makespan_bound(problem) == Bound(2 + 1 + 8 / 4 + 3, PATHS)


def test_all_that_lies_between_two_ops_has_to_run_between_them() -> None:
    """Two layers of four ops of 2 s, with an op before, between and after them: 2 + 2 seconds a layer."""
    edges = [(0, v) for v in (1, 2, 3, 4)] + [(v, 5) for v in (1, 2, 3, 4)]
    edges += [(5, v) for v in (6, 7, 8, 9)] + [(v, 10) for v in (6, 7, 8, 9)]
    layers = equal_devices([1.0, 2, 2, 2, 2, 1, 2, 2, 2, 2, 1], edges, latency_s=0.0)
    assert makespan_bound(layers) == Bound(1 + 4 + 1 + 4 + 1.0, PATHS)


@pytest.mark.parametrize(
    ("times", "edges", "latency_s", "optimum_s"),
    [
        ([1.0, 1.0, 1.0, 2.0], [(1, 2), (0, 3), (2, 3)], 5.0, 5.0),
        ([3.0, 1.0, 1.0, 2.0, 2.0], [(0, 2), (0, 4), (1, 4), (3, 4)], 4.0, 8.0),
    ],
)
def test_ops_that_must_share_a_device_do_not_fill_two(
    times: list[float], edges: list[tuple[int, int]], latency_s: float, optimum_s: float
) -> None:
    problem = equal_devices(times, edges, latency_s)
    assert makespan_bound(problem) == Bound(optimum_s, WINDOWS)
    assert least_makespan_s(problem) == optimum_s


def test_what_loads_and_paths_prove_alone_is_said_to_be_theirs() -> None:
    chain = equal_devices([3.0, 2.0, 4.0], [(0, 1), (1, 2)], latency_s=1.0)
    assert makespan_bound(chain) == Bound(9.0, CRITICAL_PATH)
    assert makespan_bound(equal_devices([2.0] * 6, [], latency_s=1.0)) == Bound(6.0, LOAD)


def test_loads_of_unlike_devices_are_weighed() -> None:
    """Three ops on the first device and one on the second take 3 s each; the best times alone would show 2 s."""
    problem = ScheduleProblem.from_arrays(np.tile([1.0, 3.0], (4, 1)), [])
    for bound in (makespan_bound(problem), period_bound(problem)):
        assert bound.argument == LOAD
        assert 2.999 <= bound.value_s <= 3 * ROUNDING


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 4))
def test_prices_show_no_more_than_the_busiest_device_of_any_placement(seed: int, num_ops: int, num: int) -> None:
    rng = np.random.default_rng(seed)
    time_s = rng.uniform(0.1, 9.0, (num_ops, num))
    found_s, prices = dual_load(lambda prices: loads_of_ops(time_s, prices), np.full(num, 1 / num), 50)
    assert prices.sum() == pytest.approx(1.0)
    assert found_s >= time_s.min(axis=1).sum() / num * (1 - 1e-12)
    for device in rng.integers(0, num, (50, num_ops)):
        assert found_s <= np.bincount(device, time_s[np.arange(num_ops), device]).max() * ROUNDING


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(2, 3))
def test_times_between_two_ops_are_at_least_heads_and_tails_and_add_up(seed: int, num_ops: int, num: int) -> None:
    relaxed = Relaxation.of(drawn(seed, num_ops, num))
    prices = relaxed.cheapest(np.full(num, 1 / num))
    plain, loaded = (between_all(relaxed, prices, with_loads=on) for on in (False, True))
    head_s, tail_s = heads_and_tails(relaxed)
    assert (loaded >= plain).all()
    assert (plain[0, 1:] >= head_s[1:]).all()
    assert (plain[:-1, -1] >= tail_s[:-1]).all()
    assert ((plain == UNRELATED) == (loaded == UNRELATED)).all()


def test_of_equal_bounds_the_first_counts() -> None:
    assert largest(Bound(2.0, "a"), None, Bound(2.0, "b"), Bound(1.0, "c")).argument == "a"


def test_devices_that_are_alike_in_all_are_one_kind_at_the_least_of_their_prices() -> None:
    times = [[1.0, 9.0, 1.0, 9.0], [2.0, 3.0, 2.0, 3.0]]
    relaxed = Relaxation.of(ScheduleProblem.from_arrays(times, [(0, 1)]))
    prices = relaxed.cheapest(np.array([0.4, 0.3, 0.1, 0.2]))
    assert dict(zip(relaxed.time_s[1].tolist(), prices.tolist(), strict=True)) == {1.0: 0.1, 9.0: 0.2}


def costly(seed: int, num_ops: int) -> ScheduleProblem:
    """Two devices, with launches and overheads half of the time."""
    return random_problem(seed, num_ops, launch_s=[seed % 3, 1.0], transfer_overhead_s=float(seed % 2))


@given(st.integers(0, 2**32), st.integers(1, 6))
def test_no_placement_beats_the_sequential_bound(seed: int, num_ops: int) -> None:
    problem = costly(seed, num_ops)
    best_s = simulate_makespans(problem, every_placement(problem), Semantics(Execution.SEQUENTIAL)).min()
    assert lower_bound(LATENCY, problem, Execution.SEQUENTIAL).value_s <= best_s * (1 + 1e-12)


@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from(list(Links)), st.sampled_from(list(Execution)))
def test_no_placement_beats_the_bound_of_the_period(seed: int, num_ops: int, links: Links, how: Execution) -> None:
    problem = costly(seed, num_ops)
    best_s = period_s(problem, every_placement(problem), Semantics(how, links=links)).min()
    assert lower_bound(THROUGHPUT, problem, how).value_s <= best_s * (1 + 1e-12)


def test_a_chain_is_its_own_critical_path_and_independent_ops_share_the_devices() -> None:
    times = [[3.0, 1.0], [2.0, 5.0], [4.0, 4.0]]
    assert critical_path_s(ScheduleProblem.from_arrays(times, [(0, 1), (1, 2)])) == 1 + 2 + 4
    loose = ScheduleProblem.from_arrays(np.full((5, 2), 2.0), [])
    assert lower_bound(LATENCY, loose, Execution.WORK_CONSERVING).value_s == 5 * 2 / 2


@pytest.mark.parametrize("objective", [LATENCY, THROUGHPUT])
@pytest.mark.parametrize("execution", list(Execution))
def test_the_bound_of_one_device_is_what_it_takes(objective: Objective, execution: Execution) -> None:
    problem = ScheduleProblem.from_arrays([[1.0], [2.0]], [(0, 1)], launch_s=3.0, op_overhead_s=0.5)
    expected = {Execution.SEQUENTIAL: 3 + 1 + 0.5 + 2, Execution.WORK_CONSERVING: 1 + 0.5 + 2}[execution]
    if objective is THROUGHPUT and execution is Execution.WORK_CONSERVING:
        expected += 0.5  # the last overhead delays the next request
    assert lower_bound(objective, problem, execution).value_s == expected
