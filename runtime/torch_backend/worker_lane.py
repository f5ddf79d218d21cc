"""WorkerLane: a thread that runs the tasks of one resource on the CPU."""

from __future__ import annotations

import threading
import time
from queue import Empty, SimpleQueue

import torch

from hsdag.runtime.executor import Attempt, Inbox
from hsdag.runtime.torch_backend.lane import Lane
from hsdag.runtime.torch_backend.state import RunState
from hsdag.runtime.torch_backend.task_error import task_error

CLOSE_S = 1.0
"""How long closing waits for a task that runs; a thread that hangs longer ends with its task."""

BRIEF_S = 5e-5
"""What handing a task to a thread and hearing of its end takes (benchmarks/torch_engine_overhead.py, one chain); a task
that takes less is not handed over."""

NO_LONGER_BRIEF_S = 10 * BRIEF_S
"""A brief task that took longer than this is handed over again; less may be a thread that was in the way."""

MOST_IN_A_ROW = 50
"""Brief tasks that the engine's thread runs before it gives one away, and so looks at its messages."""

_Item = tuple[Attempt, RunState, Inbox]


class WorkerLane(Lane):
    """Tasks queue up for one thread, which runs torch with ``threads`` threads of its own.

    A task that took less than BRIEF_S when it ran last is run by the engine's thread itself where the lane is idle,
    unless ``always_hand_over``. Torch keeps its number of threads per thread, but MKL for the whole process: while a
    lane is open, matrix products of other threads may use ``threads`` threads too.
    """

    def __init__(self, name: str, threads: int = 1, *, always_hand_over: bool = False) -> None:
        self._name = name
        self._threads = threads
        self._threads_outside = torch.get_num_threads()
        self._brief: set[int] | None = None if always_hand_over else set()
        self._in_a_row = 0
        self._worker = _Worker(name, threads, self._brief)

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Run it or queue it."""
        worker = self._worker
        if self._brief and attempt.task in self._brief and worker.is_idle and self._in_a_row < MOST_IN_A_ROW:
            self._in_a_row += 1
            state.perform(attempt.task)
            if time.perf_counter() - attempt.start_s > NO_LONGER_BRIEF_S:
                self._brief.discard(attempt.task)
            return True
        self._in_a_row = 0
        worker.give((attempt, state, inbox))
        return False

    def abandon(self, attempt: Attempt) -> None:
        """Where the thread hangs in this task, another takes over what waits behind it."""
        if self._worker.current is attempt:
            left, self._worker = self._worker, _Worker(self._name, self._threads, self._brief)
            left.hand_over(self._worker)

    def close(self) -> None:
        """End the thread after the tasks it has."""
        self._worker.stop()
        torch.set_num_threads(self._threads_outside)


class _Worker:
    """A thread and its queue. ``given`` is written by the engine's thread alone, ``done`` by its own."""

    def __init__(self, name: str, threads: int, brief: set[int] | None) -> None:
        self.current: Attempt | None = None
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._given = 0
        self._done = 0
        self._brief = brief
        self._thread = threading.Thread(target=self._main, args=(threads,), name=f"hsdag-{name}", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether it has ended all it was given."""
        return self._given == self._done

    def give(self, item: _Item) -> None:
        """Queue a task."""
        self._given += 1
        self._queue.put(item)

    def hand_over(self, other: _Worker) -> None:
        """Give what is queued to another worker, and end after the present task."""
        try:
            while (item := self._queue.get_nowait()) is not None:
                other.give(item)
        except Empty:
            pass
        self._queue.put(None)

    def stop(self) -> None:
        """End the thread."""
        self._queue.put(None)
        self._thread.join(CLOSE_S)

    def _main(self, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        get = self._queue.get
        while (item := get()) is not None:
            self._perform(*item)
            del item

    def _perform(self, attempt: Attempt, state: RunState, inbox: Inbox) -> None:
        self.current = attempt
        begin_s = time.perf_counter()
        attempt.run.start_s[attempt.task] = begin_s  # when it was taken up, not when it was queued
        failure: BaseException | None = None
        try:
            if not state.is_cancelled:
                state.perform(attempt.task)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the engine must hear of the end
            failure = task_error(error)
        end_s = time.perf_counter()
        if self._brief is not None and end_s - begin_s < BRIEF_S:
            self._brief.add(attempt.task)
        self.current = None
        self._done += 1
        if failure is None:
            inbox.done_at(attempt, end_s)
        else:
            inbox.failed(attempt, failure)
