"""Hosts of a cluster, over a gateway that needs none: what it says, and when it ends."""

from __future__ import annotations

import sys
from concurrent.futures import wait

import numpy as np
import pytest

from hsdag.fleet.cluster import Cluster
from hsdag.fleet.job import Findings, Shared
from hsdag.fleet.pool import Pool
from hsdag.ir.errors import DeviceError
from hsdag.runtime.problems.plan import Plan
from tests.hsdag.fleet.here import Here
from tests.hsdag.fleet.jobs import Add


@pytest.fixture(autouse=True)
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.fleet.cluster.COMMAND", (sys.executable, "-m", "tests.hsdag.fleet.gateway_here"))


def pool_of(cluster: Cluster) -> Pool:
    return Pool(cluster.hosts, Here, on_close=cluster.close)


def test_a_value_that_jobs_share_is_sent_once_to_each_slot_and_the_gateway_ends_by_itself() -> None:
    cluster, shared = Cluster("computes"), Shared.of(100)
    with pool_of(cluster) as pool:
        assert pool.num_workers == 2
        assert pool.answers([Add(number, (shared,)) for number in range(9)]) == list(range(100, 109))
    assert cluster._process.returncode == 0


def test_what_a_slot_finds_is_told_to_all_and_what_all_find_to_the_slot() -> None:
    with pool_of(Cluster("finds")) as pool:
        pool.begin()
        answer = pool.submit(Add(1))
        while pool.findings.bound is None:
            wait([answer], 0.05)
        pool.exchange(Findings(Plan(np.array([0])), 4.0))
        assert answer.result(10) == 4.0


def test_a_job_that_nobody_needs_is_abandoned_and_the_slot_takes_others() -> None:
    with pool_of(Cluster("waits")) as pool:
        for _ in range(4):
            pool.submit(Add(1)).cancel()
        pool.rest()
        assert pool.num_workers == 2


def test_a_connection_that_is_lost_leaves_the_jobs_to_this_machine() -> None:
    said: list[str] = []
    cluster = Cluster("ends")
    with Pool(cluster.hosts, Here, said.append, cluster.close) as pool:
        assert pool.answers([Add(number) for number in range(5)]) == list(range(5))
        assert [host.name for host in pool.hosts] == ["here"]
    assert any("the connection to the cluster is lost" in line for line in said)


@pytest.mark.parametrize(("how", "why"), [("refuses", "it is shut"), ("empty", "it has no processors")])
def test_where_there_is_no_cluster_the_reason_is_told(how: str, why: str) -> None:
    with pytest.raises(DeviceError, match=f"no Ray cluster to work on: {why}; start one"):
        Cluster(how)


def test_a_gateway_that_cannot_start_is_told_with_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.fleet.cluster.COMMAND", (sys.executable, "-c", "raise ImportError('no ray here')"))
    with pytest.raises(DeviceError, match="ImportError: no ray here"):
        Cluster("auto")
