"""Backends of tests: tasks that end when the test says so, methods that raise when it says so, and virtual time."""

from __future__ import annotations

import heapq
import threading
import time
from dataclasses import dataclass

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.executor.tasks import Attempt, Backend, Inbox, Resource, TaskGraph


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


@dataclass(frozen=True)
class Span:
    """One task of one run, in virtual seconds."""

    run: int
    slot: int
    task: int
    start_s: float
    end_s: float


class VirtualBackend(Backend):
    """Ends, when polled, all tasks with the earliest end; none while ``gate`` is shut.

    All runs begin at 0, so submit them while the gate is shut. ``duration_s`` [T] should be multiples of a power of
    two, so that sums of them are exact.
    """

    poll_s = 0.0

    def __init__(self, duration_s: FloatArray) -> None:
        self.duration_s: list[float] = duration_s.tolist()
        self.gate = threading.Event()
        self.gate.set()
        self.spans: list[Span] = []  # in order of start
        self.ended_slots: list[int] = []
        self.now_s = 0.0
        self._running: list[tuple[float, int, Attempt]] = []

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:  # noqa: ARG002
        """Set its end."""
        end_s = self.now_s + self.duration_s[attempt.task]
        heapq.heappush(self._running, (end_s, len(self.spans), attempt))
        self.spans.append(Span(attempt.run.number, attempt.slot, attempt.task, self.now_s, end_s))
        return False

    def poll(self, inbox: Inbox) -> None:
        """Go on to the next moment at which something ends."""
        if not self._running or not self.gate.is_set():
            return
        self.now_s = self._running[0][0]
        while self._running and self._running[0][0] == self.now_s:
            attempt = heapq.heappop(self._running)[2]
            inbox.put(attempt, attempt.run.begun_s + self.now_s)

    def run_ended(self, slot: int) -> None:
        """Note it."""
        self.ended_slots.append(slot)
