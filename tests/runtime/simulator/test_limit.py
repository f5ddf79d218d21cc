"""A limit ends a simulated run early where it is exceeded, and changes nothing where it is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.ir.graph.computation_graph import IntArray
from hsdag.runtime.problem.semantics import Execution, Links, Semantics
from hsdag.runtime.simulator.machine import BY_RANK, SEQUENTIAL, Machine, machine_for
from hsdag.runtime.simulator.simulation import run_many, simulate
from tests.runtime.simulator.reference_simulator import SIMULATED, random_case

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
