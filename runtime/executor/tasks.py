"""Tasks on resources (TaskGraph), one execution of them (Run), and the base of what starts them (Backend).

Legend: T tasks, E edges, R resources.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from queue import SimpleQueue

import numpy as np
from numpy.typing import ArrayLike

from hsdag.base.errors import ExecutionError
from hsdag.ir.graph.computation_graph import Csr, FloatArray, IntArray, topological_order
from hsdag.runtime.timeline import OpIntervals, Timeline, TransferIntervals


@dataclass(frozen=True)
class Resource:
    """A device, or, with a ``destination``, the channel from one device to another.

    ``capacity`` is the number of tasks that it takes at once: one for a device that is not to be shared. A resource
    that is ``in_order``, such as a stream of a GPU, runs its tasks in the order of their starts, and itself waits for
    their predecessors on resources in order: these need only have started.
    """

    name: str
    device: int
    destination: int | None = None
    capacity: int = 1
    in_order: bool = False


class TaskGraph:
    """Tasks in the order that breaks ties, their resources, and the edges between them; repeated edges count once.

    ``edges`` [E, 2] are pairs of a task and one that waits for it; ``resource`` [T] indexes
    ``resources``; ``size_bytes`` [T] is what a transfer moves and 0 for others. ``task_types`` [T] are only shown.
    Raises ValueError where tasks wait for each other in a cycle.
    """

    def __init__(
        self,
        task_names: tuple[str, ...],
        resource: ArrayLike,
        resources: tuple[Resource, ...],
        edges: ArrayLike,
        *,
        task_types: tuple[str, ...] | None = None,
        size_bytes: ArrayLike | None = None,
        name: str = "tasks",
    ) -> None:
        count = len(task_names)
        pairs = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
        topological_order(count, pairs[:, 0], pairs[:, 1])
        self.name = name
        self.task_names = task_names
        self.task_types = task_types or ("",) * count
        self.resource: IntArray = np.asarray(resource, dtype=np.int64)
        self.resources = resources
        self.edges: IntArray = np.unique(pairs, axis=0) if len(pairs) else pairs
        self.size_bytes: FloatArray = np.zeros(count) if size_bytes is None else np.asarray(size_bytes, dtype=float)

    @property
    def num_tasks(self) -> int:
        """Return T."""
        return len(self.task_names)

    @cached_property
    def successors(self) -> Csr:
        """Return the tasks that wait for each task."""
        return Csr.build(self.num_tasks, self.edges[:, 0], self.edges[:, 1])

    def timeline(self, start_s: FloatArray, end_s: FloatArray) -> Timeline:
        """Return a timeline of the tasks that ran; starts and ends [T] are seconds from the run's start, else NaN."""
        ran = np.flatnonzero(np.isfinite(end_s))
        device = np.array([r.device for r in self.resources], dtype=np.int64)[self.resource]
        destination = [-1 if r.destination is None else r.destination for r in self.resources]
        to = np.array(destination, dtype=np.int64)[self.resource]
        runs, moves = ran[to[ran] < 0], ran[to[ran] >= 0]
        sent = TransferIntervals(
            op=moves,
            src_device=device[moves],
            dst_device=to[moves],
            start_s=start_s[moves],
            end_s=end_s[moves],
            size_bytes=self.size_bytes[moves],
        )
        return Timeline(
            name=self.name,
            op_names=self.task_names,
            op_types=self.task_types,
            device_names=tuple(r.name for i, r in enumerate(self.resources) if r.device == i and r.destination is None),
            ops=OpIntervals(runs, device[runs], start_s[runs], end_s[runs]),
            transfers=sent,
            edges=self.edges,
            simulated=False,
        )

    def where(self, task: int) -> str:
        """Return a task and its resource, for messages."""
        resource = self.resources[int(self.resource[task])]
        kind = "device" if resource.destination is None else "channel"
        return f"{self.task_names[task]!r} on {kind} {resource.name}"


class Run:
    """One run in flight, made by ``Engine.submit``; ``error`` is why it ends early, None where all tasks end.

    Only waiting and asking are for the caller; all else belongs to the engine.
    """

    def __init__(
        self, graph: TaskGraph, number: int, slot: int, limit_s: float | None, on_end: Callable[[Run], None] | None
    ) -> None:
        self.number = number
        self.slot = slot  # number of the buffers that its tasks use
        self.limit_s = limit_s
        self.error: ExecutionError | None = None
        self.waits_for: list[int] = []
        self.lags: list[int] = []
        self.num_left = graph.num_tasks
        self.num_running = 0
        self.start_s: list[float] = [np.nan] * graph.num_tasks
        self.end_s: list[float] = [np.nan] * graph.num_tasks
        self.begun_s = 0.0
        self.is_in_turn: Callable[[], bool] = bool  # False for every thread, once it is over
        self._graph = graph
        self._on_end = on_end
        self._ended = threading.Event()

    def has_started(self, task: int) -> bool:
        """Return whether a task was started."""
        return self.start_s[task] == self.start_s[task]  # which NaN is not

    @property
    def is_over(self) -> bool:
        """Return whether it has ended."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; return False when it has not come within ``timeout_s``.

        Raises ExecutionError when the run failed, and RuntimeError in ``on_end``, whose thread would wait for itself.
        """
        if self.is_in_turn():
            raise RuntimeError("on_end must not wait for another run: it is called by the thread that runs it")
        if not self._ended.wait(timeout_s):
            return False
        if self.error is not None:
            raise ExecutionError(*self.error.args) from self.error.__cause__  # each waiting thread raises its own
        return True

    @property
    def times(self) -> tuple[FloatArray, FloatArray]:
        """Return [T] when its tasks started and ended, in seconds from its start, NaN for tasks that did not run.

        Raises RuntimeError while it runs.
        """
        if not self.is_over:
            raise RuntimeError("the run has not ended yet")
        start_s, end_s = np.array(self.start_s), np.array(self.end_s)
        before, after = self._graph.edges.T
        np.fmax.at(start_s, after, end_s[before])  # a stream has tasks before what they wait for has ended
        start_s[np.isnan(self.start_s)] = np.nan
        end_s = np.maximum(end_s, start_s)  # a device's clock may be a little behind
        return start_s - self.begun_s, end_s - self.begun_s

    @property
    def makespan_s(self) -> float:
        """Return the seconds from its start to the end of its last task."""
        return float(np.nanmax(self.times[1], initial=0.0))

    @property
    def timeline(self) -> Timeline:
        """Return what ran where and when."""
        return self._graph.timeline(*self.times)

    def end(self) -> None:
        """Notify waiting threads; called once, by the engine."""
        on_end, self._on_end = self._on_end, None
        self.waits_for = []
        self.is_in_turn = bool
        self._ended.set()
        if on_end is not None:
            on_end(self)


@dataclass(eq=False, slots=True)
class Attempt:
    """One start of one task of one run."""

    run: Run
    task: int
    resource: int
    is_cancelled: bool = False  # for back ends: whether it was asked to end early


class Inbox:
    """A queue to which any thread reports ends. ``on_put`` is called after each message."""

    def __init__(self, on_put: Callable[[], None] = lambda: None) -> None:
        self.queue: SimpleQueue[tuple[object, float, BaseException | None]] = SimpleQueue()
        self._on_put = on_put

    def put(self, message: object, at_s: float, error: BaseException | None = None) -> None:
        """Put a message with the moment that it is about."""
        self.queue.put((message, at_s, error))
        self._on_put()

    def done(self, attempt: Attempt, error: BaseException | None = None) -> None:
        """Report that an attempt ended now, well or with an error."""
        self.put(attempt, time.perf_counter(), error)


class Backend(ABC):
    """Base of back ends, which start tasks. One thread at a time calls its methods, ``close`` once at the end.

    That is the engine's own thread or, where no resource is in order, one that reports ends, so that a device can go on
    with its next task without a change of thread.

    Errors of ``cancel`` and ``close`` go to ``threading.excepthook`` and change nothing; errors of ``start`` and
    ``run_ended`` are the failure of the runs concerned.
    """

    @abstractmethod
    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        """Start a task without waiting for it; return True when it is done already, else its end goes to ``inbox``.

        May raise what keeps the task from starting.
        """

    def cancel(self, attempt: Attempt) -> None:  # noqa: B027 - not all tasks can be stopped
        """Ask a running task to end early; its end is still reported."""

    def run_ended(self, slot: int) -> None:  # noqa: B027 - nothing to free
        """Release what a run's slot holds; the run is over, and only tasks that hang still run."""

    def close(self) -> None:  # noqa: B027 - nothing to free
        """Release what the back end holds."""
