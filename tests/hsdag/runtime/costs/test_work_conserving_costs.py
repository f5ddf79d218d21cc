"""Simulated latency under the work-conserving executor, and its calibration on measured placements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.runtime.costs.work_conserving_costs import PartTable, WorkConservingCosts
from hsdag.runtime.problem.schedule_problem import CostSource, ScheduleProblem

DIAMOND = graph_from_edges(
    ["MatMul"] * 4, [(0, 1), (0, 2), (1, 3), (2, 3)], output_bytes=[100, 200, 400, 0], flops=[1e12] * 4
)
"""Every op takes seconds by what the cut assumes, so that all of them stay apart where devices differ."""


def diamond(time_s: np.ndarray) -> WorkConservingCosts:
    """Launches of 1 s and 2 s; reading takes 3 s and 5 s per byte, writing 7 s and 11 s."""
    return WorkConservingCosts(
        PartTable(DIAMOND, time_s), np.array([1.0, 1.0, 1.0, 2.0, 3.0, 5.0, 7.0, 11.0]), CostSource.FILE
    )


def case(seed: int) -> WorkConservingCosts:
    """A random graph with random costs on two devices."""
    rng = np.random.default_rng(seed)
    edges = sorted({(int(rng.integers(max(v - 4, 0), v)), v) for v in range(1, 24) for _ in range(2)})
    sizes, flops = rng.integers(1_000, 1_000_000, 24).tolist(), rng.uniform(1e7, 1e8, 24).tolist()
    graph = graph_from_edges(["MatMul"] * 24, edges, output_bytes=sizes, flops=flops)
    time_s = rng.uniform(1e-4, 2e-3, (graph.num_ops, 2))
    costs = ScheduleProblem.from_graph(graph, time_s, launch_s=1e-4, link_bandwidth_bytes_per_s=2e9)
    return WorkConservingCosts.of(graph, costs)


def random_placements(seed: int, count: int, num_ops: int = 24) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.asarray(np.cumsum(rng.random((count, num_ops)) < 0.2, axis=1) % 2)


def test_branches_on_two_devices_overlap_and_boundaries_cost() -> None:
    time_s = np.array([[10.0, 99.0], [20.0, 99.0], [99.0, 30.0], [40.0, 99.0]])
    first = 10 + 1 + 100 * 7
    left, right = 20 + 1 + 100 * 3 + 200 * 7, 30 + 2 + 100 * 5 + 400 * 11
    last = 40 + 1 + (200 + 400) * 3
    assert diamond(time_s).latency_s(np.array([[0, 0, 1, 0]])).tolist() == [first + max(left, right) + last]


SHARED = np.array([[1.0, 1.5], [2.0, 1.0]])


def test_parts_side_by_side_on_devices_that_slow_each_other_down_are_stretched_while_both_run() -> None:
    time_s = np.array([[10.0, 99.0], [20.0, 99.0], [99.0, 30.0], [40.0, 99.0]])
    left, right = 20 + 1 + 100 * 3 + 200 * 7, 30 + 2 + 100 * 5 + 400 * 11
    branches = 1.5 * left + (right - 1.5 * left / 2.0)
    costs, placement = replace(diamond(time_s), slowdown=SHARED), np.array([[0, 0, 1, 0]])
    assert costs.latency_s(placement).tolist() == [711 + branches + 1841]
    near = 711 + left - (1 + 100 * 3) + 1841  # for throughput the left branch is one part with what it reads
    assert costs.period_s(placement).tolist() == [1.5 * near + (right - 1.5 * near / 2.0)]
    assert costs.latency_s(np.zeros((1, 4), dtype=np.int64)).tolist() == [10 + 20 + 99 + 40 + 1]


def test_an_order_that_harms_takes_longer_and_a_calibration_knows_its_chain() -> None:
    graph = graph_from_edges(["MatMul"] * 3, [(0, 2)], output_bytes=[1] * 3, flops=[1e12] * 3)
    costs = WorkConservingCosts(PartTable(graph, np.array([[10.0, 1], [20, 1], [1, 30]])), np.zeros(8), CostSource.FILE)
    costs.parameters[:2] = 1.0
    placement, orders = np.array([[0, 0, 1]] * 2), [np.array([0, 1, 2]), np.array([1, 0, 2])]
    assert costs.latency_s(placement, orders).tolist() == [10 + 30, 20 + 10 + 30]
    assert costs.latency_s(placement).tolist() == [10 + 30] * 2
    found_s = costs.calibrated(placement, np.array([40.0, 60.0]), priority=orders).latency_s(placement, orders)
    assert found_s == pytest.approx([40.0, 60.0])


def test_an_unsupported_op_costs_infinity() -> None:
    time_s = np.ones((4, 2))
    time_s[2, 1] = np.nan
    found = diamond(time_s).latency_s(np.array([[0, 0, 1, 0], [1, 1, 0, 1]]))
    assert np.isfinite(found).tolist() == [False, True]
    assert np.isinf(diamond(time_s).period_s(np.array([[0, 0, 1, 0]]))).all()


@pytest.mark.parametrize(("joins_s", "is_finite"), [(1.0, True), (np.nan, False)])
def test_a_join_that_would_be_copied_to_a_device_without_it_costs_infinity(joins_s: float, is_finite: bool) -> None:
    """Less is sent to device 1 when it joins for itself."""
    types = ["MatMul", "MatMul", "Concat", "MatMul"]
    graph = graph_from_edges(types, [(0, 2), (1, 2), (2, 3)], output_bytes=[9, 1, 10, 1], flops=[1e12] * 4)
    time_s = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, joins_s], [1.0, 1.0]])
    costs = WorkConservingCosts(PartTable(graph, time_s), np.ones(8), CostSource.FILE)
    assert np.isfinite(costs.latency_s(np.array([[1, 0, 0, 1]]))).tolist() == [is_finite]


@settings(max_examples=6)
@given(st.integers(0, 100))
def test_calibrating_on_what_is_simulated_already_leaves_slow_downs_as_they_are(seed: int) -> None:
    costs, seen = replace(case(seed), slowdown=SHARED), random_placements(seed, 6)
    fitted = costs.calibrated(seen, costs.latency_s(seen))
    assert fitted.slowdown == pytest.approx(SHARED, rel=1e-6)
    assert fitted.parameters == pytest.approx(costs.parameters, rel=1e-6)


@pytest.mark.slow
@settings(max_examples=6)
@given(st.integers(0, 100), st.floats(0.5, 2.0))
def test_calibration_finds_by_how_much_devices_really_slow_each_other_down(seed: int, more: float) -> None:
    prior, alone = replace(case(seed), slowdown=SHARED), np.repeat([[0], [1]], 24, axis=1)
    seen, others = np.concatenate([alone, random_placements(seed, 12)]), random_placements(seed + 1, 30)
    true = replace(prior, slowdown=1.0 + more * (SHARED - 1.0))
    fitted = prior.calibrated(seen, true.latency_s(seen))
    error, before = (np.abs(costs.latency_s(others) / true.latency_s(others) - 1.0).mean() for costs in (fitted, prior))
    assert error <= 0.5 * before + 5e-3
    assert fitted.slowdown is not None
    assert fitted.costs.slowdown is not None
    assert np.array_equal(fitted.costs.slowdown, fitted.slowdown)
    assert (fitted.slowdown[1, 0] - 2.0) * (more - 1.0) >= -1e-3  # in the right direction


@settings(max_examples=6)
@given(st.integers(0, 100), st.floats(0.7, 1.4))
def test_calibration_finds_that_everything_takes_longer_than_in_the_profile(seed: int, longer: float) -> None:
    prior = replace(case(seed), slowdown=SHARED)
    seen, others = random_placements(seed, 6), random_placements(seed + 1, 20)
    fitted = prior.calibrated(seen, longer * prior.latency_s(seen))
    assert fitted.latency_s(others) == pytest.approx(longer * prior.latency_s(others), rel=0.01)
    assert fitted.slowdown == pytest.approx(SHARED, rel=0.01)


def test_a_placement_is_cut_once_and_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    table, (one, other) = case(3).table, random_placements(3, 2)
    first = table.parts(one)
    assert table.parts(one.copy()) is first
    monkeypatch.setattr("hsdag.runtime.costs.work_conserving_costs.MOST_REMEMBERED", 1)
    assert table.parts(other) is table.parts(other)
    assert table.parts(one) is not first


def test_methods_are_told_what_a_crossing_takes() -> None:
    own = diamond(np.ones((4, 2)))
    own.parameters[:2] = 3.0, 4.0
    costs = own.costs
    assert costs.time_s.tolist() == [[3.0, 4.0]] * 4
    assert costs.link_latency_s[0, 1] == 2.0
    assert 1.0 / costs.link_bandwidth_bytes_per_s[0, 1] == pytest.approx(7 + 5)


def test_measured_syncs_take_the_place_of_what_hetero_says_of_launches_and_bytes() -> None:
    costs = ScheduleProblem.from_graph(DIAMOND, np.ones((4, 3)), launch_s=1e-3, link_bandwidth_bytes_per_s=1e9)
    unknown = np.nan
    syncs = np.array([[unknown, 1.0, unknown], [3.0, unknown, unknown], [unknown] * 3]), np.full((3, 3), unknown)
    syncs[1][0, 1], syncs[1][1, 0] = 5.0, 7.0
    found = WorkConservingCosts.of(DIAMOND, costs, syncs).cut_costs
    assert found.launch_s.tolist() == [3.0, 1.0, pytest.approx(1e-3)]
    assert found.read_s_per_byte.tolist() == found.write_s_per_byte.tolist() == [7.0, 5.0, pytest.approx(1e-9)]
