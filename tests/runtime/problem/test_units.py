"""Placement units of a problem: co-location, costs of units, orders of ops."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.features import feature_matrix
from hsdag.runtime.problem.plan import op_ranks
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Semantics
from hsdag.runtime.problem.units import graph_of_problem, problem_of
from hsdag.runtime.simulator.simulation import simulate_makespans
from tests.hsdag.methods.exact.exact_reference import every_placement, random_problem


def random_units(seed: int, *, colocated: bool = False) -> ScheduleProblem:
    rng, n = np.random.default_rng(seed), 7
    sets = [str(rng.choice(["", "", "x", "y"])) if colocated else "" for _ in range(n)]
    labels = OpLabels(("Op",) * n, tuple(sets), ("",) * n, ("",) * n, ("",) * n)
    tables: dict[str, Any] = {"weight_bytes": rng.random(n), "link_latency_s": 0.1, "launch_s": 0.2, "labels": labels}
    return random_problem(seed, n, real=True, shuffled=True, lacks=0.0, **tables)


@given(st.integers(0, 2**32))
def test_co_located_ops_are_one_unit_and_no_placement_is_lost(seed: int) -> None:
    problem = random_units(seed, colocated=True)
    units = problem_of(problem)
    names = [name or str(v) for v, name in enumerate(problem.labels.colocate)]
    assert units.costs is not None
    expanded = {tuple(units.expand(p).tolist()) for p in every_placement(units.costs)}
    together = {
        p
        for p in itertools.product(range(2), repeat=7)
        if all(p[u] == p[v] for u in range(7) for v in range(7) if names[u] == names[v])
    }
    assert expanded == together


@given(st.integers(0, 2**32), st.sampled_from(list(Execution)))
def test_the_costs_of_single_op_units_are_those_of_the_problem(seed: int, how: Execution) -> None:
    problem = random_units(seed)
    units = problem_of(problem)
    assert units.costs is not None
    placements, unit = every_placement(units.costs), units.units.partition.labels
    ranks = np.arange(7)  # of units: ties would go by index, which differs
    expected = simulate_makespans(problem, placements[:, unit], Semantics(how), ranks[unit])
    found = simulate_makespans(units.costs, placements, Semantics(how), ranks)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(st.integers(0, 2**32))
def test_the_costs_of_a_unit_are_what_its_ops_take_in_a_row(seed: int) -> None:
    problem = random_units(seed, colocated=True)
    units = problem_of(problem)
    assert units.costs is not None
    for d in range(2):
        alone = np.full((1, units.num_units), d)
        whole = simulate_makespans(problem, np.full((1, 7), d))
        np.testing.assert_allclose(simulate_makespans(units.costs, alone), whole, rtol=1e-12)
    np.testing.assert_allclose(units.costs.weight_bytes.sum(), problem.weight_bytes.sum())


def test_a_unit_runs_where_all_its_ops_do() -> None:
    labels = OpLabels(("A", "B", "C"), ("s", "", "s"), ("",) * 3, ("",) * 3, ("",) * 3)
    problem = ScheduleProblem.from_arrays([[1.0, 2.0], [3.0, 4.0], [np.nan, 5.0]], [(0, 1), (1, 2)], labels=labels)
    units = problem_of(problem)
    assert units.num_units == 2
    together = units.units.partition.labels[0]
    assert units.supported[together].tolist() == [False, True]
    assert units.costs is not None
    assert units.costs.time_s[together, 1] == 2 + 5


def test_features_of_a_problem_file_are_not_blank() -> None:
    problem = random_units(5)
    values = feature_matrix(problem_of(problem).units).values
    assert np.isfinite(values).all()
    assert np.ptp(values, axis=0).max() > 0
    np.testing.assert_allclose(graph_of_problem(problem).flops, problem.time_s.mean(axis=1))


def test_ranks_of_units_become_ranks_of_ops_in_topological_order() -> None:
    problem = ScheduleProblem.from_arrays(np.ones((4, 1)), [(3, 0), (0, 1)])
    ranks = op_ranks(problem, np.array([1, 0, 0, 1]), np.array([7, 2]))
    assert np.argsort(ranks).tolist() == [3, 0, 2, 1]


@pytest.mark.parametrize("size", [1.5, 1e23])
def test_sizes_that_are_no_whole_numbers_are_taken(size: float) -> None:
    problem = ScheduleProblem.from_arrays([[1.0], [1.0]], [(0, 1)], output_bytes=size, weight_bytes=size)
    assert graph_of_problem(problem).output_bytes.min() > 0
