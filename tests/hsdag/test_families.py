"""Families: every seed has one problem, of the sizes, devices and memory that are said."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.commands.sources import MAX_OPS, MIN_OPS, find_family, list_families, spread_placement
from hsdag.runtime.problem.problem_file import problem_from_json, problem_to_json
from hsdag.runtime.problem.schedule_problem import CostSource, ScheduleProblem
from hsdag.runtime.simulator.simulation import simulate

GENERATED = [family.name for family in list_families()]
TABLES = ("time_s", "output_bytes", "weight_bytes", "edge_src", "edge_dst", "edge_bytes", "memory_bytes",
          "link_latency_s", "link_bandwidth_bytes_per_s")  # fmt: skip


def same(one: ScheduleProblem, other: ScheduleProblem) -> bool:
    return one.name == other.name and all(np.array_equal(getattr(one, t), getattr(other, t)) for t in TABLES)


@pytest.mark.parametrize("name", GENERATED)
def test_a_seed_has_one_problem_and_another_seed_another(name: str) -> None:
    family = find_family(name)
    assert same(family.problem(7), find_family(name).problem(7))
    assert not same(family.problem(7), family.problem(8))


@pytest.mark.parametrize("name", GENERATED)
def test_problems_have_so_many_ops_and_devices_and_can_be_written_to_a_file(name: str) -> None:
    problems = [find_family(name).problem(seed) for seed in range(12)]
    assert all(MIN_OPS <= problem.num_ops <= MAX_OPS for problem in problems)
    assert all(2 <= problem.num_devices <= 8 for problem in problems)
    assert len({(problem.num_ops, problem.num_devices) for problem in problems}) > 8
    first = problems[0]
    assert first.source is CostSource.ANALYTIC
    assert same(problem_from_json(problem_to_json(first), "file"), first)


def test_limited_memory_holds_a_problem_on_all_devices_but_not_on_one() -> None:
    problems = [find_family("all").problem(seed) for seed in range(48)]
    limited = [problem for problem in problems if np.isfinite(problem.memory_bytes).all()]
    assert 10 < len(limited) < 38
    assert all(np.isinf(problem.memory_bytes).all() for problem in problems if problem not in limited)
    for problem in limited:
        spread = simulate(problem, spread_placement(problem)).peak_memory_bytes
        assert np.all(spread <= problem.memory_bytes)
        for d in range(problem.num_devices):
            alone = simulate(problem, np.full(problem.num_ops, d)).peak_memory_bytes
            assert alone[d] > problem.memory_bytes[d]


def test_a_compound_takes_its_members_in_turn() -> None:
    compound = find_family("nmt,chain")
    assert same(compound.problem(6), find_family("nmt").problem(3))
    assert same(compound.problem(7), find_family("chain").problem(3))
    assert [find_family("all").problem(i).name for i in range(8)] == [*(f"{name} 0" for name in GENERATED),
                                                                     f"{GENERATED[0]} 1"]  # fmt: skip
