"""A single-threaded, work-conserving event loop over tasks (DOPPLER, Algorithms 1 and 2, and App. C).

A task is ready when all it waits for has ended. A free resource takes, of the ready tasks, the task of the
oldest run with the smallest rank, ties by index. So no resource idles while work for it is ready. Starting a task
never blocks; its end comes back through the inbox of the engine, from callbacks of any thread.

Resources that are in order, streams of GPUs, get tasks earlier. What a task waits for on the same resource need only
have started. If all else that it waits for has started on other resources in order, it is early: it is taken when
nothing is ready, and its resource waits until it can run.
"""

from __future__ import annotations

import atexit
import heapq
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeAlias, TypeVar

import numpy as np

from hsdag.base.errors import ExecutionError
from hsdag.base.processes import Closing
from hsdag.ir.graph.computation_graph import BoolArray, FloatArray
from hsdag.runtime.executor.tasks import Attempt, Backend, Inbox, Run, TaskGraph

Error = TypeVar("Error", bound=BaseException)


def one_line(error: BaseException) -> str:
    """Return the text of an error on one line, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def without_own_frame(error: Error) -> Error:
    """Return the error without the frame that caught it, which would keep the run alive that holds the error."""
    behind = error.__traceback__
    return error.with_traceback(None if behind is None else behind.tb_next)


def forget_locals(error: BaseException) -> None:
    """Clear the frames behind an error and its causes: they may hold tensors of a device."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        link = chain.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            traceback.clear_frames(link.__traceback__)
            chain += [link.__cause__, link.__context__]


def report(error: BaseException) -> None:
    """Report an error that nobody can catch, as Python reports errors that end a thread."""
    args = (type(error), error, error.__traceback__, threading.current_thread())
    threading.excepthook(threading.ExceptHookArgs(args))


STOP = object()
"""Message after which nothing new begins."""
LONGEST_WAIT_S = 3600.0
"""Longest single wait for a message, in seconds; the system refuses to wait for centuries."""


class Cancellation:
    """A message that ends a run early."""

    def __init__(self, run: Run) -> None:
        self.run = run


Entry: TypeAlias = tuple[bool, int, float, int, Run]
"""A task that may be started: whether it is early, its run's number, its rank, itself, its run; the least is taken."""


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
        self.grace_s = grace_s
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
        self.priority: list[float] | None = None if priority is None else priority.tolist()
        self.resource: list[int] = graph.resource.tolist()
        in_order = np.array([r.in_order for r in graph.resources], dtype=np.bool_)[graph.resource]
        before, after = graph.edges.T
        is_queued = in_order[before] & in_order[after]  # [E] the resource of the second task waits, not the loop
        is_crossing = is_queued & (graph.resource[before] != graph.resource[after])
        self.after_start = _successors(graph, is_queued)
        self.after_end = _successors(graph, ~is_queued)
        self.crossing = _successors(graph, is_crossing)
        self.num_lags: list[int] = np.bincount(graph.edges[is_crossing, 1], minlength=graph.num_tasks).tolist()
        self.num_predecessors: list[int] = np.bincount(graph.edges[:, 1], minlength=graph.num_tasks).tolist()
        self.first = [task for task, num in enumerate(self.num_predecessors) if not num]
        self.ready: list[list[Entry]] = [[] for _ in graph.resources]  # heaps
        self.free: list[int] = [r.capacity for r in graph.resources]
        self.touched: deque[int] = deque()  # resources that may be free and have ready tasks
        self.running: set[Attempt] = set()
        self.runs: dict[Run, float] = {}  # when to look at each run: at its limit, or the end of its grace
        self.look_s = np.inf  # when to look at runs next
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
        queue, look_s = self.inbox.queue, self.look_s
        self.turn_holder = threading.get_ident()
        try:
            while True:
                if time.perf_counter() >= self.look_s:
                    self._look()
                if not self.touched and queue.empty():
                    break
                while not queue.empty():
                    self._handle(*queue.get())
                self._dispatch()
        finally:
            self.turn_holder = None
        if self.look_s < look_s or (self.is_stopping and not self.runs):
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
                if self.is_stopping and not self.runs:
                    return
                wait_s = min(self.look_s - time.perf_counter(), LONGEST_WAIT_S)
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
                self.runs[message] = np.inf
        for run in list(self.runs):
            run.error = run.error or ExecutionError(f"the executor broke down: {defect!r}")
            self._end(run)
        self._call(self.backend.close)

    def _handle(self, message: object, at_s: float, error: BaseException | None) -> None:
        if isinstance(message, Attempt):
            if message in self.running:
                self.running.discard(message)
                self._finish(message, at_s, error)
        elif isinstance(message, Run):
            self._begin(message, at_s)
        elif isinstance(message, Cancellation):
            if message.run in self.runs:
                self._fail(message.run, f"the inference of {self.graph.name!r} was cancelled")
        else:
            self.is_stopping = True
            for run in list(self.runs):
                self._fail(run, f"the executor of {self.graph.name!r} was closed while an inference ran")

    def _begin(self, run: Run, at_s: float) -> None:
        run.begun_s = at_s
        self.runs[run] = np.inf if run.limit_s is None else at_s + run.limit_s
        self.look_s = min(self.look_s, self.runs[run])
        run.waits_for, run.lags = self.num_predecessors.copy(), self.num_lags.copy()
        for task in self.first:
            self._make_ready(run, task, at_s)
        if not run.num_left:
            self._end(run)

    def _make_ready(self, run: Run, task: int, at_s: float) -> None:
        resource = self.resource[task]
        rank = at_s if self.priority is None else self.priority[task]
        heapq.heappush(self.ready[resource], (run.lags[task] > 0, run.number, rank, task, run))
        self.touched.append(resource)

    def _release(self, run: Run, tasks: list[int], at_s: float) -> None:
        """Tell tasks that something they wait for has started, or ended."""
        for task in tasks:
            run.waits_for[task] -= 1
            if not run.waits_for[task]:
                self._make_ready(run, task, at_s)

    def _dispatch(self) -> None:
        """Start ready tasks on free resources, one task per resource in turn.

        After a task that ends when it starts, messages and limits come first.
        """
        touched, free, ready = self.touched, self.free, self.ready
        while touched:
            resource = touched.popleft()
            waiting = ready[resource]
            while waiting and (waiting[0][4].error is not None or waiting[0][4].has_started(waiting[0][3])):
                heapq.heappop(waiting)  # its run has failed, or it was started while it was early
            if not waiting or not free[resource]:
                continue
            _, _, _, task, run = heapq.heappop(waiting)
            free[resource] -= 1
            if self._start(run, task, resource):
                return
            touched.append(resource)  # it may have room for more

    def _start(self, run: Run, task: int, resource: int) -> bool:
        now_s = time.perf_counter()
        attempt = Attempt(run, task, resource)
        run.start_s[task] = now_s
        run.num_running += 1
        error = None
        self.running.add(attempt)
        try:
            is_over = self.backend.start(attempt, self.inbox)
        except Exception as raised:  # noqa: BLE001 - whatever a task raises is the failure of its run
            error = without_own_frame(raised)
        else:
            self._release(run, self.after_start[task], now_s)
            if not is_over:
                return False
        self.running.discard(attempt)
        self._finish(attempt, time.perf_counter(), error)
        return True

    def _finish(self, attempt: Attempt, end_s: float, error: BaseException | None) -> None:
        run, task = attempt.run, attempt.task
        self.free[attempt.resource] += 1
        if self.ready[attempt.resource]:
            self.touched.append(attempt.resource)
        run.num_running -= 1
        if error is not None:
            self._fail(run, f"{self.graph.where(task)} failed: {one_line(error)}", error)
        elif run.error is None:
            run.end_s[task] = end_s
            run.num_left -= 1
            self._release(run, self.after_end[task], end_s)
            for waiting in self.crossing[task]:
                run.lags[waiting] -= 1
                if not run.lags[waiting] and not run.waits_for[waiting] and not run.has_started(waiting):
                    self._make_ready(run, waiting, end_s)  # and no longer early
        if not run.num_running and (not run.num_left or run.error is not None):
            self._end(run)

    def _fail(self, run: Run, reason: str, cause: BaseException | None = None) -> None:
        """Fail a run: start no more of its tasks, ask running ones to end, and wait for them for a while."""
        if cause is not None:
            forget_locals(cause)
        if run.error is not None:
            return
        run.error = ExecutionError(reason)
        run.error.__cause__ = cause
        self.runs[run] = time.perf_counter() + self.grace_s
        self.look_s = min(self.look_s, self.runs[run])
        for attempt in self._attempts(run):
            self._call(self.backend.cancel, attempt)
        if not run.num_running:
            self._end(run)

    def _look(self) -> None:
        """Look at the runs whose time has come."""
        now_s = time.perf_counter()
        for run in [r for r, at_s in self.runs.items() if at_s <= now_s]:
            if run.error is None:
                reason = f"the inference of {self.graph.name!r} took more than {run.limit_s:g} s; it waited for "
                self._fail(run, reason + (self._whereabouts(run) or "its turn"))
            else:
                self._end(run)  # tasks that still run keep their resource until they end
        self.look_s = min(self.runs.values(), default=np.inf)

    def _attempts(self, run: Run) -> list[Attempt]:
        return sorted((a for a in self.running if a.run is run), key=lambda a: a.task)

    def _whereabouts(self, run: Run) -> str:
        return ", ".join(self.graph.where(a.task) for a in self._attempts(run))

    def _end(self, run: Run) -> None:
        if self.runs.pop(run, None) is None:
            return
        try:
            self.backend.run_ended(run.slot)
        except Exception as error:  # noqa: BLE001 - the thread must live
            if run.error is None:
                reason = f"the inference of {self.graph.name!r} could not be put away: {one_line(error)}"
                run.error = ExecutionError(reason)
                run.error.__cause__ = without_own_frame(error)
            else:
                report(error)
        self._call(run.end)

    @staticmethod
    def _call(call: Callable[..., object], *args: object) -> None:
        """Call a function whose errors must not end the thread."""
        try:
            call(*args)
        except BaseException as error:  # noqa: BLE001 - not even SystemExit may end it
            report(error)


def _successors(graph: TaskGraph, edges: BoolArray) -> list[list[int]]:
    """By task, those that wait for it by some of the edges [E]."""
    found: list[list[int]] = [[] for _ in graph.task_names]
    for before, after in graph.edges[edges].tolist():
        found[before].append(after)
    return found


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
