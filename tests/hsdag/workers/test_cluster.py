"""A search on a real Ray cluster of three nodes, some of which are killed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from importlib.util import find_spec
from pathlib import Path

import pytest

from hsdag.ir.errors import ExecutionError, OptionError
from hsdag.methods.incumbent import Status
from hsdag.workers.pool import Job, Pool, pool_of
from tests.hsdag.methods.searches import reading_near, searched
from tests.hsdag.workers.jobs import Add, Dies, Finds, Raises, Sleeps
from tests.hsdag.workers.ray_cluster import ray_cluster

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")]


@contextlib.contextmanager
def workers_of(address: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Pool]:
    with pool_of(address, say) as pool:
        assert pool is not None
        yield pool


def test_nodes_with_another_hsdag_compute_nothing_and_the_search_goes_on_here(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import hsdag\nhsdag.__version__ = '0.0'\n")
    said: list[str] = []
    with ray_cluster(1, tmp_path) as (address, _), workers_of(address, said.append) as pool:
        assert pool.answers([Add(number) for number in range(4)]) == list(range(100, 104))
    assert "it has hsdag 0.0, this machine has" in said[0]


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, Callable[[int], None]]]:
    with ray_cluster() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def pool(cluster: tuple[str, Callable[[int], None]]) -> Iterator[Pool]:
    """Workers on all nodes; tests run in the order of this file, and the last ones kill nodes."""
    with workers_of(cluster[0]) as pool:
        yield pool


@pytest.fixture(scope="module")
def kill(cluster: tuple[str, Callable[[int], None]]) -> Callable[[int], None]:
    return cluster[1]


def test_a_machine_outside_the_cluster_has_its_workers_and_finds_the_same(pool: Pool) -> None:
    problem = reading_near(40, 3)
    alone, _ = searched(problem, "milp-split", None)
    assert pool.num_workers == 3
    pool.begin()
    assert pool.answers([Finds(5.0), Finds(2.0)]) == [2.0, 2.0]
    found, _ = searched(problem, "milp-split", pool)
    assert (found.plan, found.score) == (alone.plan, alone.score)


def test_a_job_is_done_again_elsewhere_when_its_worker_is_killed(pool: Pool, tmp_path: Path) -> None:
    jobs: list[Job[int]] = [Dies(tmp_path, 1), *(Add(number) for number in range(30))]
    assert pool.answers(jobs) == [1, *range(100, 130)]
    assert pool.num_workers == 3


def test_a_job_that_nobody_needs_ends_with_its_worker(pool: Pool) -> None:
    sleeping = [pool.submit(Sleeps(1e6)) for _ in range(3)]
    adding = pool.submit(Add(1))
    wait(sleeping, 2.0)  # until they have begun
    for answer in sleeping:
        answer.cancel()
    assert adding.result(100) == 101


@pytest.mark.parametrize(("raised", "expected"), [(OptionError, OptionError), (MemoryError, ExecutionError)])
def test_what_a_job_raises_on_a_node_is_raised_here(
    pool: Pool, raised: type[Exception], expected: type[Exception]
) -> None:
    with pytest.raises(expected, match=r"must be more|memory of .* does not suffice: MemoryError: a test"):
        pool.answers([Raises(raised)])


def test_a_search_outlives_a_node_and_then_the_head(pool: Pool, kill: Callable[[int], None]) -> None:
    problem = reading_near(80, 3)
    for node in (2, 0):
        killing = threading.Timer(2.0, kill, [node])
        killing.start()
        found, recorder = searched(problem, "auto", pool, 8.0)
        killing.join()
        assert found.status is Status.TIME_LIMIT
        (best,) = recorder.best()
        assert recorder.evaluate_all([best.plan])[0].value == found.score
        assert all(each.failure is None for each in found.contributions)
    assert pool.answers([Add(number) for number in range(3)]) == [100, 101, 102]
    assert pool.num_workers == 1
