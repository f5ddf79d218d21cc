"""Backends of tests: tasks that end when the test says so, methods that raise when it says so, and virtual time."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.executor.engine import Engine
from hsdag.runtime.executor.tasks import Attempt, Backend, Inbox, Resource, Run, TaskGraph

FOREVER_S = 60.0


def await_until(holds: Callable[[], object]) -> None:
    patience_s = time.monotonic() + 5 * FOREVER_S
    while not holds():
        assert time.monotonic() < patience_s
        time.sleep(0.0005)


def chain(count: int, num_devices: int = 1) -> TaskGraph:
    """Tasks one after another, on devices in turn."""
    devices = tuple(Resource(f"d{k}", k) for k in range(num_devices))
    edges = [(t, t + 1) for t in range(count - 1)]
    return TaskGraph(tuple(f"t{t}" for t in range(count)), [t % num_devices for t in range(count)], devices, edges)


class HandBackend(Backend):
    """Tasks of ``by_hand`` end through ``end``, all others at once.

    ``raising`` are names of methods that raise, with the number of a task or slot where they raise for that alone.
    """

    def __init__(self, by_hand: frozenset[int] = frozenset(), raising: tuple[str, ...] = ()) -> None:
        self.by_hand, self.raising = by_hand, set(raising)
        self.waiting: list[tuple[Attempt, Inbox]] = []
        self.calls: list[tuple[str, int]] = []  # the method and its task or slot
        self.threads: set[str] = set()

    def note(self, method: str, which: int) -> None:
        self.calls.append((method, which))
        self.threads.add(threading.current_thread().name)
        if self.raising & {method, f"{method} {which}"}:
            raise RuntimeError(f"{method} is\n  broken")

    def calls_of(self, method: str) -> list[int]:
        return [which for name, which in self.calls if name == method]

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        if attempt.task in self.by_hand:
            self.waiting.append((attempt, inbox))
        self.note("start", attempt.task)
        return attempt.task not in self.by_hand

    def cancel(self, attempt: Attempt) -> None:
        self.note("cancel", attempt.task)

    def run_ended(self, slot: int) -> None:
        self.note("run_ended", slot)

    def close(self) -> None:
        self.note("close", 0)

    def await_calls(self, method: str, count: int = 1) -> None:
        """Wait until a method has been called so often."""
        await_until(lambda: len(self.calls_of(method)) >= count)

    def end(self, count: int = 1, error: BaseException | None = None) -> None:
        """End the last of ``count`` tasks by hand, once they have started."""
        await_until(lambda: len(self.waiting) >= count)
        attempt, inbox = self.waiting[count - 1]
        inbox.done(attempt, error)


class VirtualBackend(Backend):
    """Ends tasks in virtual time, all those with the earliest end at once.

    ``duration_s`` [T] should be multiples of a power of two, so that sums of them are exact.
    """

    def __init__(self, duration_s: FloatArray) -> None:
        self.duration_s: list[float] = duration_s.tolist()
        self.starts: list[tuple[float, int, int]] = []  # in virtual seconds, with slot and task
        self._now_s = 0.0
        self._running: list[tuple[float, int, Attempt]] = []

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:  # noqa: ARG002
        """Set its end."""
        end_s = self._now_s + self.duration_s[attempt.task]
        heapq.heappush(self._running, (end_s, len(self.starts), attempt))
        self.starts.append((self._now_s, attempt.run.slot, attempt.task))
        return False

    def run(self, engine: Engine, num_runs: int) -> list[Run]:
        """Run the graph that often; all runs begin at 0."""
        loop, runs = engine._loop, [engine.submit(slot) for slot in range(num_runs)]
        while not all(run.is_over for run in runs):
            await_until(loop.inbox.queue.empty)
            with loop.turn:  # the engine has started all that it can
                now_s = self._now_s = min(self._running, default=(0.0,))[0]
                while self._running and self._running[0][0] == now_s:
                    attempt = heapq.heappop(self._running)[2]
                    loop.inbox.queue.put((attempt, attempt.run.begun_s + now_s, None))
            loop.help()
        return runs
