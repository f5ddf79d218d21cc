"""Distribute jobs to processes, here or on a Ray cluster, again if a worker is lost; jobs exchange findings."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import InitVar, dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeAlias, TypeVar

from hsdag.base.errors import ExecutionError, HsdagError
from hsdag.base.processes import CandidateFailed, Channel, Request, WorkerClient, main, python_command
from hsdag.runtime.machine.usable import usable_memory_bytes
from hsdag.runtime.problem.bounds.simple import Bound, largest
from hsdag.runtime.problem.plan import Plan

A = TypeVar("A")


@dataclass(frozen=True)
class Findings:
    """The best plan of a search so far, its value and the largest lower bound.

    ``is_over`` is true once no answer is needed any more.
    """

    plan: Plan | None = None
    value: float = float("inf")
    bound: Bound | None = None
    is_over: bool = False

    def joined(self, other: Findings) -> Findings:
        """Return the findings of both; of two plans with equal value, this one's."""
        better = other if other.value < self.value else self
        bound = None if self.bound is None and other.bound is None else largest(self.bound, other.bound)
        return Findings(better.plan, better.value, bound, self.is_over or other.is_over)


NOTHING = Findings()
Exchange: TypeAlias = Callable[[Findings], Findings]
"""Function that reports a job's findings and returns those of all jobs."""


class Job(Request[A], ABC):
    """A computation from its own fields alone, repeated if a worker is lost; a dataclass that can be pickled."""

    @abstractmethod
    def run(self, exchange: Exchange) -> A:
        """Compute the answer. Raises HsdagError for a user's mistake."""


class JobLost(Exception):  # noqa: N818 - an ending we expect, not an error
    """The worker ended before its job did."""


class HostLost(JobLost):
    """The host cannot start another worker."""


MOST_LOSSES = 3
"""Give up on a job after it has cost this many workers, since the job is then the likely cause."""
LOOK_EVERY_S = 0.1
"""Seconds between calls of ``check`` while answers are awaited."""
WORKER = python_command("from hsdag.workers.pool import compute_jobs; compute_jobs()")


class Host(ABC):
    """A place that computes one job at a time. ``name`` tells people on which machine."""

    name: str

    @abstractmethod
    def call(self, job: Job[A], exchange: Exchange, is_over: Callable[[], bool]) -> A:
        """Compute a job. Raises JobLost if the worker ended first or ``is_over`` became true, or what the job does."""

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """End the worker."""


class LocalHost(Host):
    """A process on this machine, started for the first job and again after it was lost."""

    name = "this machine"

    def __init__(self) -> None:
        self._client = WorkerClient(Request[None](), WORKER, usable_memory_bytes)

    def call(self, job: Job[A], exchange: Exchange, is_over: Callable[[], bool]) -> A:
        """Compute a job; see ``Host.call``."""
        self._client.on_question, self._client.should_abandon = exchange, is_over
        try:
            return self._client.call(job, float("inf"))  # jobs have limits of their own
        except CandidateFailed as failure:
            raise (JobLost if failure.lost_worker else ExecutionError)(failure.reason) from failure
        except HsdagError as error:
            if self._client.is_running:
                raise
            raise JobLost(str(error)) from error  # the process was lost as it started

    def close(self) -> None:
        """End the process."""
        self._client.close()


@dataclass(frozen=True)
class _LocalWorker:
    """The part of a worker process that computes jobs; the client answers with what others have found."""

    channel: Channel

    def handle(self, job: Job[Any]) -> Any:
        return job.run(self.channel.ask)


def compute_jobs() -> None:
    """Run the loop of a worker process, which computes jobs one after another."""
    main(lambda _, channel: _LocalWorker(channel))


@dataclass(eq=False)
class Pool(AbstractContextManager["Pool"]):
    """Hosts that compute jobs, with one thread for each. As a context manager, it ends the workers on exit.

    When the last host is lost, the search continues with a process on this machine. ``say`` is called with a sentence
    for each loss.
    """

    hosts: InitVar[Sequence[Host]]
    say: Callable[[str], None] = lambda _: None
    on_close: Callable[[], None] = lambda: None

    def __post_init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = list(hosts)
        self._threads = ThreadPoolExecutor(len(hosts))
        self._free: SimpleQueue[Host] = SimpleQueue()
        for host in hosts:
            self._free.put(host)
        self._lock = threading.Lock()
        self._open: dict[Future[None], Future[Any]] = {}  # running computation -> its answer
        self.findings = NOTHING  # findings of all jobs since ``begin``

    def __exit__(self, *_: object) -> None:
        """End the workers; jobs without an answer are cancelled."""
        for answer in list(self._open.values()):
            answer.cancel()
        self._threads.shutdown()
        for host in self._hosts:
            host.close()
        self.on_close()

    @property
    def num_workers(self) -> int:
        """Return the number of jobs that are computed at a time."""
        return len(self._hosts)

    def submit(self, job: Job[A]) -> Future[A]:
        """Submit a job and return its future answer; cancelling it also ends the job, if need be by killing the worker.

        The answer raises ExecutionError if the job cost MOST_LOSSES workers on machines that are still there.
        """
        answer: Future[A] = Future()
        computing = self._threads.submit(self._compute, job, answer)
        self._open[computing] = answer
        computing.add_done_callback(self._open.pop)
        return answer

    def rest(self) -> None:
        """Wait until no worker computes; cancelled jobs end within seconds, or their workers are killed."""
        wait(list(self._open))

    def answers(self, jobs: Iterable[Job[A]], check: Callable[[], None] = lambda: None) -> list[A]:
        """Return all answers in the order of the jobs.

        ``check`` is called every LOOK_EVERY_S seconds; an exception that it raises cancels the remaining jobs.
        """
        futures = [self.submit(job) for job in jobs]
        try:
            while wait(futures, LOOK_EVERY_S).not_done:
                check()
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def begin(self, findings: Findings = NOTHING) -> None:
        """Replace the findings at the start of another search."""
        self.findings = findings

    def exchange(self, findings: Findings) -> Findings:
        """Add a job's findings to those of all jobs, and return the result."""
        with self._lock:
            self.findings = self.findings.joined(findings)
            return self.findings

    def _compute(self, job: Job[A], answer: Future[A]) -> None:
        """Compute a job and deliver its answer, unless that was cancelled."""
        try:
            deliver = partial(answer.set_result, self._result(job, answer))
        except Exception as error:  # noqa: BLE001 - raised again where the answer is waited for
            deliver = partial(answer.set_exception, error)
        if answer.set_running_or_notify_cancel():
            deliver()

    def _result(self, job: Job[A], answer: Future[A]) -> Any:
        """Return the answer from the next free host, trying others if workers are lost; None for a cancelled job."""
        num_losses = 0
        while not answer.done():
            host = self._free.get()
            is_gone = False
            try:
                return host.call(job, self.exchange, answer.done)
            except JobLost as loss:
                is_gone = isinstance(loss, HostLost)
                if not answer.done():
                    self.say(f"lost a worker on {host.name} ({loss})")
                num_losses += not is_gone  # the loss of a machine is not the job's fault
                if num_losses == MOST_LOSSES:
                    reason = f"{type(job).__name__} ended {num_losses} workers, the last one on {host.name}: {loss}"
                    raise ExecutionError(reason) from loss
            finally:
                self._go_on_without(host) if is_gone else self._free.put(host)
        return None

    def _go_on_without(self, host: Host) -> None:
        """Remove a host, and replace it by a process on this machine if it was the last one."""
        host.close()
        with self._lock:
            self._hosts.remove(host)
            if not self._hosts:
                self.say(f"{host.name} was the last worker; the search goes on with a process on this machine")
                self._hosts.append(LocalHost())
                self._free.put(self._hosts[0])
