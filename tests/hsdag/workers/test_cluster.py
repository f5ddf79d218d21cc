"""Jobs and searches on a real Ray cluster of three nodes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait
from importlib.util import find_spec
from pathlib import Path

import pytest

from hsdag.base.errors import FLAGS_VARIABLE, ExecutionError, OptionError
from hsdag.workers.pool import HostLost, Job, Pool
from tests.hsdag.methods.searches import reading_near, searched
from tests.hsdag.workers.jobs import Add, Dies, Finds, Raises, Sleeps
from tests.hsdag.workers.ray_cluster import ray_cluster, workers_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Workers on all nodes, for tests in any order."""
    with pytest.MonkeyPatch.context() as patch, ray_cluster() as (address, _):
        patch.setenv(FLAGS_VARIABLE, "1")  # now, since the cluster's own processes do not come from a command
        with workers_of(address) as pool:
            yield pool


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
    with pytest.raises(expected, match=r"^--budget must be more|memory of .* does not suffice: MemoryError: a test"):
        pool.answers([Raises(raised)])


def test_a_call_that_grpc_gives_up_has_lost_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpc import RpcError  # type: ignore[import-untyped]

    from hsdag.workers.cluster import RayHost

    def lost(*_: object) -> None:
        raise RpcError("a test")

    monkeypatch.setattr(RayHost, "_answer", lost)
    with pytest.raises(HostLost, match="RpcError: a test"):
        RayHost("0" * 32, "node").call(Add(1), lambda own: own, lambda: False)
