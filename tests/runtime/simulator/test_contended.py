"""Devices that slow each other down: closed forms, and agreement with the slow reference simulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Order, Semantics
from hsdag.runtime.simulator.simulation import simulate
from hsdag.runtime.simulator.values import period_s
from tests.runtime.simulator import reference_simulator

SIMULATED = reference_simulator.SIMULATED


def apart(time_s: list[float], slowdown: np.ndarray) -> ScheduleProblem:
    """Ops that do not depend on each other, as long on every device."""
    return ScheduleProblem.from_arrays(np.tile(time_s, (len(slowdown), 1)).T, [], slowdown=slowdown)


@pytest.mark.parametrize("links", SIMULATED)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 6), st.sampled_from(Order))
def test_contended_runs_agree_with_the_reference(
    links: Links, seed: int, num_ops: int, num_devices: int, order: Order
) -> None:
    overheads_s = seed % 3 / 2, seed % 5 / 4
    case = reference_simulator.random_case(seed, num_ops, num_devices, *overheads_s, contended=True)
    how = Semantics(order=order, links=links, seed=seed)
    assert reference_simulator.largest_deviation(case, how) <= 1e-9


@pytest.mark.parametrize("links", SIMULATED)
def test_two_equal_ops_side_by_side_each_take_their_factor_as_long(links: Links) -> None:
    run = simulate(apart([2.0, 2.0], np.array([[1, 1.5], [1.5, 1]])), [0, 1], Semantics(links=links))
    assert run.end_s.tolist() == [3.0, 3.0]
    assert run.busy_s.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("links", SIMULATED)
def test_overheads_and_transfers_neither_slow_down_nor_are_slowed_down(links: Links) -> None:
    problem = ScheduleProblem.from_arrays(
        np.array([[1, 1], [1, 1], [6, 6]]),
        [(0, 1)],
        output_bytes=4.0,
        link_bandwidth_bytes_per_s=1.0,
        slowdown=[[1, 2], [2, 1]],
        op_overhead_s=8.0,
    )
    run = simulate(problem, [1, 0, 0], Semantics(links=links), [0, 1, 0])  # 2 s of both, 4 s of transfer, 8 s overhead
    assert run.end_s.tolist() == [2.0, 2.0 + 5.0 + 8.0 + 1.0, 2.0 + 5.0]


def test_factors_of_one_are_as_none() -> None:
    problem, placement, _ = reference_simulator.random_case(1, 40, 3)
    ones = replace(problem, slowdown=np.ones((3, 3)))
    assert simulate(ones, placement).makespan_s == simulate(problem, placement).makespan_s


def test_execution_in_turn_is_not_contended() -> None:
    problem, placement, _ = reference_simulator.random_case(3, 40, 3)
    contended, how = replace(problem, slowdown=np.full((3, 3), 4.0)), Semantics(Execution.SEQUENTIAL)
    assert simulate(contended, placement, how).makespan_s == simulate(problem, placement, how).makespan_s


def test_a_contended_period_ends_when_the_busiest_device_has_done_its_load() -> None:
    problem = apart([2.0, 5.0], np.array([[1, 1.5], [2.0, 1]]))
    assert period_s(problem, [[0, 1], [0, 0]]).tolist() == [3.0 + (5.0 - 3.0 / 2.0), 7.0]
    slow_link = replace(
        ScheduleProblem.from_arrays(np.ones((2, 2)), [(0, 1)], edge_bytes=9.0, link_bandwidth_bytes_per_s=1.0),
        slowdown=np.full((2, 2), 2.0),
    )
    assert period_s(slow_link, [[0, 1]], Semantics(links=Links.CHANNEL)).tolist() == [9.0]
    assert period_s(slow_link, [[0, 1]]).tolist() == [2.0]


@pytest.mark.parametrize("slowdown", [[[1, 0.5], [1, 1]], [[1, np.nan], [1, 1]], [[1, np.inf], [1, 1]]])
def test_factors_below_one_and_those_that_are_no_numbers_are_refused(slowdown: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="slowdown must be finite and at least 1"):
        ScheduleProblem.from_arrays([[1.0, 1.0]], [], slowdown=slowdown)
