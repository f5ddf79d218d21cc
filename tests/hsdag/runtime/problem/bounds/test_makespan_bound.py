"""Bounds: on loads, paths and makespans, against what the best schedules take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hsdag.runtime.objectives import LATENCY, THROUGHPUT, find_objective
from hsdag.runtime.problem.bounds.makespan import PAIRS_EFFORT, PATHS, WINDOWS, lower_bound, makespan_bound
from hsdag.runtime.problem.bounds.relaxation import Relaxation
from hsdag.runtime.problem.bounds.simple import (
    CRITICAL_PATH,
    LOAD,
    LONGEST_OP,
    Bound,
    period_bound,
)
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, LinkSharing, Semantics
from hsdag.runtime.simulator.simulation import simulate_makespans
from hsdag.runtime.simulator.values import period_s
from tests.hsdag.methods.exact.exact_reference import every_placement, least_makespan_s, random_problem

ROUNDING = 1 + 1e-12


def drawn(seed: int, num_ops: int, num_devices: int) -> ScheduleProblem:
    """Unlike devices, or in a third of the problems equal ones; links of any speed; in a third overheads."""
    rng = np.random.default_rng(seed)
    problem = random_problem(seed, num_ops, num_devices, density=float(rng.choice([0.2, 0.35, 0.6])))
    problem = replace(problem, link_latency_s=problem.link_latency_s * float(rng.integers(0, 5)))
    if rng.random() < 1 / 3:
        time_s = np.repeat(np.nanmax(problem.time_s, axis=1)[:, None], num_devices, 1)
        problem = replace(problem, time_s=time_s, link_latency_s=np.full((num_devices, num_devices), 4.0))
    return problem


def equal_devices(
    times: list[float], edges: list[tuple[int, int]], latency_s: float, num_devices: int = 2, op_overhead_s: float = 0.0
) -> ScheduleProblem:
    time_s = np.repeat(np.array(times)[:, None], num_devices, 1)
    return ScheduleProblem.from_arrays(time_s, edges, link_latency_s=latency_s, op_overhead_s=op_overhead_s)


@pytest.mark.parametrize("pairs_effort", [0.0, PAIRS_EFFORT])
@settings(max_examples=12)
@given(st.integers(0, 2**32), st.integers(1, 7), st.integers(1, 3))
@example(1636303251, 5, 2)  # with overheads
@example(3617008963, 5, 2)  # more time makes room for more windows
def test_no_schedule_beats_the_bound(pairs_effort: float, seed: int, num_ops: int, num_devices: int) -> None:
    problem = drawn(seed, num_ops, num_devices)
    assert makespan_bound(problem, pairs_effort).value <= least_makespan_s(problem) * ROUNDING


def test_the_bound_is_the_optimum_of_many_small_problems_and_near_it_for_the_rest() -> None:
    problems = [drawn(seed, 6, 2) for seed in range(40)]
    bounds = [makespan_bound(problem) for problem in problems]
    shares = np.array([bound.value for bound in bounds]) / [least_makespan_s(problem) for problem in problems]
    assert sum(shares > 1 - 1e-9) == 17
    assert shares.mean() == pytest.approx(0.950378, abs=1e-5)
    assert sum(bound.argument == WINDOWS for bound in bounds) == 13
    of_three = [makespan_bound(random_problem(seed, 14, 3, density=0.15)).value for seed in (1, 4, 6, 7, 8, 10, 14)]
    assert of_three == pytest.approx([10.0, 21.0, 25.0, 13.5, 20.5, 11.0, 22.0])


def test_large_problems_are_bounded_without_looking_between_all_ops() -> None:
    problem, value_s, _ = CASES["all that lies between two ops has to run between them"]
    assert makespan_bound(problem, pairs_effort=100.0).value == 10.5 < value_s


def test_in_large_problems_a_path_pays_for_the_join_before_an_op_and_for_the_fork_after_it() -> None:
    problem = equal_devices([4.0, 4.0, 1.0, 4.0, 4.0], [(0, 2), (1, 2), (2, 3), (2, 4)], 9.0)
    bound = makespan_bound(problem, pairs_effort=0.0)
    assert (bound.value, bound.argument) == (4 + 4 + 1 + 4 + 4, PATHS)


LAYERS = [(0, v) for v in (1, 2, 3, 4)] + [(v, 5) for v in (1, 2, 3, 4)]
LAYERS += [(5, v) for v in (6, 7, 8, 9)] + [(v, 10) for v in (6, 7, 8, 9)]
CASES = {
    "inputs that would arrive 9 s later run one after another": (
        equal_devices([1.0, 4.0, 4.0, 4.0, 1.0], [(1, 4), (2, 4), (3, 4)], 9.0, 3), 3 * 4 + 1, PATHS),
    "so do inputs with an input of their own": (
        equal_devices([1.0, 4, 4, 4, 1], [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)], 9.0, 3), 3 * 4 + 2, PATHS),
    "readers that would be reached too late run one after another": (
        equal_devices([1.0, 4.0, 4.0, 4.0], [(0, 1), (0, 2), (0, 3)], 9.0, 3), 1 + 3 * 4, PATHS),
    "one input comes from elsewhere where that is sooner": (
        equal_devices([4.0, 4.0, 4.0, 1.0], [(0, 3), (1, 3), (2, 3)], 5.0, 3), 4 + 5 + 1, PATHS),
    "overheads of a join are between its ops": (
        equal_devices([4.0, 4.0, 1.0], [(0, 2), (1, 2)], 9.0, op_overhead_s=0.5), 4 + 0.5 + 4 + 0.5 + 1, PATHS),
    "overheads of a fork are between its ops": (
        equal_devices([1.0, 4.0, 4.0], [(0, 1), (0, 2)], 9.0, op_overhead_s=0.5), 1 + 0.5 + 4 + 0.5 + 4, PATHS),
    "an op of one device and its reader of another pay for their transfer": (
        ScheduleProblem.from_arrays([[2.0, np.nan], [np.nan, 3.0]], [(0, 1)], link_latency_s=1.0, output_bytes=8.0,
                                    link_bandwidth_bytes_per_s=4.0), 2 + 1 + 8 / 4 + 3, PATHS),
    "all that lies between two ops has to run between them": (
        equal_devices([1.0, 2, 2, 2, 2, 1, 2, 2, 2, 2, 1], LAYERS, 0.0), 1 + 4 + 1 + 4 + 1, PATHS),
    "ops that must share a device do not fill two": (
        equal_devices([1.0, 1.0, 1.0, 2.0], [(1, 2), (0, 3), (2, 3)], 5.0), 5, WINDOWS),
    "nor do they in the midst of others": (
        equal_devices([3.0, 1.0, 1.0, 2.0, 2.0], [(0, 2), (0, 4), (1, 4), (3, 4)], 4.0), 8, WINDOWS),
    "on other devices the readers of one op wait for its result": (
        equal_devices([1.0] * 5, [(0, v) for v in (1, 2, 3, 4)], 1.0), 1 + (1 + 4) / 2, PATHS),
    "and the inputs of one op are sent from there": (
        equal_devices([1.0] * 5, [(v, 4) for v in range(4)], 1.0), (1 + 4) / 2 + 1, PATHS),
    "a chain is its own critical path": (equal_devices([3.0, 2.0, 4.0], [(0, 1), (1, 2)], 1.0), 9, CRITICAL_PATH),
    "independent ops share the devices": (equal_devices([2.0] * 6, [], 1.0, op_overhead_s=0.5), 7, LOAD),
}  # fmt: skip


@pytest.mark.parametrize("claim", CASES)
def test_a_bound_in_closed_form(claim: str) -> None:
    problem, value_s, argument = CASES[claim]
    assert makespan_bound(problem) == Bound(float(value_s), argument)


def test_loads_of_unlike_devices_are_weighed() -> None:
    """Three ops on the first device and one on the second take 3 s each; the best times alone would show 2 s."""
    problem = ScheduleProblem.from_arrays(np.tile([1.0, 3.0], (4, 1)), [])
    for bound in (makespan_bound(problem), period_bound(problem)):
        assert bound.argument == LOAD
        assert 2.999 <= bound.value <= 3 * ROUNDING


def test_devices_that_are_alike_in_all_are_one_kind_at_the_least_of_their_prices() -> None:
    times = [[1.0, 9.0, 1.0, 9.0], [2.0, 3.0, 2.0, 3.0]]
    relaxed = Relaxation.of(ScheduleProblem.from_arrays(times, [(0, 1)]))
    prices = relaxed.cheapest(np.array([0.4, 0.3, 0.1, 0.2]))
    assert dict(zip(relaxed.time_s[1].tolist(), prices.tolist(), strict=True)) == {1.0: 0.1, 9.0: 0.2}


@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from(list(LinkSharing)), st.sampled_from(list(Execution)))
def test_no_placement_beats_the_bound_of_a_period_or_of_a_latency_in_turn(
    seed: int, num_ops: int, links: LinkSharing, how: Execution
) -> None:
    problem = random_problem(seed, num_ops, launch_s=[seed % 3, 1.0], transfer_overhead_s=float(seed % 2))
    every = every_placement(problem)
    least_s = period_s(problem, every, Semantics(how, links=links)).min()
    assert lower_bound(THROUGHPUT, problem, how).value <= least_s * ROUNDING
    in_turn_s = simulate_makespans(problem, every, Semantics(Execution.SEQUENTIAL)).min()
    assert lower_bound(LATENCY, problem, Execution.SEQUENTIAL).value <= in_turn_s * ROUNDING


@pytest.mark.parametrize(
    ("objective", "execution", "value", "argument"),
    [
        ("energy", Execution.SEQUENTIAL, 1 * 3 + 2 * 2 + 4 * 2, "every op where it takes least energy"),
        ("memory", Execution.SEQUENTIAL, 9.0, "weights in equal shares"),
        ("latency", Execution.SEQUENTIAL, 1 + 2 + 4 + 0.5 + 2 * 0.25, "the best-case load and one launch"),
        ("latency", Execution.WORK_CONSERVING, 1 + 2 + 4, CRITICAL_PATH),
        ("throughput", Execution.WORK_CONSERVING, 4 + 0.25, LONGEST_OP),
        ("energy=1,memory=3", Execution.SEQUENTIAL, (15 + 3 * 9) / 4, "every op where it takes least energy, and we"),
    ],
)
def test_bounds_of_objectives_in_closed_form(objective: str, execution: Execution, value: float, argument: str) -> None:
    chain = ScheduleProblem.from_arrays(
        [[3.0, 1.0], [2.0, 5.0], [4.0, 4.0]], [(0, 1), (1, 2)], power_w=[2.0, 3.0], weight_bytes=[7, 9, 1],
        launch_s=[0.75, 0.5],
    )  # fmt: skip
    bound = lower_bound(find_objective(objective).scaled(lambda _: 1.0), replace(chain, op_overhead_s=0.25), execution)
    assert bound.value == pytest.approx(value)
    assert bound.argument.startswith(argument)
