"""The simulator against a slow reference, over random problems."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Order, Semantics
from hsdag.runtime.simulator.simulation import simulate, simulate_makespans
from hsdag.runtime.simulator.values import period_s
from tests.runtime.simulator import reference_simulator

SIMULATED = reference_simulator.SIMULATED
Case = tuple[ScheduleProblem, np.ndarray, np.ndarray]
cases = st.builds(
    reference_simulator.random_case,
    st.integers(0, 10**6),
    st.integers(1, 60),
    st.integers(1, 5),
    st.sampled_from([0.0, 1.0, 0.3]),
    st.sampled_from([0.0, 1.0, 0.3]),
)
semantics = st.builds(
    Semantics,
    st.sampled_from(Execution),
    st.sampled_from(Order),
    st.sampled_from(SIMULATED),
    st.integers(0, 5),
)


@pytest.mark.parametrize("links", SIMULATED)
@pytest.mark.parametrize("execution", Execution)
@given(case=cases, order=st.sampled_from(Order), seed=st.integers(0, 5))
def test_simulator_agrees_with_the_reference(
    execution: Execution, links: Links, case: Case, order: Order, seed: int
) -> None:
    assert reference_simulator.largest_deviation(case, Semantics(execution, order, links, seed)) <= 1e-9


@given(cases, semantics)
def test_a_batch_over_two_threads_gives_what_single_simulations_give(case: Case, how: Semantics) -> None:
    problem, placement, priority = case
    batch = np.stack([placement, np.zeros_like(placement), np.roll(placement, 1)])
    alone = [simulate(problem, row, how, priority).makespan_s for row in batch]
    assert simulate_makespans(problem, batch, how, priority, num_threads=2).tolist() == alone


@pytest.mark.parametrize("links", Links)
@given(case=cases, order=st.sampled_from(Order), others=st.integers(0, 3))
def test_period_is_the_load_of_the_busiest_resource(links: Links, case: Case, order: Order, others: int) -> None:
    problem, placement, _ = case
    batch = np.stack([np.roll(placement, i) for i in range(others + 1)])
    found = period_s(problem, batch, Semantics(order=order, links=links))
    slow = [reference_simulator.Reference(problem, a.tolist(), links=links.value) for a in batch]
    assert found == pytest.approx([one.period() for one in slow], rel=1e-12)


@given(cases, st.sampled_from(SIMULATED))
def test_period_of_sequential_execution_is_its_makespan(case: Case, links: Links) -> None:
    problem, placement, _ = case
    how = Semantics(Execution.SEQUENTIAL, links=links)
    slow = reference_simulator.Reference(problem, placement.tolist(), links=links.value)
    assert period_s(problem, [placement], how) == pytest.approx([slow.sequential()])


@given(cases)
def test_period_under_independent_links_is_at_most_the_makespan_and_the_last_overhead(case: Case) -> None:
    problem, placement, _ = case
    makespan_s = simulate(problem, placement).makespan_s
    assert period_s(problem, [placement])[0] <= makespan_s + problem.op_overhead_s + 1e-9
