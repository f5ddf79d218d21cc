"""Lower bounds against the best of all placements and orders, found by brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.bounds.makespan import lower_bound
from hsdag.runtime.problem.bounds.simple import critical_path_s
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Order, Semantics
from hsdag.runtime.simulator.simulation import simulate_makespans
from hsdag.runtime.simulator.values import period_s
from tests.hsdag.methods.exact.exact_reference import every_placement, random_problem


def costly(seed: int, num_ops: int) -> ScheduleProblem:
    """Two devices, with launches and overheads half of the time."""
    return random_problem(seed, num_ops, launch_s=[seed % 3, 1.0], transfer_overhead_s=float(seed % 2))


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_no_placement_and_no_order_beats_the_bound(seed: int, num_ops: int) -> None:
    problem = costly(seed, num_ops)
    placements, how = every_placement(problem), Semantics(order=Order.PRIORITY)
    ranks = [np.array(order) for order in itertools.permutations(range(num_ops))]
    best_s = min(simulate_makespans(problem, placements, how, rank, 1).min() for rank in ranks)
    assert lower_bound(LATENCY, problem, Execution.WORK_CONSERVING).value_s <= best_s * (1 + 1e-12)


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
