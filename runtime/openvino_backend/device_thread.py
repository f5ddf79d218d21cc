"""DeviceThread: the thread in which the infer requests of one device run, one after another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

Job: TypeAlias = Callable[[], None]


class DeviceThread:
    """Runs jobs in the order they are given; begun by the first.

    A job may give the next one itself, which then follows without a change of thread: on a machine whose cores are
    all busy, waking another thread takes up to a slice of the scheduler's, some milliseconds.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._next: Job | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_caller(self) -> bool:
        """Whether the calling thread is this one."""
        return threading.current_thread() is self._thread

    def give(self, job: Job) -> None:
        """Have a job run after those given before."""
        if self._thread is None:
            thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            thread.start()  # may raise where the system has no thread to give; the next job then tries again
            self._thread = thread
        if self.is_caller and self._next is None and self._jobs.empty():
            self._next = job
        else:
            self._jobs.put(job)

    def end(self) -> None:
        """Let the thread end after its jobs, without waiting for it."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, unless it is the caller."""
        if self._thread is not None and not self.is_caller:
            self._thread.join(timeout_s)

    def _main(self) -> None:
        while True:
            job, self._next = self._next, None
            if job is None:
                job = self._jobs.get()
            if job is None:
                return
            job()
            del job
