"""An executor of task graphs: threads report and submit by messages, and whoever has the turn handles them."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

import numpy as np

from hsdag.base.errors import ExecutionError
from hsdag.base.processes import Closing
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.executor.scheduler import Scheduler, call_safely
from hsdag.runtime.executor.tasks import Attempt, Backend, Inbox, Run, TaskGraph

STOP = object()
"""Message after which nothing new begins."""
LONGEST_WAIT_S = 3600.0
"""Longest single wait for a message, in seconds; the system refuses to wait for centuries."""


class Cancellation:
    """A message that ends a run early."""

    def __init__(self, run: Run) -> None:
        self.run = run


class Loop:
    """An event loop that handles messages and starts ready tasks, in turns.

    Other threads may put messages into the inbox, and read and write ``is_closed`` and ``is_over`` under the lock; all
    else belongs to the thread whose turn it is, one at a time. The thread that puts a message handles it, with all
    others that have come, and ``main`` begins runs and watches time limits. Where resources are in order, ``main``
    alone takes turns: CUDA's libraries keep handles and workspaces for each thread that enqueues.
    """

    def __init__(self, graph: TaskGraph, backend: Backend, priority: FloatArray | None, grace_s: float) -> None:
        self.graph = graph
        self.backend = backend
        self.alarm: SimpleQueue[None] = SimpleQueue()  # wakes the watching thread, also from finalizers
        has_streams = any(r.in_order for r in graph.resources)
        self.inbox = Inbox(partial(self.alarm.put, None) if has_streams else self.help)
        self.turn = threading.Lock()
        self.turn_holder: int | None = None  # the thread whose turn it is
        self.defect: BaseException | None = None  # an error in a helping thread
        self.thread: threading.Thread | None = None
        self.lock = threading.Lock()
        self.is_closed = False  # nothing more may be submitted
        self.is_over = False  # nobody reads the inbox any more
        self.scheduler = Scheduler(graph, backend, self.inbox, priority, grace_s)
        self.is_stopping = False

    def main(self) -> None:
        """Handle messages until told to stop and all runs are over; then close the backend."""
        try:
            self._watch()
        except BaseException as defect:
            self.shut(defect)
            raise
        self.shut()

    def help(self) -> None:
        """Handle all messages in the inbox, unless another thread has the turn, which then handles them.

        Not to be called by the threads of callers: an interrupt must not break off a turn.
        """
        queue = self.inbox.queue
        while not queue.empty() and self.defect is None:
            if not self.turn.acquire(blocking=False):
                return  # who has the turn looks into the inbox again after giving it up
            try:
                self._take_turn()
            except BaseException as defect:  # noqa: BLE001 - the watching thread ends what is left
                self.defect = defect
                self.alarm.put(None)
            finally:
                self.turn.release()

    def is_in_turn(self) -> bool:
        """Return whether the calling thread has the turn, so that it must not wait for a run or the loop's end."""
        return self.turn_holder == threading.get_ident()

    def _take_turn(self) -> None:
        """Look at limits that have passed, handle all messages, and start ready tasks; the caller has the turn."""
        queue, scheduler = self.inbox.queue, self.scheduler
        look_s = scheduler.look_s
        self.turn_holder = threading.get_ident()
        try:
            while True:
                if time.perf_counter() >= scheduler.look_s:
                    scheduler.look()
                if not scheduler.ready.touched and queue.empty():
                    break
                while not queue.empty():
                    self._handle(*queue.get())
                scheduler.start_ready()
        finally:
            self.turn_holder = None
        if scheduler.look_s < look_s or (self.is_stopping and not scheduler.runs):
            self.alarm.put(None)

    def _watch(self) -> None:
        """Take turns whenever the alarm goes off or a limit comes, until told to stop and all runs are over."""
        while True:
            while not self.alarm.empty():
                self.alarm.get()
            with self.turn:
                if self.defect is not None:
                    raise self.defect
                self._take_turn()
                if self.is_stopping and not self.scheduler.runs:
                    return
                wait_s = min(self.scheduler.look_s - time.perf_counter(), LONGEST_WAIT_S)
            if wait_s > 0 and self.inbox.queue.empty():  # else something came while this thread had the turn
                with suppress(Empty):
                    self.alarm.get(timeout=wait_s)

    def shut(self, defect: BaseException | None = None) -> None:
        """End all runs and close the backend; called by the thread at its end, or by anyone when there is no thread."""
        with self.lock:
            if self.is_over:
                return
            self.is_closed = self.is_over = True
        while not self.inbox.queue.empty():
            message, _, _ = self.inbox.queue.get()
            if isinstance(message, Run):
                self.scheduler.runs[message] = np.inf
        for run in list(self.scheduler.runs):
            run.error = run.error or ExecutionError(f"the executor broke down: {defect!r}")
            self.scheduler.end(run)
        call_safely(self.backend.close)

    def _handle(self, message: object, at_s: float, error: BaseException | None) -> None:
        if isinstance(message, Attempt):
            self.scheduler.finish(message, at_s, error)
        elif isinstance(message, Run):
            self.scheduler.begin(message, at_s)
        elif isinstance(message, Cancellation):
            if message.run in self.scheduler.runs:
                self.scheduler.fail(message.run, f"the inference of {self.graph.name!r} was cancelled")
        else:
            self.is_stopping = True
            for run in list(self.scheduler.runs):
                reason = f"the executor of {self.graph.name!r} was closed while an inference ran"
                self.scheduler.fail(run, reason)


GRACE_S = 1.0
"""Seconds for tasks of a cancelled or failed run to end, before the run ends without them."""
EXIT_S = 5.0
"""Seconds for which the end of the program waits for each engine that was not closed."""


class Engine(Closing):
    """An executor of a task graph, for several runs at once.

    ``priority`` [T] orders ready tasks, smallest first; with None they run in the order in which they became ready.
    Close it, or use it as a context manager; that cancels runs in flight. An unreferenced engine closes itself.
    """

    def __init__(
        self,
        graph: TaskGraph,
        backend: Backend,
        *,
        priority: FloatArray | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self.graph = graph
        self._loop = Loop(graph, backend, priority, grace_s)
        self._number = 0
        self._forget = weakref.finalize(self, _forgotten, self._loop)
        self._forget.atexit = False

    def submit(
        self, slot: int = 0, *, limit_s: float | None = None, on_end: Callable[[Run], None] | None = None
    ) -> Run:
        """Start a run on a slot that no other run in flight uses.

        ``limit_s`` is counted from now. A thread of the engine calls ``on_end``; its errors go to
        ``threading.excepthook``, and it may submit, cancel and close, but not wait. Raises ExecutionError when the
        engine is closed.
        """
        loop = self._loop
        with loop.lock:
            if loop.is_closed:
                raise ExecutionError(f"the executor of {self.graph.name!r} is closed; compile the model again")
            self._start_thread()
            self._number += 1
            run = Run(self.graph, self._number, slot, limit_s, on_end)
            run.is_in_turn = loop.is_in_turn
            loop.inbox.queue.put((run, time.perf_counter(), None))
        loop.alarm.put(None)
        return run

    def _start_thread(self) -> None:
        loop = self._loop
        if loop.thread is None:
            loop.thread = threading.Thread(target=loop.main, name="hsdag-engine", daemon=True)
            try:
                loop.thread.start()
            except BaseException:
                loop.thread = loop.thread if loop.thread.is_alive() else None
                raise
            _WORKING.add(loop)

    def cancel(self, run: Run) -> None:
        """End a run early, so that ``run.wait`` raises; without effect if it is over."""
        if not run.is_over:
            self._loop.inbox.queue.put((Cancellation(run), 0.0, None))
            self._loop.alarm.put(None)

    def close(self) -> None:
        """Cancel runs in flight, end the thread, and close the backend; a second call waits for the same.

        Returns at once if called from ``on_end``.
        """
        _close(self._loop)


def _close(loop: Loop, timeout_s: float | None = None) -> None:
    with loop.lock:
        if not loop.is_closed:
            loop.is_closed = True
            loop.inbox.queue.put((STOP, 0.0, None))
    loop.alarm.put(None)
    if loop.thread is None:
        loop.shut()
    elif loop.thread is not threading.current_thread() and not loop.is_in_turn():
        loop.thread.join(timeout_s)


def _forgotten(loop: Loop) -> None:
    """Stop a loop whose engine is unreferenced, without a lock that the calling thread may hold."""
    loop.inbox.queue.put((STOP, 0.0, None))
    loop.alarm.put(None)
    if loop.thread is None:
        loop.shut()


_WORKING: weakref.WeakSet[Loop] = weakref.WeakSet()
"""Loops with a thread."""


@atexit.register
def _close_all() -> None:
    """Close all engines, as callbacks of devices must not come into an interpreter that is ending."""
    for loop in list(_WORKING):
        _close(loop, EXIT_S)
