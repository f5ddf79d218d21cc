"""Portfolios and restarts on workers: what they find is legal, known here, and no worse than in one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

from hsdag.methods.incumbent import Status
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.workers.pool import LocalHost, Pool
from tests.hsdag.methods.portfolio.searches import random_problem, searched
from tests.hsdag.workers.here import Silent
from tests.hsdag.workers.jobs import Add


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    with Pool([LocalHost(), LocalHost()]) as pool:
        yield pool


def chain(num_ops: int) -> ScheduleProblem:
    """Ops in a row that are faster on the first device, which has no memory for all of them."""
    return ScheduleProblem.from_arrays(
        [[1.0, 2.0]] * num_ops, [(i, i + 1) for i in range(num_ops - 1)], weight_bytes=[1.0] * num_ops,
        memory_bytes=[num_ops / 2, np.inf],
    )  # fmt: skip


@pytest.mark.slow
def test_the_portfolio_ends_with_the_proof_that_one_worker_has(two: Pool) -> None:
    problem = random_problem(9, 2)
    alone, _ = searched(problem, "cpsat", None)
    assert alone.status is Status.OPTIMAL
    found, _ = searched(problem, "auto", two)
    assert (found.status, found.score) == (Status.OPTIMAL, alone.score)
    assert {each.method for each in found.contributions} >= {"heft", "etf"}
    assert all(each.failure is None for each in found.contributions)


@pytest.mark.slow
def test_the_portfolio_has_an_answer_where_no_worker_does() -> None:
    problem = chain(6)
    searched(problem, "met", None)  # what is compiled is compiled before the clock starts, as in a command
    with Pool([Silent()]) as pool:
        found, _ = searched(problem, "auto", pool, 2.0)
    assert found.status is Status.TIME_LIMIT
    assert found.plan is not None
    assert [each.method for each in found.contributions] == ["met"]


def test_memory_limits_hold_for_plans_of_workers(two: Pool) -> None:
    found, recorder = searched(chain(12), "auto", two, evaluations=1000)
    assert found.plan is not None
    assert np.bincount(found.plan.placement, minlength=2)[0] <= 6
    assert found.score == recorder.best()[0].score.value == 18.0


@pytest.mark.slow
def test_a_worker_that_is_killed_in_mid_search_costs_the_search_nothing() -> None:
    said: list[str] = []

    others = psutil.Process().children()

    def kill() -> None:
        next(child for child in psutil.Process().children() if child not in others).kill()

    with Pool([LocalHost(), LocalHost()], say=said.append) as pool:
        pool.answers([Add(1), Add(2)])
        killing = threading.Timer(2.0, kill)
        killing.start()
        found, recorder = searched(random_problem(80, 3), "auto", pool, seconds=8.0)
        killing.join()
    assert found.status is Status.TIME_LIMIT
    assert found.score == recorder.best()[0].score.value
    assert any("SIGKILL" in line for line in said)
