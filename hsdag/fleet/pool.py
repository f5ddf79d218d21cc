"""Pool: hands jobs to workers, again where one is lost or slow, and takes the first answer of each."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from statistics import median
from types import TracebackType
from typing import Any, TypeVar, cast

from hsdag.fleet.job import Exchange, Findings, Job, JobLost
from hsdag.ir.errors import ExecutionError

A = TypeVar("A")

MOST_LOSSES = 3
"""Workers that one job may cost; it is then taken to be what ends them."""
SLOW, SLOW_S = 4.0, 10.0
"""A job is given to a second worker where it takes so many times the median of all, and at least so many seconds."""
MOST_TIMES = 200
"""Jobs, the latest, whose median that is: a training has hundreds of thousands."""
LOOK_EVERY_S = 0.5
GONE = "its machine is gone"


class Host(ABC):
    """Where one job at a time is computed.

    ``name`` says on which machine, for people; ``is_here`` that it is the one that searches.
    """

    name: str
    is_here: bool = False

    @abstractmethod
    def call(self, job: Job[Any], exchange: Exchange, is_over: Callable[[], bool]) -> Any:
        """The answer. Raises JobLost when the worker ended before, or ``is_over`` came true; else what the job does."""

    @abstractmethod
    def revive(self) -> bool:
        """Whether there will be another worker after one was lost."""

    def close(self) -> None:  # noqa: B027 - some hold nothing
        """End the worker."""


@dataclass(eq=False)
class _Task:
    """A job, the one host that may compute it, if not any, its answer, when the latest of its runs began, and the
    workers that it has cost."""

    job: Job[Any]
    host: Host | None = None
    answer: Future[Any] = field(default_factory=Future)
    began_s: float = 0.0
    num_losses: int = 0


class Pool:
    """Computes jobs on hosts, one thread for each. Use as a context manager, which ends the workers.

    When the last host is gone for good, ``last_resort`` gives another one, so that the search goes on. ``say`` hears of
    losses. ``num_answers`` counts answers by host that were taken, ``num_dropped`` those that came a second time.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        last_resort: Callable[[], Host] | None = None,
        say: Callable[[str], None] = lambda _: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.num_answers: Counter[str] = Counter()
        self.num_dropped = self.num_lost = 0
        self.say = say
        self._last_resort, self._on_close = last_resort, on_close
        self._changed = threading.Condition()
        self._waiting: deque[_Task] = deque()
        self._running: list[_Task] = []
        self._took_s: deque[float] = deque(maxlen=MOST_TIMES)
        self._findings = Findings()
        self._is_closed = False
        self._hosts = list(hosts)
        self._threads = [threading.Thread(target=self._serve, args=(host,), daemon=True) for host in hosts]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; jobs without an answer are cancelled."""
        with self._changed:
            self._is_closed = True
            for task in (*self._waiting, *self._running):
                task.answer.cancel()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for host in self._hosts:
            host.close()
        self._on_close()

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Those that are there."""
        with self._changed:
            return tuple(self._hosts)

    @property
    def num_workers(self) -> int:
        """How many jobs are computed at a time."""
        return len(self.hosts)

    def submit(self, job: Job[A], host: Host | None = None) -> Future[A]:
        """Have a job computed. The answer raises ExecutionError where the job ended MOST_LOSSES workers whose machines
        are still there.

        On ``host`` alone, where one is given, and at most once: the answer raises JobLost where its worker is lost.
        """
        with self._changed:
            task = _Task(job, host)
            if host is None or host in self._hosts:
                self._waiting.append(task)
            else:
                task.answer.set_exception(JobLost(GONE))
            self._changed.notify_all()
        return cast("Future[A]", task.answer)

    def rest(self) -> None:
        """Wait until no worker computes; jobs that nobody needs end within seconds, or their workers are killed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or not (self._running or self._waiting))

    def answers(self, jobs: Iterable[Job[A]], check: Callable[[], None] = lambda: None) -> list[A]:
        """All answers, in the order of the jobs. What ``check`` raises, it asks every so often, cancels the rest."""
        futures = [self.submit(job) for job in jobs]
        try:
            return [wait_for(future, check) for future in futures]
        finally:
            for future in futures:
                future.cancel()

    @property
    def findings(self) -> Findings:
        """What all jobs have found since ``begin``."""
        return self._findings

    def begin(self, known: Findings | None = None) -> None:
        """Forget what jobs have found, as another search begins."""
        with self._changed:
            self._findings = known or Findings()

    def exchange(self, own: Findings) -> Findings:
        """Add what is known elsewhere; what is known by now."""
        with self._changed:
            self._findings = self._findings.joined(own)
            return self._findings

    def _serve(self, host: Host) -> None:
        """Compute jobs one after another, until the pool is closed or no host is left."""
        place: Host | None = host
        while place is not None and (task := self._next(place)) is not None:
            try:
                answer = place.call(task.job, self.exchange, self._is_over(task))
            except JobLost as loss:
                is_gone = not self._is_closed and not place.revive()
                self._lose(task, place, str(loss), is_gone=is_gone)
                if is_gone:
                    place = self._replaced(place)
            except Exception as error:  # noqa: BLE001 - who waits for the answer gets it
                self._deliver(task, place, error=error)
            else:
                self._deliver(task, place, answer=answer)

    def _is_over(self, task: _Task) -> Callable[[], bool]:
        return lambda: self._is_closed or task.answer.done()

    def _next(self, host: Host) -> _Task | None:
        """A job to compute: one that waits, else a slow one once more; None when the pool is closed."""
        with self._changed:
            while not self._is_closed:
                for done in [task for task in self._waiting if task.answer.done()]:
                    self._waiting.remove(done)
                    self._changed.notify_all()  # who waits for rest
                first = next((task for task in self._waiting if task.host in (None, host)), None)
                if first is not None:
                    self._waiting.remove(first)
                task = first or self._slow()
                if task is not None:
                    task.began_s = time.monotonic()
                    self._running.append(task)
                    return task
                self._changed.wait(LOOK_EVERY_S)
            return None

    def _slow(self) -> _Task | None:
        """The job that has run for longest, where that is suspiciously long and it runs only once."""
        if not self._took_s:
            return None
        limit_s = max(SLOW * median(self._took_s), SLOW_S)
        alone = [
            task
            for task in self._running
            if task.host is None and self._running.count(task) == 1 and not task.answer.done()
        ]
        task = min(alone, key=lambda each: each.began_s, default=None)
        return task if task is not None and time.monotonic() - task.began_s > limit_s else None

    def _deliver(self, task: _Task, host: Host, *, answer: Any = None, error: Exception | None = None) -> None:
        """Take the first answer of a job; another one of the same job is dropped."""
        with self._changed:
            self._running.remove(task)
            self._changed.notify_all()
            if not _is_wanted(task):
                self.num_dropped += 1
                return
            self.num_answers[host.name] += 1
            if task.host is None:
                self._took_s.append(time.monotonic() - task.began_s)
            if error is not None:
                task.answer.set_exception(error)
            else:
                task.answer.set_result(answer)

    def _lose(self, task: _Task, host: Host, reason: str, *, is_gone: bool) -> None:
        """Have the job computed elsewhere, unless it is known already, runs elsewhere, or has cost too many workers;
        a machine that is gone is no fault of the job."""
        with self._changed:
            self._running.remove(task)
            self._changed.notify_all()
            if task.answer.done():
                return
            self.num_lost += 1
            task.num_losses += not is_gone
            runs_elsewhere = task in self._running
            is_given_up = task.num_losses >= MOST_LOSSES and not runs_elsewhere
            if not is_given_up and not runs_elsewhere and task.host is None:
                self._waiting.appendleft(task)
        if task.host is not None:  # who waits for the answer knows where else the job may be computed
            self._fail(task, JobLost(reason))
            return
        self.say(f"lost a worker on {host.name} ({reason}); its job {'is given up' if is_given_up else 'goes on'}")
        if is_given_up:
            message = (
                f"{type(task.job).__name__} ended {task.num_losses} workers, the last one on {host.name}: {reason}"
            )
            self._fail(task, ExecutionError(message))

    def _fail(self, task: _Task, error: Exception) -> None:
        with self._changed:
            if _is_wanted(task):
                task.answer.set_exception(error)

    def _replaced(self, host: Host) -> Host | None:
        """What takes the place of a host that is gone for good: nothing, or if it was the last, the last resort."""
        with self._changed:
            for task in self._waiting:
                if task.host is host:
                    self._fail(task, JobLost(GONE))
            others = [other for other in self._hosts if other is not host]
            successor = self._last_resort() if self._last_resort is not None and not others else None
            self._hosts = others if successor is None else [successor]
        host.close()
        if successor is not None:
            self.say(f"{host.name} is gone, and was the last worker; the search goes on with a process on this machine")
        return successor


def _is_wanted(task: _Task) -> bool:
    """Whether an answer may be given: neither is there one, nor has the job been cancelled, which it cannot be then."""
    return not task.answer.done() and task.answer.set_running_or_notify_cancel()


def wait_for(answer: Future[A], check: Callable[[], None] = lambda: None) -> A:
    """The answer, or what the job or ``check``, which is called every so often, raises."""
    while True:
        try:
            return answer.result(LOOK_EVERY_S / 5)
        except TimeoutError:
            if answer.done():  # the job raised it
                raise
            check()
