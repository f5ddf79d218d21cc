"""Batches solved exactly: CP-SAT, the MILP and brute force agree, and what they answer is a schedule."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.batching.checking import makespan_s
from hsdag.batching.incumbent import in_order
from hsdag.placers.exact.batches import BatchedProblem, BatchSchedule, BatchTable
from hsdag.placers.exact.cpsat_model import IntervalModel
from hsdag.placers.exact.formulation import Formulation, MemoryRule
from hsdag.placers.exact.highs import solve_linear
from hsdag.placers.exact.milp_model import BatchedModel
from hsdag.placers.exact.solving import solve_model
from hsdag.placers.incumbent import Limits, Status
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from tests.hsdag.batching.batched_reference import BatchedBruteForce, random_batched

SHAPES = [(3, 2, 2), (2, 2, 3), (2, 3, 3), (4, 2, 2)]


def by_cpsat(problem: BatchedProblem) -> tuple[float, BatchSchedule]:
    model = IntervalModel.of_batches(problem, problem.horizon_s)
    answer = solve_model(model, Limits(600.0, 1))
    assert answer.ending is Status.OPTIMAL
    assert answer.solution is not None
    found = answer.solution
    return answer.bound * model.ticks.length_s, in_order(problem, found.device, found.start_s)


@pytest.mark.parametrize("seed", range(24))
def test_cpsat_proves_the_optimum_of_brute_force_and_has_a_schedule_of_it(seed: int) -> None:
    problem = random_batched(seed, *SHAPES[seed % len(SHAPES)])
    bound_s, schedule = by_cpsat(problem)
    assert bound_s == pytest.approx(BatchedBruteForce(problem).makespan_s(), rel=1e-6)
    assert makespan_s(problem, schedule) == pytest.approx(bound_s, rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_the_milp_has_the_optimum_of_brute_force(seed: int) -> None:
    problem = random_batched(seed, *SHAPES[seed % len(SHAPES)])
    model = BatchedModel(Formulation(problem.costs, MemoryRule.RESERVED), problem.horizon_s, problem.batches)
    answer = solve_linear(model.linear, Limits(600.0, 1))
    assert answer.solution is not None
    optimum_s = BatchedBruteForce(problem).makespan_s()
    assert answer.solution[model.makespan] * model.unit_s == pytest.approx(optimum_s, rel=1e-5, abs=1e-5)


def test_devices_that_differ_in_the_times_of_batches_alone_are_not_exchanged() -> None:
    costs = ScheduleProblem.from_arrays([[1.0, 1.0], [1.0, 1.0]], [])
    problem = BatchedProblem.of(costs, BatchTable(1, (1,), np.array([[[5.0], [1.0]]] * 2)))
    model = BatchedModel(Formulation(costs, MemoryRule.RESERVED), problem.horizon_s, problem.batches)
    answer = solve_linear(model.linear, Limits(600.0, 1))
    assert answer.solution is not None
    assert answer.solution[model.makespan] * model.unit_s == pytest.approx(2.0)
    assert by_cpsat(problem)[0] == pytest.approx(2.0)
