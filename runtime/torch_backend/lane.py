"""Lanes: what carries out the tasks of one resource, one after another; those on the CPU."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from queue import Empty, SimpleQueue

import torch

from hsdag.runtime.executor import Attempt, Inbox
from hsdag.runtime.torch_backend.memory import task_error
from hsdag.runtime.torch_backend.state import RunState

CLOSE_S = 1.0
"""How long closing waits for a task that runs; a thread that hangs longer ends with its task."""

SHORT_BYTES = 64 * 1024
"""Copying this much takes less time than handing it to a thread."""

_Item = tuple[Attempt, RunState, Inbox]


class Lane(ABC):
    """Starts tasks in order. One thread at a time calls the methods."""

    @abstractmethod
    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Start a task; True when it has ended already."""

    def poll(self, inbox: Inbox) -> None:  # noqa: B027 - lanes with threads report by themselves
        """Report tasks that have ended."""

    def abandon(self, attempt: Attempt) -> None:  # noqa: B027 - lanes that end at once have none running
        """Let the tasks behind this one go on without it."""

    def close(self) -> None:  # noqa: B027 - nothing to free
        """Free threads and memory."""


class InlineLane(Lane):
    """Results that are shared, not moved: there is nothing to wait for."""

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:  # noqa: ARG002
        """Do it at once."""
        state.perform(attempt.task)
        return True


class WorkerLane(Lane):
    """Tasks queue up for one thread, which runs torch with ``threads`` threads of its own.

    Torch keeps its number of threads per thread, but MKL for the whole process: while a lane is open, matrix products
    of other threads may use ``threads`` threads too.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._name = name
        self._threads = threads
        self._threads_outside = torch.get_num_threads()
        self._worker = _Worker(name, threads)

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Queue it."""
        self._worker.queue.put((attempt, state, inbox))
        return False

    def abandon(self, attempt: Attempt) -> None:
        """Where the thread hangs in this task, another takes over what waits behind it."""
        if self._worker.current is attempt:
            left, self._worker = self._worker, _Worker(self._name, self._threads)
            left.hand_over(self._worker)

    def close(self) -> None:
        """End the thread after the tasks it has."""
        self._worker.stop()
        torch.set_num_threads(self._threads_outside)


class CopyLane(WorkerLane):
    """Copies within the memory of the CPU: short ones are made at once, they cannot hang."""

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Copy it or queue it."""
        if sum(x.nbytes for x in state.inputs(attempt.task)) > SHORT_BYTES:
            return super().start(attempt, state, inbox)
        state.perform(attempt.task)
        return True


class _Worker:
    """A thread, and the queue that it empties until it finds None."""

    def __init__(self, name: str, threads: int) -> None:
        self.current: Attempt | None = None
        self.queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, args=(threads,), name=f"hsdag-{name}", daemon=True)
        self._thread.start()

    def hand_over(self, other: _Worker) -> None:
        """Give what is queued to another worker, and end after the present task."""
        try:
            while (item := self.queue.get_nowait()) is not None:
                other.queue.put(item)
        except Empty:
            pass
        self.queue.put(None)

    def stop(self) -> None:
        """End the thread."""
        self.queue.put(None)
        self._thread.join(CLOSE_S)

    def _main(self, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        get = self.queue.get
        while (item := get()) is not None:
            self._perform(*item)
            del item

    def _perform(self, attempt: Attempt, state: RunState, inbox: Inbox) -> None:
        self.current = attempt
        attempt.run.start_s[attempt.task] = time.perf_counter()  # when it was taken up, not when it was queued
        failure: BaseException | None = None
        try:
            if not state.is_cancelled:
                state.perform(attempt.task)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the engine must hear of the end
            failure = task_error(error)
        self.current = None
        if failure is None:
            inbox.done(attempt)
        else:
            inbox.failed(attempt, failure)
