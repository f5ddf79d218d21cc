"""HandBackend: tasks that end when the test says so, and methods that raise when it says so."""

from __future__ import annotations

import threading
import time

from hsdag.runtime.executor import Attempt, Backend, Inbox, Resource, TaskGraph


def chain(count: int, num_devices: int = 1) -> TaskGraph:
    """Tasks one after another, on devices in turn."""
    devices = tuple(Resource(f"d{k}", k) for k in range(num_devices))
    edges = [(t, t + 1) for t in range(count - 1)]
    return TaskGraph.of(tuple(f"t{t}" for t in range(count)), [t % num_devices for t in range(count)], devices, edges)


class BrokenBackend(Backend):
    """Tasks that end when they start, but for one that raises."""

    def __init__(self, task: int, message: str) -> None:
        self._task, self._message = task, message

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:  # noqa: ARG002
        if attempt.task == self._task:
            raise RuntimeError(self._message)
        return True


class HandBackend(Backend):
    """Tasks of ``by_hand`` end through ``end``, all others at once.

    ``raising`` are names of methods that raise.
    """

    def __init__(self, by_hand: frozenset[int] = frozenset(), raising: tuple[str, ...] = ()) -> None:
        self.by_hand, self.raising = by_hand, set(raising)
        self.waiting: list[tuple[Attempt, Inbox]] = []
        self.calls: list[tuple[str, int]] = []  # the method and its task or slot
        self.threads: set[str] = set()

    def note(self, method: str, which: int) -> None:
        self.calls.append((method, which))
        self.threads.add(threading.current_thread().name)
        if method in self.raising:
            raise RuntimeError(f"{method} is broken")

    def calls_of(self, method: str) -> list[int]:
        return [which for name, which in self.calls if name == method]

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        if attempt.task in self.by_hand:
            self.waiting.append((attempt, inbox))
        self.note("start", attempt.task)
        return attempt.task not in self.by_hand

    def poll(self, inbox: Inbox) -> None:  # noqa: ARG002
        self.note("poll", 0)

    def cancel(self, attempt: Attempt) -> None:
        self.note("cancel", attempt.task)

    def abandon(self, attempt: Attempt) -> None:
        self.note("abandon", attempt.task)

    def run_ended(self, slot: int) -> None:
        self.note("run_ended", slot)

    def close(self) -> None:
        self.note("close", 0)

    def await_start(self, count: int = 1) -> tuple[Attempt, Inbox]:
        """The last of ``count`` tasks by hand, once they have started."""
        patience_s = time.monotonic() + 60
        while len(self.waiting) < count:
            assert time.monotonic() < patience_s
            time.sleep(0.0005)
        return self.waiting[count - 1]

    def end(self, count: int = 1) -> None:
        """Await a task by hand, and end it."""
        attempt, inbox = self.await_start(count)
        inbox.done(attempt)
