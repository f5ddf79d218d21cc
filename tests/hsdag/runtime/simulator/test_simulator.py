"""The simulator against a slow reference, over random problems; limits, and devices that slow each other down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Order, Semantics
from hsdag.runtime.simulator.machine import BY_RANK, SEQUENTIAL, Machine, machine_for
from hsdag.runtime.simulator.simulation import run_many, simulate, simulate_makespans
from hsdag.runtime.simulator.values import period_s
from tests.hsdag.runtime.simulator import reference_simulator
from tests.hsdag.runtime.simulator.reference_simulator import SIMULATED, Case, random_case

cases = st.builds(
    random_case,
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
    case = random_case(seed, num_ops, num_devices, *overheads_s, contended=True)
    how = Semantics(order=order, links=links, seed=seed)
    assert reference_simulator.largest_deviation(case, how) <= 1e-9


def test_factors_of_one_are_as_none() -> None:
    problem, placement, _ = random_case(1, 40, 3)
    ones = replace(problem, slowdown=np.ones((3, 3)))
    assert simulate(ones, placement).makespan_s == simulate(problem, placement).makespan_s


def test_execution_in_turn_is_not_contended() -> None:
    problem, placement, _ = random_case(3, 40, 3)
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


ROUNDING = 1e-9


def limited(machine: Machine, placement: IntArray, limit_s: float) -> tuple[float, int]:
    """The makespan under a limit, and how many ops were still waited for at its end."""
    machine.run["limit_s"], makespan_s = limit_s, np.empty(1)
    run_many(machine, placement[None], makespan_s)
    return float(makespan_s[0]), int((machine.ops["waiting"] > 0).sum())


@pytest.mark.parametrize("contended", [False, True])
@pytest.mark.parametrize("links", SIMULATED)
@pytest.mark.parametrize("how", Execution)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 4), st.sampled_from([0.0, 0.5]))
@settings(max_examples=5)
def test_a_limit_is_exceeded_exactly_where_the_makespan_is_longer(
    how: Execution, links: Links, contended: bool, seed: int, num_ops: int, num_devices: int, overhead_s: float
) -> None:
    problem, placement, ranks = random_case(seed, num_ops, num_devices, overhead_s, overhead_s, contended)
    mode = SEQUENTIAL if how is Execution.SEQUENTIAL else BY_RANK
    expected = simulate(problem, placement, Semantics(how, links=links), ranks).makespan_s
    for limit_s in (expected * (1 + ROUNDING), np.inf):
        machine = machine_for(problem, Semantics(how, links=links), mode, ranks)
        assert limited(machine, placement, limit_s)[0] == expected
    if expected > 0:
        machine = machine_for(problem, Semantics(how, links=links), mode, ranks)
        assert limited(machine, placement, expected * (1 - ROUNDING))[0] == np.inf


def test_a_run_ends_at_the_first_op_that_is_too_late() -> None:
    problem, placement, ranks = random_case(1, 60, 2)
    machine = machine_for(problem, Semantics(), BY_RANK, ranks)
    limit_s = simulate(problem, placement, Semantics(), ranks).makespan_s / 2
    makespan_s, waiting = limited(machine, placement, limit_s)
    assert makespan_s == np.inf
    assert waiting > 0
