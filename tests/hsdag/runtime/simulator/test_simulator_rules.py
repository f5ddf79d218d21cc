"""The rules of the simulator one at a time, on problems small enough to schedule by hand."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.ir.errors import OptionError, PlacementError
from hsdag.ir.kernels import INTERPRETED_VARIABLE
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Order, Semantics
from hsdag.runtime.simulator.simulation import _run_many, simulate, simulate_makespans
from hsdag.runtime.simulator.values import period_s
from tests.hsdag.runtime.simulator import reference_simulator

SIMULATED = [links for links in Links if links is not Links.BLOCKING]
FORK = ScheduleProblem.from_arrays(np.ones((3, 3)), [(0, 1), (0, 2)], output_bytes=4.0,
                                   link_latency_s=[[0, 1, 3], [0, 0, 0], [0, 0, 0]],
                                   link_bandwidth_bytes_per_s=4.0)  # fmt: skip


@pytest.mark.parametrize(
    ("links", "start_s", "num"), [("independent", [0, 3, 5], 2), ("egress", [0, 5, 5], 1), ("channel", [0, 3, 5], 2)]
)
def test_a_result_for_two_devices_is_sent_as_the_links_say(links: str, start_s: list[float], num: int) -> None:
    run = simulate(FORK, [0, 1, 2], Semantics(links=Links(links)))  # 2 s to device 1, 4 s to device 2
    assert run.start_s.tolist() == start_s
    assert (run.makespan_s, run.num_transfers, run.transfer_bytes) == (6.0, num, 4.0 * num)


@pytest.mark.parametrize("links", [Links.EGRESS, Links.CHANNEL])
def test_a_bus_takes_results_that_became_available_together_by_op_index(links: Links) -> None:
    times = [[1, 1], [0, 1], [0, 1], [1, 1], [1, 1], [1, 1]]
    p = ScheduleProblem.from_arrays(
        times, [(0, 3), (1, 4), (2, 5)], link_latency_s=5.0, order=np.array([0, 2, 1, 3, 5, 4])
    )
    run = simulate(p, [0, 0, 0, 1, 1, 1], Semantics(links=links), ranks=[0, 2, 1, 3, 4, 5])  # op 2 runs before op 1
    assert run.start_s[3:].tolist() == [6.0, 11.0, 16.0]


def test_busy_seconds_are_those_of_ops_alone() -> None:
    p = ScheduleProblem.from_arrays([[1.0, 5.0], [2.0, 7.0]], [(0, 1)], link_latency_s=3.0, op_overhead_s=1.0)
    assert simulate(p, [0, 1]).busy_s.tolist() == [1.0, 7.0]


TRIANGLE = ScheduleProblem.from_arrays(np.ones((3, 3)), [(0, 1), (0, 2), (1, 2)], output_bytes=4.0,
                                       link_bandwidth_bytes_per_s=[[1, 2, 1], [1, 1, 4], [1, 1, 1]],
                                       op_overhead_s=0.25, transfer_overhead_s=0.5)  # fmt: skip
"""Transfers 0 -> 1 of 2 s, 0 -> 2 of 4 s and 1 -> 2 of 1 s."""


@pytest.mark.parametrize(("links", "period"), [("independent", 1.25), ("egress", 4.5), ("channel", 4.5),
                                               ("blocking", 8.25)])  # fmt: skip
def test_period_of_a_triangle(links: str, period: float) -> None:
    assert period_s(TRIANGLE, [[0, 1, 2]], Semantics(links=Links(links))).tolist() == [period]


def test_period_is_infinite_where_an_op_is_not_supported() -> None:
    p = ScheduleProblem.from_arrays([[1.0, np.nan]], [])
    assert period_s(p, [[0], [1], [0]]).tolist() == [1.0, np.inf, 1.0]


def test_blocking_links_are_for_throughput_alone() -> None:
    how = Semantics(links=Links.BLOCKING)
    with pytest.raises(OptionError, match="'blocking' are for the throughput objective only"):
        simulate(FORK, [0, 1, 2], how)
    with pytest.raises(OptionError, match="'blocking' are for the throughput objective only"):
        simulate_makespans(FORK, [[0, 1, 2]], how)


def test_unsupported_ops_are_infinite_in_a_batch_and_an_error_alone() -> None:
    p = ScheduleProblem.from_arrays([[1.0, np.nan]], [])
    for links in SIMULATED:
        assert simulate_makespans(p, [[0], [1], [0]], Semantics(links=links)).tolist() == [1.0, np.inf, 1.0]
    with pytest.raises(PlacementError, match="op 'op0' is on device 'd1', which does not support it"):
        simulate(p, [1])


@pytest.mark.parametrize("contended", [False, True])
@given(st.integers(0, 10**6), st.sampled_from(Order), st.sampled_from(SIMULATED), st.sampled_from(Execution))
@settings(max_examples=8)
def test_the_interpreter_simulates_what_compiled_kernels_do(
    contended: bool, seed: int, order: Order, links: Links, execution: Execution
) -> None:
    p, placement, priority = reference_simulator.random_case(seed, 8, 3, 0.5, 0.25, contended=contended)
    how = Semantics(execution, order, links)
    with pytest.MonkeyPatch.context() as patch:
        runs = []
        for steps in ("0", "inf"):
            patch.setenv(INTERPRETED_VARIABLE, steps)
            runs.append(simulate(p, placement, how, priority if order is Order.PRIORITY else None))
    for field in ("end_s", "peak_memory_bytes"):
        assert getattr(runs[0], field).tolist() == getattr(runs[1], field).tolist()


def test_placements_that_are_read_only_are_simulated_by_what_is_compiled_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(INTERPRETED_VARIABLE, "0")
    p, placement = ScheduleProblem.from_arrays(np.ones((2, 2)), [(0, 1)]), np.zeros(2, dtype=np.int64)
    makespan_s, compiled = simulate(p, placement).makespan_s, cast("Any", _run_many)
    known = len(compiled.signatures)
    placement.setflags(write=False)
    assert simulate(p, placement).makespan_s == makespan_s
    assert len(compiled.signatures) == known


def test_misuse_is_answered() -> None:
    p = ScheduleProblem.from_arrays([[1.0]], [])
    with pytest.raises(OptionError, match="needs priorities"):
        simulate(p, [0], Semantics(order=Order.PRIORITY))
    with pytest.raises(PlacementError, match="names device 3"):
        simulate(p, [3])
    with pytest.raises(PlacementError, match="a device for each of 1 ops"):
        simulate(p, [0, 0])
