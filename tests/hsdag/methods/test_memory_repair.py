"""Plans that exceed a memory: which ops leave the full device, and what moves cost."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.methods.memory_repair import move_costs_s, repaired
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.runtime.simulator.simulation import simulate_makespans
from tests.hsdag.methods.cuts.test_mincut import drawn


@given(st.integers(0, 2**32))
def test_single_moves_cost_the_difference_where_results_have_one_reader_and_there_are_no_launches(seed: int) -> None:
    problem = drawn(seed, 6, 3, launches=False)
    _, one = np.unique(problem.edge_src, return_index=True)
    edges = {name: getattr(problem, name)[one] for name in ("edge_src", "edge_dst", "edge_bytes", "edge_port")}
    problem = replace(problem, **edges)
    device = np.array([np.flatnonzero(row)[-1] for row in problem.supported])
    for v, d in itertools.product(range(6), range(3)):
        moved = np.where(np.arange(6) == v, d, device)
        before_s, after_s = simulate_makespans(problem, np.stack([device, moved]), Semantics(Execution.SEQUENTIAL))
        assert move_costs_s(problem, device)[v, d] == pytest.approx(after_s - before_s, abs=1e-12)


@pytest.mark.parametrize(("room", "expected"), [(6.0, [0] * 5), (5.0, [1, 0, 0, 0, 0]), (2.0, [1, 0, 1, 0, 0])])
def test_ops_that_cost_least_for_each_byte_leave_a_full_device(room: float, expected: list[int]) -> None:
    times = [[1.0, 3.0], [1.0, 5.0], [1.0, 2.0], [1.0, 9.0], [1.0, 0.5]]
    weights = [3.0, 1.0, 1.0, 1.0, 0.0]  # what holds nothing makes no room
    problem = ScheduleProblem.from_arrays(times, [], weight_bytes=weights, memory_bytes=[room, 9.0])
    assert repaired(problem, np.zeros(5, dtype=np.int64), Semantics()).tolist() == expected


def test_what_fits_nowhere_stays_as_it_is() -> None:
    problem = ScheduleProblem.from_arrays([[1.0, 1.0]] * 4, [], weight_bytes=1.0, memory_bytes=1.0)
    assert repaired(problem, np.zeros(4, dtype=np.int64), Semantics()).tolist() == [0, 0, 0, 0]
