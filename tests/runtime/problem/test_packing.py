"""Packing: weights are distributed over memories wherever they can be, and a result held for no time needs no room."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.runtime.problem.packing import Packing, pack_weights
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(5, 20), st.integers(5, 20))
@settings(max_examples=50)
def test_weights_are_packed_exactly_where_they_can_be(weights: list[int], first: int, second: int) -> None:
    n = len(weights)
    problem = ScheduleProblem.from_arrays(np.ones((n, 2)), [], weight_bytes=weights, memory_bytes=[first, second])
    loads = [np.bincount(p, weights, 2) for p in itertools.product(range(2), repeat=n)]
    fits = any(load[0] <= first and load[1] <= second for load in loads)
    packing = pack_weights(problem, problem_of(problem))
    assert packing.status is (Packing.FOUND if fits else Packing.IMPOSSIBLE)
    if packing.placement is not None:
        units = problem_of(problem)
        assert np.all(np.bincount(units.expand(packing.placement), weights, 2) <= [first, second])


def test_without_time_weights_are_packed_only_where_that_is_at_once_clear() -> None:
    tight = ScheduleProblem.from_arrays([[1.0, 2.0]] * 3, [], weight_bytes=[6, 5, 4], memory_bytes=10)
    assert pack_weights(tight, problem_of(tight), 0.0).status is Packing.UNKNOWN
    assert pack_weights(tight, problem_of(tight)).status is Packing.FOUND
    wide = replace(tight, memory_bytes=np.array([15.0, 15.0]))
    assert pack_weights(wide, problem_of(wide), 0.0).status is Packing.FOUND


def test_a_result_that_is_held_for_no_time_needs_no_room() -> None:
    problem = ScheduleProblem.from_arrays(
        [[3.0, 0.0], [3.0, 6.0]], [(0, 1)], output_bytes=[3, 4], edge_bytes=[0], weight_bytes=[4, 0], memory_bytes=6.6
    )
    assert (simulate(problem, [1, 0]).peak_memory_bytes <= problem.memory_bytes).all()
    assert pack_weights(problem, problem_of(problem)).status is Packing.FOUND
