"""VirtualBackend: tasks that take virtual time, which passes when the engine polls; real time does not matter."""

from __future__ import annotations

import heapq
import threading
from dataclasses import dataclass

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.executor import Attempt, Backend, Inbox


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
