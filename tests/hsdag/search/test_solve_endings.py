"""How searches end: what exact methods have proven is said, whatever the order, the memory and the ticks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from hsdag.base.errors import FileFormatError
from hsdag.methods.exact.base import ExactSearch
from hsdag.methods.exact.cpsat import CpSatPlacer
from hsdag.methods.exact.formulation import Formulation, MemoryRule
from hsdag.methods.incumbent import Incumbent, Limits, Status
from hsdag.methods.lists.baselines import BestDevicePlacer
from hsdag.methods.registry import make_placer
from hsdag.runtime.objectives import LATENCY, THROUGHPUT, Objective
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.plan import Plan
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Order, Semantics
from hsdag.runtime.problem.units import problem_of
from hsdag.runtime.simulator.simulation import simulate
from hsdag.search.evaluators.base import Evaluator, Score
from hsdag.search.evaluators.schedule import ScheduleEvaluator
from hsdag.search.options import SolveOptions
from hsdag.search.simulate import simulate_placement
from hsdag.search.solution import SolveResult, relative_gap
from hsdag.search.solve import solve
from tests.hsdag.methods.exact.exact_reference import random_problem

BY_PRIORITY = Semantics(order=Order.PRIORITY)
SEQUENTIAL = Semantics(Execution.SEQUENTIAL)


def solved(
    problem: ScheduleProblem,
    method: str,
    semantics: Semantics | None = None,
    objective: Objective = LATENCY,
    budget_s: float = 600.0,
) -> SolveResult:
    options = SolveOptions(method, objective, budget_s, semantics=semantics or Semantics())
    return solve(problem, options.placer(), options)


def chain(num_ops: int, memory_bytes: float, weight_bytes: float = 1.0) -> ScheduleProblem:
    """Each op holds its result of 3 bytes and that of the op before, which is 6 bytes on any device, and its weight."""
    times, edges = [[1.0, 2.0]] * num_ops, [(v, v + 1) for v in range(num_ops - 1)]
    return ScheduleProblem.from_arrays(
        times,
        edges,
        output_bytes=3.0,
        weight_bytes=weight_bytes,
        memory_bytes=[memory_bytes + 1, memory_bytes],
        link_latency_s=0.1,
    )


@pytest.mark.usefixtures("both_ways")
def test_ranks_of_an_answer_without_order_fit_into_memory_as_the_answer_does() -> None:
    problem = ScheduleProblem.from_arrays(
        np.ones((6, 2)), [(0, 3), (1, 4), (2, 5)], output_bytes=[4, 4, 4, 1, 1, 1], memory_bytes=14, link_latency_s=0.5
    )
    solution = solved(problem, "cpsat", BY_PRIORITY, THROUGHPUT)
    assert solution.plan is not None
    assert simulate_placement(problem, solution.plan, BY_PRIORITY, THROUGHPUT).over_memory == ()


ALL_RESULTS, INPUTS = chain(7, 6.5), chain(13, 4.5, 0.0)
"""No device holds all results, or even an op with its inputs."""


@pytest.mark.parametrize(
    ("method", "problem"),
    [("cpsat", ALL_RESULTS), ("milp", ALL_RESULTS), ("cpsat", INPUTS), ("milp", INPUTS), ("milp-split", INPUTS)],
)
def test_a_proof_that_nothing_fits_is_told(method: str, problem: ScheduleProblem) -> None:
    assert solved(problem, method).status is Status.INFEASIBLE


def tight(seed: int) -> ScheduleProblem:
    """Four ops whose weights and results of any number of bytes, not whole, hardly fit on two devices."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, 4, real=True, lacks=0.0, link_latency_s=0.3, memory_bytes=rng.uniform(5, 9, 2))
    return replace(problem, weight_bytes=rng.uniform(0, 3, 4), output_bytes=rng.uniform(1, 4, 4))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["cpsat", "milp"])
@pytest.mark.parametrize("semantics", [Semantics(), SEQUENTIAL], ids=["work-conserving", "sequential"])
def test_what_fits_in_any_order_is_never_proven_infeasible(method: str, semantics: Semantics) -> None:
    claims = 0
    for seed in range(8):
        problem = tight(seed)
        units, evaluator = problem_of(problem, LATENCY, semantics), ScheduleEvaluator(problem, semantics)
        if make_placer(method).search(units, evaluator, Limits(seconds=10.0)).status is Status.INFEASIBLE:
            claims += 1
            ordered = replace(semantics, order=Order.PRIORITY)
            for device, priority in itertools.product(
                itertools.product(range(2), repeat=4), itertools.permutations(range(4))
            ):
                peak = simulate(problem, device, ordered, priority).peak_memory_bytes
                assert (peak > problem.memory_bytes).any()
    assert 0 < claims < 8


class Fails(Evaluator):
    """Judges nothing to be legal."""

    def evaluate(self, plans: Sequence[Plan]) -> list[Score]:
        return [Score(failure="fails")] * len(plans)


@pytest.mark.parametrize("objective", [LATENCY, THROUGHPUT])
def test_units_of_several_ops_prove_nothing_infeasible(objective: Objective) -> None:
    """The set counts all its results at once, 12 bytes, of which its ops need 8 at a time."""
    problem = ScheduleProblem.from_arrays(np.ones((3, 2)), [(0, 1), (1, 2)], output_bytes=4.0, memory_bytes=9.0)
    tied = replace(problem, labels=replace(problem.labels, colocate=("s", "s", "s")))
    result = CpSatPlacer().search(problem_of(tied, objective), Fails())
    assert result.status is Status.FEASIBLE
    assert "found no placement" in result.note


def test_a_bound_beyond_every_schedule_is_no_bound_and_only_infinity_a_proof() -> None:
    problem = chain(3, 6.5)
    search = ExactSearch(Incumbent(problem_of(problem), Fails(), Limits()), "CP-SAT")
    for bound_s, rule in ((1e30, MemoryRule.RUNNING), (np.inf, MemoryRule.RESERVED), (2.0, MemoryRule.RUNNING)):
        search.begin(Formulation(problem, rule), 1.0)
        search.prove(bound_s)
        assert not search.is_proven_infeasible
    assert search.incumbent.lower_bound == Bound(2.0, "CP-SAT")
    search.begin(Formulation(problem, MemoryRule.RUNNING), 1.0)
    search.prove(np.inf)
    assert search.is_proven_infeasible
    assert search.incumbent.lower_bound == Bound(2.0, "CP-SAT")


def irregular(seed: int) -> ScheduleProblem:
    """Times of 16 digits, which no tick divides."""
    rng = np.random.default_rng(seed)
    edges = [(0, 4), (0, 6), (2, 5), (2, 6), (3, 4)]
    return ScheduleProblem.from_arrays(rng.uniform(1e-3, 3e-3, (7, 2)), edges, link_latency_s=1e-3)


@pytest.mark.parametrize(("method", "most"), [("cpsat", 2 * 7 / 2**29), ("milp", 1.1e-6)])
def test_an_optimum_that_the_solver_proved_is_optimal_for_any_times(method: str, most: float) -> None:
    solution = solved(irregular(1), method)
    assert solution.status is Status.OPTIMAL
    assert solution.gap is not None
    assert 0 < solution.gap < most


def test_a_small_gap_of_a_method_without_proof_is_not_optimal() -> None:
    """A single device takes a share of 5e-7 more than both together."""
    problem = ScheduleProblem.from_arrays([[1.0, 2.0], [1.0 + 1e-6, 1.0]], [(0, 1)])
    alone = solved(problem, "best-device")
    assert (alone.status, alone.value) == (Status.FEASIBLE, 2.0 + 1e-6)
    assert solved(problem, "cpsat").value == 2.0


def test_ops_that_must_share_a_device_and_cannot_are_named_by_their_set() -> None:
    problem = ScheduleProblem.from_arrays([[1.0, 1.0], [1.0, np.nan], [np.nan, 1.0]], [])
    tied = replace(problem, labels=replace(problem.labels, colocate=("", "twins", "twins")))
    with pytest.raises(FileFormatError, match="no device supports all ops of the co-location set 'twins'"):
        solve(tied, BestDevicePlacer(), SolveOptions("best-device"))


def test_a_gap_that_is_rounding_is_none() -> None:
    """The bound adds up the same times in another order."""
    problem = ScheduleProblem.from_arrays([[1.9], [0.6], [0.2]], [], launch_s=[0.1], op_overhead_s=0.1)
    solution = solved(problem, "heft")
    assert solution.value is not None
    assert 0 < solution.value - solution.lower_bound < 1e-12
    assert (solution.gap, solution.status) == (0.0, Status.OPTIMAL)
    assert [relative_gap(*each) for each in ((4.0, 3.0), (0.0, 0.0), (1.0, 1.0 - 1e-10))] == [0.25, 0.0, 0.0]


@pytest.mark.parametrize("method", ["cpsat", "milp"])
@pytest.mark.parametrize("objective", [LATENCY, THROUGHPUT])
def test_an_optimum_that_leaves_out_how_devices_slow_each_other_down_is_not_called_optimal(
    method: str, objective: Objective
) -> None:
    problem = ScheduleProblem.from_arrays(np.full((2, 2), 2.0), [], slowdown=np.full((2, 2), 1.9))
    found = solved(problem, method, objective=objective)
    assert found.value == pytest.approx(3.8)
    assert found.lower_bound == pytest.approx(2.0)
    assert found.status is Status.FEASIBLE
