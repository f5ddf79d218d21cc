"""Work-conserving scheduling of the tasks of several runs (DOPPLER, Algorithms 1 and 2, and App. C).

A task is ready when all it waits for has ended. A free resource takes, of the ready tasks, the task of the
oldest run with the smallest rank, ties by index. So no resource idles while work for it is ready.

Resources that are in order, streams of GPUs, get tasks earlier. What a task waits for on the same resource need only
have started. If all else that it waits for has started on other resources in order, it is early: it is taken when
nothing is ready, and its resource waits until it can run.

Legend: T tasks, E edges, R resources.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias, TypeVar

import numpy as np

from hsdag.base.errors import ExecutionError
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


def report_uncaught(error: BaseException) -> None:
    """Report an error that nobody can catch, as Python reports errors that end a thread."""
    args = (type(error), error, error.__traceback__, threading.current_thread())
    threading.excepthook(threading.ExceptHookArgs(args))


def call_safely(call: Callable[..., object], *args: object) -> None:
    """Call a function whose errors must not end the thread; they are reported."""
    try:
        call(*args)
    except BaseException as error:  # noqa: BLE001 - not even SystemExit may end it
        report_uncaught(error)


@dataclass(frozen=True, eq=False, slots=True)
class Precedence:
    """Which tasks wait for which.

    Attributes:
        after_start: By task, those that wait for its start, as their resource waits for its end [T].
        after_end: By task, those that wait for its end [T].
        crossing: By task, those of ``after_start`` on other resources [T].
        num_predecessors: Number of tasks that each task waits for [T].
        num_lags: Number of those on other resources whose start is enough [T].
        first: Tasks that wait for none.
    """

    after_start: list[list[int]]
    after_end: list[list[int]]
    crossing: list[list[int]]
    num_predecessors: list[int]
    num_lags: list[int]
    first: list[int]

    @staticmethod
    def of(graph: TaskGraph) -> Precedence:
        """Return which tasks of a graph wait for which."""
        in_order = np.array([r.in_order for r in graph.resources], dtype=np.bool_)[graph.resource]
        before, after = graph.edges.T
        is_queued = in_order[before] & in_order[after]  # [E] the resource of the second task waits, not the engine
        is_crossing = is_queued & (graph.resource[before] != graph.resource[after])
        num_predecessors: list[int] = np.bincount(after, minlength=graph.num_tasks).tolist()
        return Precedence(
            _successors(graph, is_queued),
            _successors(graph, ~is_queued),
            _successors(graph, is_crossing),
            num_predecessors,
            np.bincount(after[is_crossing], minlength=graph.num_tasks).tolist(),
            [task for task, num in enumerate(num_predecessors) if not num],
        )


def _successors(graph: TaskGraph, edges: BoolArray) -> list[list[int]]:
    """Return by task those that wait for it by some of the edges [E]."""
    successors: list[list[int]] = [[] for _ in graph.task_names]
    for before, after in graph.edges[edges].tolist():
        successors[before].append(after)
    return successors


Entry: TypeAlias = tuple[bool, int, float, int, Run]
"""A task that may be started: whether it is early, its run's number, its rank, itself, its run; the least is taken."""


class ReadyTasks:
    """Ready tasks of all runs, and the room that resources have for them.

    ``priority`` [T] orders the tasks of a run, smallest first; with None they are taken in the order in which they
    became ready.
    """

    def __init__(self, graph: TaskGraph, priority: FloatArray | None) -> None:
        self._resource: list[int] = graph.resource.tolist()
        self._priority: list[float] | None = None if priority is None else priority.tolist()
        self._waiting: list[list[Entry]] = [[] for _ in graph.resources]  # heaps [R]
        self._free: list[int] = [r.capacity for r in graph.resources]  # number of tasks that they have room for [R]
        self.touched: deque[int] = deque()  # resources that may be free and have ready tasks

    def add(self, run: Run, task: int, at_s: float) -> None:
        """Add a task that became ready, or early, at a moment."""
        resource = self._resource[task]
        rank = at_s if self._priority is None else self._priority[task]
        heappush(self._waiting[resource], (run.lags[task] > 0, run.number, rank, task, run))
        self.touched.append(resource)

    def take(self) -> Attempt | None:
        """Take the next task for a free resource, one task per resource in turn; None if there is none.

        Once it has started, the resource is to be appended to ``touched`` again: it may have room for more.
        """
        touched = self.touched
        while touched:
            resource = touched.popleft()
            waiting = self._waiting[resource]
            while waiting:
                _, _, _, task, run = waiting[0]
                if run.error is not None or run.has_started(task):
                    heappop(waiting)  # its run has failed, or it was started while it was early
                elif self._free[resource]:
                    heappop(waiting)
                    self._free[resource] -= 1
                    return Attempt(run, task, resource)
                else:
                    break
        return None

    def make_room(self, resource: int) -> None:
        """Make room for one more task on a resource, as one has ended."""
        self._free[resource] += 1
        if self._waiting[resource]:
            self.touched.append(resource)


class Scheduler:
    """The runs in flight and their tasks: begins, fails and ends runs, and starts ready tasks.

    One thread at a time calls its methods. Starting a task never blocks; its end comes through the inbox.

    Args:
        inbox: Inbox to which the back end reports the ends of tasks.
        grace_s: Seconds for tasks of a failed run to end, before the run ends without them.

    Attributes:
        running: Tasks that have started and not ended, of runs that are over too.
        runs: Runs in flight, and when to look at each: at its limit, or the end of its grace.
        look_s: When to look at runs next.
    """

    def __init__(
        self, graph: TaskGraph, backend: Backend, inbox: Inbox, priority: FloatArray | None, grace_s: float
    ) -> None:
        self._graph = graph
        self._backend = backend
        self._inbox = inbox
        self._grace_s = grace_s
        self._precedence = Precedence.of(graph)
        self.ready = ReadyTasks(graph, priority)
        self.running: set[Attempt] = set()
        self.runs: dict[Run, float] = {}
        self.look_s = np.inf

    def begin(self, run: Run, at_s: float) -> None:
        """Begin a run at a moment."""
        run.begun_s = at_s
        self.runs[run] = np.inf if run.limit_s is None else at_s + run.limit_s
        self.look_s = min(self.look_s, self.runs[run])
        run.waits_for, run.lags = self._precedence.num_predecessors.copy(), self._precedence.num_lags.copy()
        for task in self._precedence.first:
            self.ready.add(run, task, at_s)
        if not run.num_left:
            self.end(run)

    def start_ready(self) -> None:
        """Start ready tasks on free resources, one task per resource in turn.

        After a task that ends when it starts, messages and limits come first.
        """
        take, touched = self.ready.take, self.ready.touched
        while touched and (attempt := take()) is not None:
            if self._start(attempt):
                return
            touched.append(attempt.resource)

    def _start(self, attempt: Attempt) -> bool:
        """Start a task, and return whether it is over already."""
        run, task = attempt.run, attempt.task
        now_s = time.perf_counter()
        run.start_s[task] = now_s
        run.num_running += 1
        error = None
        self.running.add(attempt)
        try:
            is_over = self._backend.start(attempt, self._inbox)
        except Exception as raised:  # noqa: BLE001 - whatever a task raises is the failure of its run
            error = without_own_frame(raised)
        else:
            if released := self._precedence.after_start[task]:
                self._release(run, released, now_s)
            if not is_over:
                return False
        self.finish(attempt, time.perf_counter(), error)
        return True

    def finish(self, attempt: Attempt, end_s: float, error: BaseException | None) -> None:
        """Finish a task that ended at a moment, well or with an error; without effect if it was finished before."""
        try:
            self.running.remove(attempt)
        except KeyError:
            return
        run, task = attempt.run, attempt.task
        self.ready.make_room(attempt.resource)
        run.num_running -= 1
        if error is not None:
            self.fail(run, f"{self._graph.where(task)} failed: {one_line(error)}", error)
        elif run.error is None:
            run.end_s[task] = end_s
            run.num_left -= 1
            self._release(run, self._precedence.after_end[task], end_s)
            for waiting in self._precedence.crossing[task]:
                run.lags[waiting] -= 1
                if not run.lags[waiting] and not run.waits_for[waiting] and not run.has_started(waiting):
                    self.ready.add(run, waiting, end_s)  # and no longer early
        if not run.num_running and (not run.num_left or run.error is not None):
            self.end(run)

    def _release(self, run: Run, tasks: list[int], at_s: float) -> None:
        """Tell tasks that something they wait for has started, or ended."""
        for task in tasks:
            run.waits_for[task] -= 1
            if not run.waits_for[task]:
                self.ready.add(run, task, at_s)

    def fail(self, run: Run, reason: str, cause: BaseException | None = None) -> None:
        """Fail a run: start no more of its tasks, ask running ones to end, and wait for them for a while."""
        if cause is not None:
            forget_locals(cause)
        if run.error is not None:
            return
        run.error = ExecutionError(reason)
        run.error.__cause__ = cause
        self.runs[run] = time.perf_counter() + self._grace_s
        self.look_s = min(self.look_s, self.runs[run])
        for attempt in self._attempts(run):
            call_safely(self._backend.cancel, attempt)
        if not run.num_running:
            self.end(run)

    def look(self) -> None:
        """Look at the runs whose time has come."""
        now_s = time.perf_counter()
        for run in [r for r, at_s in self.runs.items() if at_s <= now_s]:
            if run.error is None:
                reason = f"the inference of {self._graph.name!r} took more than {run.limit_s:g} s; it waited for "
                whereabouts = ", ".join(self._graph.where(a.task) for a in self._attempts(run))
                self.fail(run, reason + (whereabouts or "its turn"))
            else:
                self.end(run)  # tasks that still run keep their resource until they end
        self.look_s = min(self.runs.values(), default=np.inf)

    def _attempts(self, run: Run) -> list[Attempt]:
        return sorted((a for a in self.running if a.run is run), key=lambda a: a.task)

    def end(self, run: Run) -> None:
        """End a run, with or without an error; without effect if it has ended."""
        if self.runs.pop(run, None) is None:
            return
        try:
            self._backend.run_ended(run.slot)
        except Exception as error:  # noqa: BLE001 - the thread must live
            if run.error is None:
                reason = f"the inference of {self._graph.name!r} could not be put away: {one_line(error)}"
                run.error = ExecutionError(reason)
                run.error.__cause__ = without_own_frame(error)
            else:
                report_uncaught(error)
        call_safely(run.end)
