"""Nodes of Ray clusters that are of no use, or are killed. Each test has a cluster to itself."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from hsdag.methods.incumbent import Status
from tests.hsdag.methods.searches import reading_near, searched
from tests.hsdag.workers.jobs import Add, Looks
from tests.hsdag.workers.ray_cluster import ray_cluster, workers_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")]


def test_nodes_with_another_hsdag_compute_nothing_and_the_search_goes_on_here(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import hsdag.base.version\nhsdag.base.version.__version__ = '0.0'\n")
    said: list[str] = []
    with ray_cluster(1, tmp_path) as (address, _), workers_of(address, said.append) as pool:
        assert pool.answers([Add(number) for number in range(4)]) == list(range(100, 104))
    assert "it has hsdag 0.0, this machine has" in said[0]


def test_no_node_looks_for_modules_in_the_folder_that_a_search_is_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ray_cluster(1), workers_of("ray") as pool:  # a machine of the cluster
        (paths,) = pool.answers([Looks()])
    assert paths
    assert not {"", str(tmp_path)}.intersection(paths)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # a thread of gRPC's own
def test_a_search_outlives_a_node_and_then_the_head() -> None:
    problem = reading_near(200, 3)
    with ray_cluster() as (address, kill), workers_of(address) as pool:
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
