"""The simulator against a slow reference, over random problems; what the reference does not know, by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hsdag.base.errors import OptionError, PlacementError
from hsdag.ir.graph.computation_graph import IntArray
from hsdag.runtime.objectives import find_objective
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Order, Semantics
from hsdag.runtime.simulator import simulation
from hsdag.runtime.simulator.machine import BY_RANK, SEQUENTIAL, Machine, machine_for
from hsdag.runtime.simulator.simulation import run_many, simulate, simulate_makespans
from hsdag.runtime.simulator.values import period_s, simulated_values
from tests.hsdag.runtime.simulator.reference_simulator import SIMULATED, Reference, largest_deviation, random_case

pytestmark = pytest.mark.usefixtures("both_ways")
OVERHEADS_S, ROUNDING = st.sampled_from([0.0, 1.0, 0.25]), 1e-9  # sums of these are exact
SIZES = st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 5), OVERHEADS_S, OVERHEADS_S
cases = st.builds(random_case, *SIZES)
IN_TURN = Semantics(Execution.SEQUENTIAL)


@pytest.mark.parametrize("links", SIMULATED)
@pytest.mark.parametrize(
    ("execution", "contended"),
    [(Execution.SEQUENTIAL, True), (Execution.WORK_CONSERVING, False), (Execution.WORK_CONSERVING, True)],
)
@given(st.data(), st.sampled_from(Order))
def test_simulator_agrees_with_the_reference(
    execution: Execution, contended: bool, links: LinkSharing, data: st.DataObject, order: Order
) -> None:
    case = data.draw(st.builds(random_case, *SIZES, st.just(contended)))
    assert largest_deviation(case, Semantics(execution, order, links, data.draw(st.integers(0, 5)))) <= ROUNDING


@given(cases, st.sampled_from(Execution), st.sampled_from(Order), st.sampled_from(SIMULATED))
def test_a_batch_over_two_threads_gives_what_single_simulations_give(
    case: Any, execution: Execution, order: Order, links: LinkSharing
) -> None:
    (problem, placement, priority), how = case, Semantics(execution, order, links)
    batch = np.stack([placement, np.zeros_like(placement), np.roll(placement, 1)])
    alone = [simulate(problem, row, how, priority).makespan_s for row in batch]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "OPS_PER_THREAD", 1)
        assert simulate_makespans(problem, batch, how, priority, num_threads=2).tolist() == alone


@pytest.mark.parametrize("links", LinkSharing)
@given(cases, st.integers(0, 3))
def test_period_is_the_load_of_the_busiest_resource_or_the_makespan_in_turn(
    links: LinkSharing, case: Any, others: int
) -> None:
    problem, placement, _ = case
    batch = np.stack([np.roll(placement, i) for i in range(others + 1)])
    slow = [Reference(problem, a.tolist(), links=links.value) for a in batch]
    assert period_s(problem, batch, Semantics(links=links)) == pytest.approx([one.period() for one in slow], rel=1e-12)
    in_turn = period_s(problem, batch, replace(IN_TURN, links=links))
    assert in_turn == pytest.approx([one.sequential() for one in slow])


def test_a_contended_period_ends_when_the_busiest_device_has_done_its_load() -> None:
    problem = ScheduleProblem.from_arrays([[2.0, 2.0], [5.0, 5.0]], [], slowdown=np.array([[1, 1.5], [2.0, 1]]))
    assert period_s(problem, [[0, 1], [0, 0]]).tolist() == [3.0 + (5.0 - 3.0 / 2.0), 7.0]
    slow_link = replace(
        ScheduleProblem.from_arrays(np.ones((2, 2)), [(0, 1)], edge_bytes=9.0, link_bandwidth_bytes_per_s=1.0),
        slowdown=np.full((2, 2), 2.0),
    )
    assert period_s(slow_link, [[0, 1]], Semantics(links=LinkSharing.CHANNEL)).tolist() == [9.0]
    assert period_s(slow_link, [[0, 1]]).tolist() == [2.0]


def limited(machine: Machine, placement: IntArray, limit_s: float) -> tuple[float, int]:
    """The makespan under a limit, and how many ops were still waited for at its end."""
    machine.run["limit_s"], makespan_s = limit_s, np.empty(1)
    run_many(machine, placement[None], makespan_s)
    return float(makespan_s[0]), int((machine.ops["waiting"] > 0).sum())


@pytest.mark.parametrize("contended", [False, True])
@pytest.mark.parametrize("links", SIMULATED)
@pytest.mark.parametrize("how", Execution)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 4), st.sampled_from([0.0, 0.5]))
@example(441876, 14, 3, 0.5)  # whose last op starts together with one that takes no time
@settings(max_examples=5)
def test_a_limit_is_exceeded_exactly_where_the_makespan_is_longer(
    how: Execution, links: LinkSharing, contended: bool, seed: int, num_ops: int, num_devices: int, overhead_s: float
) -> None:
    problem, placement, priority = random_case(seed, num_ops, num_devices, overhead_s, overhead_s, contended)
    mode = SEQUENTIAL if how is Execution.SEQUENTIAL else BY_RANK
    expected = simulate(problem, placement, Semantics(how, links=links), priority).makespan_s
    for limit_s in (expected * (1 + ROUNDING), np.inf, *([expected * (1 - ROUNDING)] if expected else [])):
        machine = machine_for(problem, Semantics(how, links=links), mode, priority)
        assert limited(machine, placement, limit_s)[0] == (expected if limit_s > expected else np.inf)


@given(cases, st.integers(0, 10**6))
def test_a_run_by_its_own_ranks_is_the_same_also_where_ops_take_no_time(case: Any, seed: int) -> None:
    problem, placement, priority = case
    some = np.random.default_rng(seed).random((problem.num_ops, 1)) < 0.5
    problem = replace(problem, time_s=problem.time_s * some)
    by_rank = Semantics(order=Order.PRIORITY)
    first = simulate(problem, placement, by_rank, priority)
    assert simulate(problem, placement, by_rank, first.priority).start_s.tolist() == first.start_s.tolist()


def test_a_run_ends_at_the_first_op_that_is_too_late() -> None:
    problem, placement, priority = random_case(1, 60, 2)
    limit_s = simulate(problem, placement, Semantics(), priority).makespan_s / 2
    assert limited(machine_for(problem, Semantics(), BY_RANK, priority), placement, limit_s)[1] > 0


FORK = ScheduleProblem.from_arrays(np.ones((3, 3)), [(0, 1), (0, 2)], output_bytes=4.0, op_overhead_s=0.5,
                                   link_latency_s=[[0, 1, 3], [0, 0, 0], [0, 0, 0]],
                                   link_bandwidth_bytes_per_s=4.0)  # fmt: skip


@pytest.mark.parametrize(
    ("links", "start_s", "num"), [("independent", [0, 3, 5], 2), ("egress", [0, 5, 5], 1), ("channel", [0, 3, 5], 2)]
)
def test_a_result_for_two_devices_is_sent_as_the_links_say(links: str, start_s: list[float], num: int) -> None:
    run = simulate(FORK, [0, 1, 2], Semantics(links=LinkSharing(links)))  # 2 s to device 1, 4 s to device 2
    assert run.start_s.tolist() == start_s
    assert (run.makespan_s, run.num_transfers, run.transfer_bytes) == (6.0, num, 4.0 * num)
    assert run.busy_s.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("links", [LinkSharing.EGRESS, LinkSharing.CHANNEL])
def test_a_bus_takes_results_that_became_available_together_by_op_index(links: LinkSharing) -> None:
    times = [[1, 1], [0, 1], [0, 1], [1, 1], [1, 1], [1, 1]]
    p = ScheduleProblem.from_arrays(
        times, [(0, 3), (1, 4), (2, 5)], link_latency_s=5.0, order=np.array([0, 2, 1, 3, 5, 4])
    )
    run = simulate(p, [0, 0, 0, 1, 1, 1], Semantics(links=links), priority=[0, 2, 1, 3, 4, 5])  # op 2 runs before op 1
    assert run.start_s[3:].tolist() == [6.0, 11.0, 16.0]


@pytest.mark.parametrize(("links", "makespan_s", "peak"), [("independent", 2, 8), ("egress", 4, 4), ("channel", 4, 4)])
def test_outputs_of_an_op_are_sent_one_by_one(links: str, makespan_s: float, peak: float) -> None:
    """Each of 4 bytes takes 2 s."""
    rates: dict[str, Any] = {"edge_bytes": 4.0, "link_bandwidth_bytes_per_s": 4.0, "link_latency_s": 1.0}
    problem = ScheduleProblem.from_arrays(np.zeros((3, 2)), [(0, 1), (0, 2)], edge_port=[0, 1], **rates)
    run = simulate(problem, [0, 1, 1], Semantics(links=LinkSharing(links)))
    assert (run.num_transfers, run.transfer_bytes, run.makespan_s) == (2, 8.0, makespan_s)
    assert run.peak_memory_bytes[1] == peak
    assert period_s(problem, [[0, 1, 1]], Semantics(links=LinkSharing(links)))[0] == (
        0.0 if links == "independent" else 4.0
    )
    alike = replace(problem, edge_port=np.zeros_like(problem.edge_port))
    assert simulate_makespans(alike, [[0, 1, 1]], IN_TURN).tolist() == [2.0]


# two ops in a line, 3 s and 1 s on d0, which takes 10 W, and twice as long on d1, which takes 2 W
LINE = ScheduleProblem.from_arrays(
    [[3.0, 6.0], [1.0, 2.0]], [(0, 1)], weight_bytes=[100.0, 40.0], output_bytes=[8.0, 4.0], power_w=[10.0, 2.0]
)


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("latency", [4.0, 5.0, 7.0, 8.0]),
        ("throughput", [4.0, 3.0, 6.0, 8.0]),
        ("energy", [40.0, 34.0, 22.0, 16.0]),
        # weights 140 and both results at once; split, the second op's device has its weights, a copy and a result
        ("memory", [152.0, 108.0, 108.0, 152.0]),
    ],
)
def test_values_of_a_line_on_two_devices_and_infinity_where_an_op_is_not_supported(
    objective: str, expected: list[float]
) -> None:
    every = np.array(list(itertools.product(range(2), repeat=2)))
    assert simulated_values(find_objective(objective), LINE, every, Semantics()).tolist() == expected
    lacking = replace(LINE, time_s=np.array([[3.0, np.nan], [1.0, 2.0]]))
    found = simulated_values(find_objective(objective), lacking, every, Semantics())
    assert np.isfinite(found).tolist() == [True, True, False, False]


def test_energy_of_devices_that_slow_each_other_down_is_of_the_time_they_take_then() -> None:
    apart = ScheduleProblem.from_arrays(LINE.time_s, [], power_w=LINE.power_w, slowdown=[[1.0, 2.0], [3.0, 1.0]])
    # on d0 3 s beside the other take 6 s, in which the other has done all of its 2 s
    assert simulated_values(find_objective("energy"), apart, np.array([[0, 1]]), Semantics()).tolist() == [72.0]
    with pytest.raises(OptionError, match="device 'd1' of problem 'problem' has none: give it a power_w"):
        replace(apart, power_w=np.array([1.0, np.nan])).check(find_objective("latency=1,energy=1"))


@pytest.mark.parametrize(
    ("placement", "how", "priority", "message"),
    [
        ([0, 0], Semantics(order=Order.PRIORITY), None, "order 'priority' needs priorities"),
        ([0, 0], None, [1.0], "priorities must be 2 numbers, one for each op"),
        ([0, 0], None, [1.0, np.nan], "priorities must be 2 numbers"),
        ([0, 0], Semantics(links=LinkSharing.BLOCKING), None, "'blocking' are for the throughput objective only"),
        ([0, 3], None, None, "names device 3, but there are only 2"),
        ([0, -1], None, None, "names device -1"),
        ([0], None, None, r"a device for each of 2 ops, not \(1, 1\)"),
        ([[0, 0]], None, None, r"a device for each of 2 ops, not \(1, 1, 2\)"),
        ([0.0, 0.0], None, None, "must hold device indices, not float64"),
    ],
)
def test_misuse_is_answered(
    placement: list[Any], how: Semantics | None, priority: list[float] | None, message: str
) -> None:
    with pytest.raises((OptionError, PlacementError), match=message):
        simulate(LINE, placement, how, priority)
    with pytest.raises((OptionError, PlacementError), match=message):
        simulate_makespans(LINE, [placement], how, priority)


@pytest.mark.parametrize("priority", [[[0.0, 1.0]], [[0.0, 1.0], [np.nan, 1.0]], [[0.0], [1.0]]])
def test_ranks_of_several_placements_are_numbers_for_each_op_of_each(priority: list[list[float]]) -> None:
    with pytest.raises(OptionError, match="priorities of 2 placements must be 2 numbers for each of them"):
        simulate_makespans(LINE, [[0, 0], [1, 1]], None, priority)


def test_an_op_on_a_device_that_lacks_it_is_named() -> None:
    lacking = ScheduleProblem.from_arrays([[1.0, 1.0], [1.0, np.nan]], [])
    with pytest.raises(PlacementError, match="op 'op1' is on device 'd1', which does not support it"):
        simulate(lacking, [1, 1])
    for links in SIMULATED:
        assert simulate_makespans(lacking, [[0, 1], [1, 0]], Semantics(links=links)).tolist() == [np.inf, 1.0]
