"""Batched methods: every schedule is legal and no better than its bound, and bounds are no larger than the optimum."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsdag.batching.bound import BatchedBounds
from hsdag.batching.checking import makespan_s, violations
from hsdag.batching.incumbent import BatchIncumbent
from hsdag.batching.lists import search_heft
from hsdag.batching.split import fuse_chains
from hsdag.cli.app import run
from hsdag.commands.batched import METHODS, BatchOptions, solve_batched
from hsdag.ir.errors import OptionError
from hsdag.ir.graph import IntArray
from hsdag.placers.exact.batches import BatchedProblem, BatchSchedule, BatchTable
from hsdag.placers.incumbent import Limits, Status
from hsdag.runtime.problems.problem_file import write_problem
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from tests.hsdag.batching.batched_reference import BatchedBruteForce, random_batched

CHAIN = ScheduleProblem.from_arrays([[1.0, 1.0], [2.0, 2.0]], [(0, 1)], output_bytes=1.0)


def solved(problem: BatchedProblem, method: str, budget_s: float = 2.0) -> tuple[float, float, Status]:
    options = BatchOptions(method, problem.batches.num_inputs, budget_s=budget_s)
    solution = solve_batched(problem.costs, options, table=problem.batches)
    assert solution.schedule is not None
    assert solution.value_s == makespan_s(problem, solution.schedule)
    return solution.value_s, solution.lower_bound_s, solution.status


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(4))
def test_every_answer_lies_between_its_bound_and_nothing_below_the_optimum(method: str, seed: int) -> None:
    problem = random_batched(seed, 3, 2, 2)
    value_s, bound_s, _ = solved(problem, method)
    optimum_s = BatchedBruteForce(problem).makespan_s()
    assert bound_s <= optimum_s * (1 + 1e-9)
    assert value_s >= optimum_s * (1 - 1e-9)


@pytest.mark.parametrize("method", ["cpsat", "milp"])
def test_the_exact_methods_find_the_optimum(method: str) -> None:
    problem = random_batched(5, 3, 2, 2)
    assert solved(problem, method, 10.0)[0] == pytest.approx(BatchedBruteForce(problem).makespan_s())


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), shape=st.sampled_from([(3, 2, 2), (3, 2, 3), (4, 2, 2)]), cut=st.integers(1, 2))
def test_no_bound_is_above_the_optimum(seed: int, shape: tuple[int, int, int], cut: int) -> None:
    problem = random_batched(seed, *shape)
    optimum_s = BatchedBruteForce(problem).makespan_s()
    bounds = BatchedBounds(problem, Limits(600.0, 1))
    parts: list[IntArray] = [np.arange(cut), np.arange(cut, shape[0])]
    assert bounds.whole().value_s <= optimum_s
    assert bounds.recursive(parts).value_s <= optimum_s


@pytest.mark.parametrize("seed", range(3))
def test_three_modules_have_no_bound_above_the_optimum(seed: int) -> None:
    problem = random_batched(seed, 3, 2, 3)
    bound_s = BatchedBounds(problem, Limits(600.0, 1)).recursive([np.array([t]) for t in range(3)]).value_s
    assert bound_s <= BatchedBruteForce(problem).makespan_s()


def test_the_recursive_bound_of_a_chain_counts_what_no_two_devices_can_share() -> None:
    table = BatchTable(2, (1, 2), np.array([[[1.0, 2.0]] * 2, [[1.0, 2.0]] * 2]))
    only = np.array([[[9.0, 9.0], [3.0, 6.0]], [[3.0, 6.0], [9.0, 9.0]]])  # each op has a device of its own
    problem = BatchedProblem.of(CHAIN, replace(table, time_s=only))
    bounds = BatchedBounds(problem, Limits(600.0, 1))
    # one input through the first op (3), then both through the second (6)
    assert bounds.recursive([np.array([0]), np.array([1])]).value_s == pytest.approx(9.0)


def test_the_load_is_shared_as_devices_are_fast() -> None:
    problem = BatchedProblem.of(ScheduleProblem.from_arrays([[1.0, 3.0]], []),
                                BatchTable(4, (1, 2, 3, 4), np.array([[[1.0, 2, 3, 4], [3.0, 6, 9, 12]]])))  # fmt: skip
    assert BatchedBounds(problem, Limits(600.0, 1)).whole().value_s == pytest.approx(3.0, rel=1e-3)


@pytest.mark.parametrize(
    ("device", "start_s", "sentence"),
    [
        ([[0, 1], [0, 1]], [[0.0, 0.0], [0.5, 1.0]], "does not wait|overlaps"),
        ([[0, 0], [1, 1]], [[0.0, np.nan], [np.nan, 2.0]], "does not wait"),
        ([[0, 0], [0, 0]], [[0.0, np.nan], [1.0, np.nan]], "overlaps"),
        ([[0, 1], [0, 1]], [[0.0, np.nan], [1.0, 1.0]], "no start"),
        ([[0, 2], [0, 1]], [[0.0, 0.0], [1.0, 1.0]], "which does not exist"),
        ([[0], [0]], [[0.0, 0.0], [1.0, 1.0]], "ops and groups"),
    ],
)
def test_a_schedule_that_breaks_a_rule_is_told_so(
    device: list[list[int]], start_s: list[list[float]], sentence: str
) -> None:
    costs = replace(CHAIN, link_latency_s=np.ones((2, 2)))
    problem = BatchedProblem.of(costs, BatchTable.scaled(costs, 2, (1, 2), 0.0))
    with pytest.raises(ValueError, match=sentence):
        makespan_s(problem, BatchSchedule(np.array(device), np.array(start_s)))


def test_batches_of_other_sizes_and_too_much_memory_are_told() -> None:
    costs = replace(CHAIN, memory_bytes=np.array([3.0, 3.0]))
    schedule = BatchSchedule(np.array([[0, 0], [0, 0]]), np.array([[0.0, np.nan], [2.0, np.nan]]))
    sizes = BatchedProblem.of(costs, BatchTable.scaled(costs, 2, (1,), 0.0))
    assert "batch of 2 on device 0, which is not allowed" in " ".join(violations(sizes, schedule))
    memory = BatchedProblem.of(costs, BatchTable.scaled(costs, 2, (1, 2), 0.0))
    assert "needs 6 bytes of 3" in " ".join(violations(memory, schedule))


def test_quarters_are_the_sizes_of_the_paper() -> None:
    table = BatchTable.quarters(CHAIN, 16, 0.5)
    assert table.sizes == (4, 8, 12, 16)
    assert table.num_groups == 4
    assert table.time_s[1, 0].tolist() == [5.0, 9.0, 13.0, 17.0]  # 2 (0.5 + 0.5 b)


def test_schedules_of_fused_chains_are_schedules_of_all_ops() -> None:
    rng = np.random.default_rng(0)
    costs = ScheduleProblem.from_arrays(
        rng.integers(1, 9, (7, 2)), [(0, 1), (1, 2), (0, 3), (3, 4), (2, 5), (4, 5), (5, 6)], output_bytes=1.0,
        link_latency_s=1.0, link_bandwidth_bytes_per_s=2.0, op_overhead_s=1.0,
    )  # fmt: skip
    whole = BatchedProblem.of(costs, BatchTable.quarters(costs, 8, 0.3))
    chains = fuse_chains(whole)
    assert chains.problem.costs.num_ops == 4
    found = BatchIncumbent(chains.problem, 1.0)
    search_heft(found)
    assert found.best is not None
    assert makespan_s(whole, chains.expanded(found.best, whole)) == pytest.approx(found.best_s)


def test_two_equal_devices_double_the_throughput() -> None:
    solution = solve_batched(CHAIN, BatchOptions("cpsat", 4, 0.0, 5.0))
    assert solution.inputs_per_s == pytest.approx(4 / 6.0)
    assert solution.status is Status.OPTIMAL


def test_an_unknown_batched_method_is_answered_with_the_choices() -> None:
    with pytest.raises(OptionError, match="'mincut' has no batched form; choose one of best-device, met"):
        BatchOptions("mincut")


def test_the_command_line_divides_a_batch_and_says_what_it_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "problem.json"
    write_problem(CHAIN, path)
    assert run(["solve", str(path), "--method", "heft", "--batch", "8", "--fixed-share", "0.25", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["assumed"] == "t(b) = t(1) (0.25 + 0.75 b)"
    assert document["batch_sizes"] == [2, 4, 6, 8]
    assert document["inputs_per_s"] == pytest.approx(8 / document["makespan_s"])
    assert sorted(i for batch in document["schedule"] if batch["op"] == "op1" for i in batch["inputs"]) == [*range(8)]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--execution", "sequential", "--batch", "4"], "--execution sequential does not go with --batch"),
        (["--fixed-share", "0.5"], "give --batch too"),
        (["--batch", "0"], "--batch must be at least 1, not 0"),
        (["--batch", "4", "--fixed-share", "2"], "--fixed-share must be between 0 and 1, not 2"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], complaint: str
) -> None:
    path = tmp_path / "problem.json"
    write_problem(CHAIN, path)
    assert run(["solve", str(path), "--method", "heft", *options]) == 2
    assert complaint in capsys.readouterr().err
