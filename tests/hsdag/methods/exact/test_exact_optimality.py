"""CP-SAT, the MILP and MILP-SPLIT against brute force over all placements and orders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsdag.methods.exact.assignment import AssignmentModel
from hsdag.methods.exact.cpsat import IntervalModel
from hsdag.methods.exact.formulation import Formulation, generous_horizon_s
from hsdag.methods.exact.milp import MilpModel
from hsdag.methods.exact.solving import Ticks, solve_model
from hsdag.methods.incumbent import Limits, Status
from hsdag.methods.registry import make_placer
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate_makespans
from hsdag.runtime.simulator.values import period_s, simulated_values
from hsdag.search.options import SolveOptions
from hsdag.search.solve import solve
from tests.hsdag.methods.exact.exact_reference import every_placement, least_makespan_s, random_problem
from tests.hsdag.methods.repeated.chains import chain

LIMITS = Limits(600.0, 1)


def cpsat_s(problem: ScheduleProblem) -> tuple[float, float]:
    """Value and bound in seconds."""
    model = IntervalModel(Formulation(problem), generous_horizon_s(problem))
    answer = solve_model(model, LIMITS)
    assert answer.value is not None
    return answer.value * model.ticks.length_s, answer.bound * model.ticks.length_s


def milp_s(problem: ScheduleProblem) -> float:
    model = MilpModel(Formulation(problem), generous_horizon_s(problem))
    answer = model.linear.solved(LIMITS)
    assert answer.solution is not None
    return float(answer.solution[model.makespan]) * model.unit_s


NUM_PROBLEMS, AT_A_TIME = 40, 10


def small_problem(seed: int, most_ops: int = 7) -> ScheduleProblem:
    """Up to ``most_ops`` ops and three devices."""
    rng = np.random.default_rng(seed + 1000)
    return random_problem(seed, int(rng.integers(2, most_ops + 1)), int(rng.integers(1, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_PROBLEMS))
def test_cpsat_equals_brute_force(seed: int) -> None:
    problem = small_problem(seed)
    best_s = least_makespan_s(problem)
    value_s, bound_s = cpsat_s(problem)
    assert value_s == pytest.approx(best_s, rel=1e-6, abs=1e-6)
    assert bound_s <= best_s * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUM_PROBLEMS, AT_A_TIME))
def test_the_milp_equals_brute_force(first: int) -> None:
    problems = [small_problem(seed) for seed in range(first, first + AT_A_TIME)]
    found_s = [milp_s(problem) for problem in problems]
    best_s = [least_makespan_s(problem) for problem in problems]
    assert found_s == pytest.approx(best_s, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["cpsat", "milp", "milp-split"])
def test_no_answer_is_below_the_optimum_and_no_bound_above_it(seed: int, method: str) -> None:
    problem = small_problem(seed, 6)
    best_s = least_makespan_s(problem)
    placer = make_placer(method)
    solution = solve(problem, placer, SolveOptions(method, budget_s=600.0))
    assert solution.value is not None
    assert solution.value >= best_s * (1 - 1e-9)
    assert solution.lower_bound <= best_s * (1 + 1e-9)


def test_single_channel_modules_are_solved_to_the_optimum_of_all() -> None:
    found = solve(chain([1.0] * 3), make_placer("milp-split"), SolveOptions("milp-split", budget_s=600.0))
    assert found.value == pytest.approx(1.2 + 3 * 12.5)  # one of two branches of 9 is 0.5 away, and so is what follows
    assert found.lower_bound == pytest.approx(found.value, rel=1e-6)


@pytest.mark.parametrize(
    ("execution", "links"),
    [(e, k) for e in Execution for k in LinkSharing if (e, k) != (Execution.SEQUENTIAL, LinkSharing.BLOCKING)],
)
def test_assignments_equal_brute_force(links: LinkSharing, execution: Execution) -> None:
    """All times of these problems are whole multiples of a sixth of a second, so that ticks round nothing."""
    semantics, ticks = Semantics(execution, links=links), Ticks(1 / 6)
    objective = LATENCY if execution is Execution.SEQUENTIAL else THROUGHPUT
    judge = simulate_makespans if execution is Execution.SEQUENTIAL else period_s
    for seed in range(15):
        problem = small_problem(seed, 6)
        launch_s = np.array([0.0, 0.5, 1.0])[: problem.num_devices]
        problem = replace(problem, launch_s=launch_s, transfer_overhead_s=0.5)
        model = AssignmentModel(Formulation(problem), problem_of(problem, objective, semantics), ticks, 2**20)
        answer = solve_model(model, LIMITS)
        assert answer.solution is not None
        found_s = judge(problem, answer.solution[None], semantics)[0]
        assert found_s == pytest.approx(judge(problem, every_placement(problem), semantics).min(), rel=1e-12)
        assert ticks.seconds(answer.value or 0) == pytest.approx(found_s, rel=1e-12)


@pytest.mark.parametrize(
    ("objective", "execution"),
    [(LATENCY, Execution.SEQUENTIAL), (THROUGHPUT, Execution.SEQUENTIAL), (THROUGHPUT, Execution.WORK_CONSERVING)],
)
def test_without_an_order_the_placer_proves_the_best_placement(objective: Objective, execution: Execution) -> None:
    problem, semantics = small_problem(4, 6), Semantics(execution)
    options = SolveOptions("cpsat", objective, semantics=semantics, budget_s=600.0)
    solution = solve(problem, options.placer(), options)
    every = every_placement(problem)
    every = every[problem.supported[np.arange(problem.num_ops), every].all(axis=1)]
    assert solution.status is Status.OPTIMAL
    assert solution.value == pytest.approx(simulated_values(objective, problem, every, semantics).min())


def test_an_assignment_pays_once_for_a_result_at_the_largest_size_that_is_read() -> None:
    problem = ScheduleProblem.from_arrays(
        [[1.0, np.nan], [np.nan, 1.0], [np.nan, 1.0]], [(0, 1), (0, 2)], edge_bytes=[2, 6],
        link_bandwidth_bytes_per_s=1.0,
    )  # fmt: skip
    units = problem_of(problem, LATENCY, Semantics(Execution.SEQUENTIAL))
    assert solve_model(AssignmentModel(Formulation(problem), units, Ticks(1.0), 100), LIMITS).value == 3 + 6


def test_breaking_symmetry_keeps_the_optimum() -> None:
    rng = np.random.default_rng(7)
    time_s = np.repeat(rng.integers(1, 9, (6, 1)).astype(float), 3, axis=1)
    problem = ScheduleProblem.from_arrays(time_s, [(0, 1), (0, 2), (3, 4)], output_bytes=1.0, link_latency_s=1.0)
    assert cpsat_s(problem)[0] == pytest.approx(least_makespan_s(problem))
