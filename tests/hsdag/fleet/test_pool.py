"""Pools: every job is answered once, whatever becomes of workers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest

from hsdag.fleet import pool as pool_module
from hsdag.fleet.job import Exchange, Findings, Job, JobLost, Shared
from hsdag.fleet.local import LocalHost
from hsdag.fleet.pool import Host, Pool
from hsdag.ir.errors import ExecutionError, OptionError
from hsdag.ir.processes import WorkerDefect
from tests.hsdag.fleet.jobs import Add, Dies, Finds, Refuses, Slow, TooLarge, Where


@pytest.fixture(scope="module")
def two() -> Iterator[Pool]:
    with Pool([LocalHost(), LocalHost()]) as pool:
        yield pool


def test_answers_come_in_the_order_of_the_jobs(two: Pool) -> None:
    shared = Shared.of(100)
    assert two.answers([Add(number, (shared,)) for number in range(10)]) == list(range(100, 110))


def test_a_job_goes_on_elsewhere_when_its_worker_is_killed(two: Pool, tmp_path: Path) -> None:
    shared, before = Shared.of(1000), two.num_lost
    assert two.answers([Dies(tmp_path, 2), Add(1, (shared,)), Add(2, (shared,))]) == [2, 1001, 1002]
    assert two.num_lost == before + 2
    assert two.answers([Add(i, (shared,)) for i in range(4)]) == [1000, 1001, 1002, 1003]


@pytest.mark.slow
def test_a_job_that_ends_every_worker_is_given_up(two: Pool, tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match=r"Dies ended 3 workers, the last one on this machine: .*SIGKILL"):
        two.answers([Dies(tmp_path, 99)])
    assert two.answers([Add(5)]) == [5]


def test_a_worker_that_is_killed_as_it_starts_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dies_once = (
        "import os, runpy, sys; path = sys.argv.pop(1);"
        "os.path.exists(path) or open(path, 'w').close() or os.kill(os.getpid(), 9);"
        "runpy.run_module('hsdag.fleet.worker', run_name='__main__')"
    )
    monkeypatch.setattr("hsdag.fleet.local.COMMAND", (sys.executable, "-c", dies_once, str(tmp_path / "died")))
    with Pool([LocalHost()]) as pool:
        assert pool.answers([Add(1)]) == [1]
        assert pool.num_lost == 1


def test_what_a_job_raises_is_raised_by_who_waits(two: Pool) -> None:
    with pytest.raises(OptionError, match="must be more"):
        two.answers([Refuses(is_defect=False)])
    with pytest.raises(WorkerDefect, match="ZeroDivisionError"):
        two.answers([Refuses(is_defect=True)])


def test_a_value_that_is_too_large_is_the_fault_of_every_job_that_needs_it(two: Pool) -> None:
    shared = Shared.of(TooLarge())
    for _ in range(3):
        with pytest.raises(ExecutionError, match="the memory of the process does not suffice"):
            two.answers([Add(1, (shared,))])


def test_jobs_see_what_others_have_found_while_they_run(two: Pool) -> None:
    two.begin(Findings())
    assert two.answers([Finds(5.0), Finds(2.0)]) == [2.0, 2.0]
    assert two.findings.value == 2.0
    assert two.findings.bound is not None
    assert two.findings.bound.value_s == 2.5


@pytest.mark.slow
def test_an_interrupt_leaves_no_worker_at_work(tmp_path: Path) -> None:
    def check() -> None:
        raise KeyboardInterrupt

    begin_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Pool([LocalHost()]) as pool:
        pool.answers([Slow(tmp_path / "flag", 300.0)], check)
    assert time.monotonic() - begin_s < 100.0


class Threaded(Host):
    """Runs jobs in the thread of the pool; it is lost for good after ``left`` of them."""

    def __init__(self, name: str, left: float = float("inf")) -> None:
        self.name, self.left = name, left

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:  # noqa: ARG002
        if self.left <= 0:
            raise JobLost("the node is gone")
        self.left -= 1
        return job.run((), exchange)

    def revive(self) -> bool:
        return False


def test_hosts_that_are_gone_leave_their_jobs_to_the_others() -> None:
    with Pool([Threaded("a", 3), Threaded("b"), Threaded("c", 0)]) as pool:
        assert pool.answers([Add(number) for number in range(20)]) == list(range(20))
        assert sum(pool.num_answers.values()) == 20


def test_the_last_resort_takes_over_when_no_host_is_left() -> None:
    said: list[str] = []
    with Pool([Threaded("a", 2), Threaded("b", 1)], lambda: Threaded("here"), said.append) as pool:
        assert pool.answers([Add(number) for number in range(9)]) == list(range(9))
        assert pool.num_answers["here"] == 6
        assert pool.num_workers == 1
    assert "was the last worker" in said[-1]


def test_machines_that_are_gone_are_no_fault_of_the_job_that_they_had() -> None:
    gone = [Threaded(f"{number}", 0) for number in range(2 * pool_module.MOST_LOSSES)]
    with Pool(gone, lambda: Threaded("here")) as pool:
        assert pool.answers([Add(1)]) == [1]


def test_jobs_that_are_cancelled_before_they_begin_leave_the_pool_at_rest() -> None:
    def cancel_and_rest() -> None:
        with pool._changed:  # so that nobody can take the job
            pool.submit(Add(1)).cancel()
            pool.rest()

    with Pool([Threaded("a")]) as pool:
        resting = threading.Thread(target=cancel_and_rest, daemon=True)
        resting.start()
        resting.join(10)
        assert not resting.is_alive()


def test_what_is_kept_of_jobs_does_not_grow_with_their_number() -> None:
    with Pool([Threaded("a")]) as pool:
        assert pool.answers([Add(number) for number in range(1000)]) == list(range(1000))
        assert len(pool._took_s) == pool_module.MOST_TIMES


@pytest.mark.slow
def test_a_slow_job_is_given_to_another_worker_and_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SLOW_S", 0.2)
    monkeypatch.setattr(pool_module, "LOOK_EVERY_S", 0.05)
    with Pool([Threaded("a"), Threaded("b")]) as pool:
        assert pool.answers([Add(1), Slow(tmp_path / "flag", 3.0)]) == [1, 2]
        assert sum(pool.num_answers.values()) == 2
        while any(thread.is_alive() and pool._running for thread in threading.enumerate() if pool._running):
            time.sleep(0.05)
        assert pool.num_dropped == 1


def test_a_job_that_takes_less_than_seconds_is_not_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LOOK_EVERY_S", 0.02)
    with Pool([Threaded("a"), Threaded("b")]) as pool:
        pool._took_s.append(0.0)
        assert pool.submit(Slow(tmp_path / "flag", 0.3)).result(5) == 1
        assert pool.num_dropped == 0


def test_a_slow_job_is_computed_by_two_workers_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SLOW_S", 0.05)
    monkeypatch.setattr(pool_module, "LOOK_EVERY_S", 0.02)
    begun: list[float] = []

    class Noted(Add):
        def run(self, values: tuple[Any, ...], exchange: Exchange) -> int:
            begun.append(time.monotonic())
            time.sleep(0.5)
            return super().run(values, exchange)

    with Pool([Threaded("a"), Threaded("b"), Threaded("c")]) as pool:
        pool._took_s.append(0.0)
        assert pool.submit(Noted(1)).result(5) == 1
    assert len(begun) == 2


def test_a_slow_job_that_ends_its_second_worker_is_still_answered_by_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "SLOW_S", 0.2)
    monkeypatch.setattr(pool_module, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(pool_module, "MOST_LOSSES", 1)
    flag = tmp_path / "flag"

    class Dies(Threaded):
        def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:  # noqa: ARG002
            while not flag.exists():  # until the other one has the job, too
                time.sleep(0.01)
            raise JobLost("a test")

        def revive(self) -> bool:
            return True

    with Pool([Threaded("a"), Dies("b")]) as pool:
        pool._took_s.append(0.0)
        assert pool.submit(Slow(flag, 1.0)).result(10) == 1


def test_an_answer_that_is_cancelled_as_it_comes_costs_no_worker() -> None:
    class Late(Threaded):
        @property
        def name(self) -> str:  # asked as an answer is taken
            for future in futures:
                future.cancel()
            return "late"

        @name.setter
        def name(self, _: str) -> None: ...

    futures: list[Future[int]] = []
    with Pool([Late("late")]) as pool:
        futures.append(pool.submit(Add(1)))
        wait(futures, 5)
        assert pool.submit(Add(2)).result(5) == 2


class Named(Host):
    """Answers with its name; its worker is lost ``num_losses`` times, and it is gone then where it ``is_mortal``."""

    def __init__(self, name: str, num_losses: int = 0, *, is_mortal: bool = False) -> None:
        self.name, self._num_losses, self._is_mortal = name, num_losses, is_mortal

    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:  # noqa: ARG002
        if self._num_losses:
            self._num_losses -= 1
            raise JobLost("a test")
        return self.name

    def revive(self) -> bool:
        return not self._is_mortal


def test_a_job_for_one_host_is_computed_by_no_other_one() -> None:
    hosts = [Named("a"), Named("b"), Named("c")]
    with Pool(hosts) as pool:
        asked = [hosts[number % 3] for number in range(30)]
        assert [pool.submit(Where(), host).result(5) for host in asked] == [host.name for host in asked]


def test_a_job_for_one_host_ends_with_its_worker_and_the_next_one_gets_another() -> None:
    first, second = Named("a", 1), Named("b", 1, is_mortal=True)
    with Pool([first, second, Named("c")]) as pool:
        for host in (first, second):
            with pytest.raises(JobLost, match="a test"):
                pool.submit(Where(), host).result(5)
        assert pool.submit(Where(), first).result(5) == "a"
        with pytest.raises(JobLost, match="is gone"):
            pool.submit(Where(), second).result(5)
        assert [host.name for host in pool.hosts] == ["a", "c"]


def test_jobs_that_wait_for_a_host_are_told_when_it_is_gone() -> None:
    going = threading.Event()

    class Goes(Threaded):
        def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:  # noqa: ARG002
            going.wait(10)
            raise JobLost("a test")

    hosts = [Goes("a"), Threaded("b")]
    with Pool(hosts) as pool:
        waiting = [pool.submit(Add(number), hosts[0]) for number in range(3)]
        going.set()
        for future, reason in zip(waiting, ["a test", "is gone", "is gone"], strict=True):
            with pytest.raises(JobLost, match=reason):
                future.result(5)


def test_a_search_begins_without_the_findings_of_the_one_before() -> None:
    with Pool([Threaded("a")]) as pool:
        pool.exchange(Findings(value=1.0, is_over=True))
        assert pool.exchange(Findings(value=2.0)) == Findings(value=1.0, is_over=True)
        pool.begin()
        assert pool.findings == Findings()


def test_hosts_are_closed_with_the_pool_and_where_they_are_gone() -> None:
    closed: list[str] = []

    class Closes(Threaded):
        def close(self) -> None:
            closed.append(self.name)

    with Pool([Closes("a", 0), Closes("b")]) as pool:
        assert pool.answers([Add(number) for number in range(5)]) == list(range(5))
        while pool.num_workers > 1:
            pool.answers([Add(1)])
    assert closed == ["a", "b"]
