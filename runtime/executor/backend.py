"""Backend: starts the tasks of an engine on devices, and reports when they end."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hsdag.runtime.executor.run import Run


class Attempt:
    """One start of one task of one run; an engine ignores the ending of an attempt it has given up."""

    __slots__ = ("resource", "run", "start_s", "task")

    def __init__(self, run: Run, task: int, resource: int, start_s: float) -> None:
        self.run = run
        self.task = task
        self.resource = resource
        self.start_s = start_s

    @property
    def slot(self) -> int:
        """Which set of buffers it works on."""
        return self.run.slot


class Inbox:
    """Where endings are reported, from any thread. ``on_put`` is called after each."""

    def __init__(self, on_put: Callable[[], None] | None = None) -> None:
        self.queue: SimpleQueue[tuple[object, float, BaseException | None]] = SimpleQueue()
        self._on_put = on_put

    def put(self, message: object, at_s: float, error: BaseException | None = None) -> None:
        """A message with the moment it is about."""
        self.queue.put((message, at_s, error))
        if self._on_put is not None:
            self._on_put()

    def done(self, attempt: Attempt) -> None:
        """An attempt ended well, now."""
        self.put(attempt, time.perf_counter())

    def failed(self, attempt: Attempt, error: BaseException) -> None:
        """An attempt ended with an error."""
        self.put(attempt, time.perf_counter(), error)


class Backend(ABC):
    """Starts tasks. One thread at a time calls its methods, ``close`` once, after its last task.

    That is the engine's own thread; with ``is_helped`` it is also the threads that report endings, so that a device can
    go on with its next task without a change of thread.

    What ``cancel``, ``abandon`` and ``close`` raise goes to ``threading.excepthook`` and changes nothing; what
    ``start``, ``poll`` and ``run_ended`` raise is the failure of the runs concerned.

    ``poll_s`` is how often ``poll`` is called while tasks run, in seconds; None for never, 0 for all the time.
    """

    poll_s: float | None = None
    is_helped: bool = False

    @abstractmethod
    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        """Start a task without waiting for it; True when it is done already, else its end goes to ``inbox``.

        May raise what keeps the task from starting.
        """

    def poll(self, inbox: Inbox) -> None:  # noqa: B027 - backends with callbacks need none
        """Report endings that nothing else reports."""

    def cancel(self, attempt: Attempt) -> None:  # noqa: B027 - not all tasks can be stopped
        """Ask a running task to end early; its end is still reported."""

    def abandon(self, attempt: Attempt) -> None:  # noqa: B027 - nothing to replace
        """A running task is given up: the next one of its device and slot must not wait for it."""

    def run_ended(self, slot: int) -> None:  # noqa: B027 - nothing to free
        """A run of a slot is over, well or not, and none of its tasks runs any more."""

    def close(self) -> None:  # noqa: B027 - nothing to free
        """Free what the backend holds."""


class NullBackend(Backend):
    """Tasks that end when they start; ``started`` lists each with its slot."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int]] = []

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:  # noqa: ARG002
        """Note the task and its slot."""
        self.started.append((attempt.task, attempt.slot))
        return True
