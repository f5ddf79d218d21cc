"""Pools: every job is answered once, whatever becomes of workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import psutil
import pytest

from hsdag.base.errors import FLAGS_VARIABLE, ExecutionError, HsdagError, OptionError
from hsdag.base.processes import WorkerDefect
from hsdag.runtime.problem.bounds.simple import Bound
from hsdag.runtime.problem.plan import Plan
from hsdag.workers.pool import Findings, Job, LocalHost, Pool
from tests.hsdag.workers.here import Here, Silent
from tests.hsdag.workers.jobs import Add, Dies, Finds, Raises, Sleeps


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    with Pool([LocalHost(), LocalHost()]) as pool:
        yield pool


def test_a_job_is_done_again_when_its_worker_is_killed_and_answers_are_in_order(two: Pool, tmp_path: Path) -> None:
    jobs: list[Job[int]] = [Dies(tmp_path, 2), *(Add(number) for number in range(10))]
    assert two.answers(jobs) == [2, *range(100, 110)]


def test_a_job_that_ends_every_worker_is_given_up(two: Pool, tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match=r"Dies ended 3 workers, the last one on this machine: .*SIGKILL"):
        two.answers([Dies(tmp_path, 99)])
    assert two.answers([Add(5)]) == [105]


def test_a_worker_that_is_killed_as_it_starts_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies_once = (
        "import os, sys; from hsdag.workers.pool import compute_jobs;"
        "os.path.exists(sys.argv[1]) or open(sys.argv[1], 'w').close() or os.kill(os.getpid(), 9); compute_jobs()"
    )
    monkeypatch.setattr("hsdag.workers.pool.WORKER", (sys.executable, "-c", dies_once, str(tmp_path / "died")))
    said: list[str] = []
    with Pool([LocalHost()], said.append) as pool:
        assert pool.answers([Add(1)]) == [101]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (OptionError, HsdagError, "^budget must be more"),
        (ZeroDivisionError, WorkerDefect, "ZeroDivisionError"),
        (MemoryError, ExecutionError, "a test"),
    ],
)
def test_what_a_job_raises_is_raised_where_its_answer_is_waited_for(
    two: Pool, raised: type[Exception], expected: type[Exception], text: str
) -> None:
    with pytest.raises(expected, match=text):
        two.answers([Raises(raised)])


def test_errors_of_jobs_name_flags_where_a_command_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLAGS_VARIABLE, "1")
    with Pool([LocalHost()]) as pool, pytest.raises(HsdagError, match=r"^--budget must be more"):
        pool.answers([Raises(OptionError)])


def test_jobs_see_what_others_have_found_while_they_run_and_the_next_search_begins_anew(two: Pool) -> None:
    two.begin()
    assert two.answers([Finds(5.0), Finds(2.0)]) == [2.0, 2.0]
    assert two.findings.bound is not None
    assert (two.findings.value, two.findings.bound.value) == (2.0, 2.5)
    two.begin()
    assert two.findings == Findings()


def test_an_interrupt_leaves_no_worker_at_work() -> None:
    children = set(psutil.Process().children())

    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Pool([LocalHost()]) as pool:
        pool.answers([Sleeps(1e6)], check)
    assert set(psutil.Process().children()) == children


def test_a_cancelled_job_leaves_its_worker_to_others() -> None:
    with Pool([Silent()]) as pool:
        running, waiting = pool.submit(Add(1)), pool.submit(Add(2))
        for answer in (waiting, running):
            answer.cancel()
        pool.rest()
        assert wait([running, waiting], 0).done == {running, waiting}


def test_hosts_that_are_gone_leave_their_jobs_to_the_others_and_are_closed() -> None:
    hosts = [Here("a", 3), Here("b"), *(Here(f"{number}", 0) for number in range(4))]
    with Pool(hosts) as pool:
        assert pool.answers([Add(number) for number in range(20)]) == list(range(100, 120))
        while pool.num_workers > 1:
            pool.answers([Add(1)])
        assert [host.name for host in hosts if not host.is_closed] == ["b"]
    assert hosts[1].is_closed


def test_a_process_of_this_machine_takes_over_when_no_host_is_left() -> None:
    said: list[str] = []
    with Pool([Here("a", 2), Here("b", 1)], said.append) as pool:
        assert pool.answers([Add(number) for number in range(9)]) == list(range(100, 109))
        assert pool.num_workers == 1
    assert "was the last worker" in said[-1]


def test_of_findings_the_better_plan_and_the_larger_bound_count_and_of_equal_ones_the_own() -> None:
    one, other = (Findings(Plan(np.array([d])), 2.0, Bound(d, "")) for d in (0, 1))
    assert one.joined(other) == Findings(one.plan, 2.0, other.bound)
    assert one.joined(Findings(other.plan, 1.0)) == Findings(other.plan, 1.0, one.bound)
    assert Findings(is_over=True).joined(one) == Findings(one.plan, 2.0, one.bound, is_over=True)
    assert Findings().joined(Findings()).bound is None
