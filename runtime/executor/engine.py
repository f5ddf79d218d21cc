"""Engine: a single-threaded, work-conserving event loop over tasks (DOPPLER, Algorithms 1 and 2, and App. C).

A task is ready when all it waits for has ended. A resource that is free takes, of the ready tasks, the one of the
oldest run with the smallest rank, ties by index. So no resource idles while work for it is ready. Starting a task
never blocks; its end comes back through the inbox of the engine, from callbacks of any thread.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np

from hsdag.ir.errors import ExecutionError
from hsdag.ir.graph import FloatArray
from hsdag.runtime.executor.backend import Backend
from hsdag.runtime.executor.loop import STOP, Cancellation, Loop
from hsdag.runtime.executor.run import Run
from hsdag.runtime.executor.tasks import TaskGraph

GRACE_S = 1.0
"""How long tasks of a run that was cancelled or failed may take to end, before they are given up."""
EXIT_S = 5.0
"""How long the end of the program waits for each engine that was not closed."""


class Engine:
    """Runs a task graph, several times at once if asked.

    ``ranks`` [T] order ready tasks, smallest first; None takes them as they became ready. With ``barrier`` a level
    of the graph begins when the one before it has ended altogether: bulk-synchronous, for comparison. Close it, or
    use it as a context manager; what is still in flight then is cancelled. An engine that is forgotten closes itself.
    """

    def __init__(
        self,
        graph: TaskGraph,
        backend: Backend,
        *,
        ranks: FloatArray | None = None,
        barrier: bool = False,
        grace_s: float = GRACE_S,
    ) -> None:
        if ranks is not None and (ranks.shape != (graph.num_tasks,) or np.isnan(ranks).any()):
            raise ValueError(f"ranks must be {graph.num_tasks} numbers, one for each task")
        if not grace_s >= 0:
            raise ValueError(f"grace_s must be 0 or more seconds, not {grace_s}")
        self.graph = graph
        self._loop = Loop(graph, backend, ranks, barrier, grace_s)
        self._number = 0
        self._forget = weakref.finalize(self, _forgotten, self._loop)
        self._forget.atexit = False

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self, slot: int = 0, *, limit_s: float | None = None, on_end: Callable[[Run], None] | None = None
    ) -> Run:
        """Start a run on a slot, which no other run in flight may use; ``on_end`` is called by a thread of the engine.

        ``limit_s`` is counted from now. What ``on_end`` raises goes to ``threading.excepthook``; it may submit,
        cancel and close, but not wait. Raises ExecutionError when the engine is closed, and ValueError when the slot
        is in use or the limit is not a positive number.
        """
        if limit_s is not None and not limit_s > 0:
            raise ValueError(f"limit_s must be a positive number of seconds, not {limit_s}")
        loop = self._loop
        with loop.lock:
            if loop.is_closed:
                raise ExecutionError(f"the executor of {self.graph.name!r} is closed; compile the model again")
            if slot in loop.slots:
                raise ValueError(f"slot {slot} of {self.graph.name!r} is used by a run in flight; wait for its end")
            self._start_thread()
            self._number += 1
            run = Run(self.graph, self._number, slot, limit_s, on_end)
            run.is_in_turn = loop.is_in_turn
            loop.slots.add(slot)
            loop.inbox.queue.put((run, time.perf_counter(), None))
        loop.alarm.set()
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

    def is_in_turn(self) -> bool:
        """Whether the calling thread does the engine's work just now, as in ``on_end``, and must not wait."""
        return self._loop.is_in_turn()

    def cancel(self, run: Run) -> None:
        """End a run early; ``run.wait`` then raises. Nothing happens where it is over."""
        if not run.is_over:
            self._loop.inbox.queue.put((Cancellation(run), 0.0, None))
            self._loop.alarm.set()

    def close(self) -> None:
        """Cancel what is in flight, end the thread, and close the backend; called again, wait for the same.

        Called from ``on_end`` it returns at once.
        """
        _close(self._loop)


def _close(loop: Loop, timeout_s: float | None = None) -> None:
    with loop.lock:
        if not loop.is_closed:
            loop.is_closed = True
            loop.inbox.queue.put((STOP, 0.0, None))
    loop.alarm.set()
    if loop.thread is None:
        loop.shut()
    elif loop.thread is not threading.current_thread() and not loop.is_in_turn():
        loop.thread.join(timeout_s)


def _forgotten(loop: Loop) -> None:
    """Stop a loop whose engine nobody holds any more; takes no lock that the thread it is called in may hold."""
    loop.inbox.queue.put((STOP, 0.0, None))
    loop.alarm.set()
    if loop.thread is None:
        loop.shut()


_WORKING: weakref.WeakSet[Loop] = weakref.WeakSet()
"""Loops with a thread."""


@atexit.register
def _close_all() -> None:
    """Callbacks of devices must not come into an interpreter that is ending."""
    for loop in list(_WORKING):
        _close(loop, EXIT_S)
