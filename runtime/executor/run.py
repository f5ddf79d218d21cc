"""Run: one inference of an engine, from its start to its end, with the times of its tasks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from hsdag.ir.errors import ExecutionError
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.executor.tasks import TaskGraph
from hsdag.runtime.timeline.timeline import OpIntervals, Timeline, TransferIntervals


class RunStatus(Enum):
    """How a run stands."""

    RUNNING = "it runs"
    DONE = "all tasks ended"
    FAILED = "a task failed"
    TIME_LIMIT = "it took longer than its limit"
    CANCELLED = "it was cancelled"


@dataclass(frozen=True, eq=False)
class TaskTimes:
    """When tasks started and ended, in seconds from the start of the run; NaN for tasks that did not run."""

    start_s: FloatArray  # [T]
    end_s: FloatArray  # [T]

    def timeline(self, graph: TaskGraph) -> Timeline:
        """A measured timeline of the tasks that ran, for charts and traces beside simulated ones."""
        ran = np.flatnonzero(np.isfinite(self.end_s))
        device = np.array([r.device for r in graph.resources], dtype=np.int64)
        destination = np.array([-1 if r.destination is None else r.destination for r in graph.resources])
        to = destination[graph.resource[ran]]
        runs, moves = ran[to < 0], ran[to >= 0]
        start_s = np.maximum(self.start_s, 0.0)
        return Timeline(
            name=graph.name,
            op_names=graph.task_names,
            op_types=graph.task_types,
            device_names=graph.device_names,
            ops=OpIntervals(runs, device[graph.resource[runs]], start_s[runs], self.end_s[runs]),
            transfers=TransferIntervals(
                moves,
                device[graph.resource[moves]],
                to[to >= 0].astype(np.int64),
                start_s[moves],
                self.end_s[moves],
                graph.size_bytes[moves],
            ),
            edges=graph.edges,
            simulated=False,
        )


class Run:
    """One run in flight. Made by ``Engine.submit``; everything but waiting and asking is the engine's."""

    def __init__(
        self, graph: TaskGraph, number: int, slot: int, limit_s: float | None, on_end: Callable[[Run], None] | None
    ) -> None:
        self.number = number
        self.slot = slot
        self.limit_s = limit_s
        self.status = RunStatus.RUNNING
        self.error: ExecutionError | None = None
        self.waits_for: list[int] = []
        self.num_left = graph.num_tasks
        self.num_running = 0
        self.level_left: list[int] = []
        self.level = 0
        self.start_s: list[float] = [np.nan] * graph.num_tasks
        self.end_s: list[float] = [np.nan] * graph.num_tasks
        self.begun_s = 0.0
        self.is_in_turn: Callable[[], bool] | None = None
        self._graph = graph
        self._on_end = on_end
        self._ended = threading.Event()

    @property
    def is_over(self) -> bool:
        """Whether it has ended and none of its tasks runs any more."""
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False when it has not come within ``timeout_s``.

        Raises ExecutionError when the run did not end well, and RuntimeError in ``on_end``: the thread that calls it
        would wait for itself.
        """
        is_in_turn = self.is_in_turn
        if not self.is_over and is_in_turn is not None and is_in_turn():
            raise RuntimeError("on_end must not wait for another run: it is called by the thread that runs it")
        if not self._ended.wait(timeout_s):
            return False
        if self.error is not None:
            raise ExecutionError(*self.error.args) from self.error.__cause__  # one of its own for each who waits
        return True

    @property
    def times(self) -> TaskTimes:
        """When its tasks ran. Raises RuntimeError while it runs."""
        if not self.is_over:
            raise RuntimeError("the run has not ended yet")
        start_s = np.array(self.start_s)
        end_s = np.maximum(self.end_s, start_s)  # the clock of a device may be a little behind
        return TaskTimes(start_s - self.begun_s, end_s - self.begun_s)

    @property
    def makespan_s(self) -> float:
        """Seconds from its start to the end of its last task."""
        return float(np.nanmax(self.times.end_s, initial=0.0))

    @property
    def timeline(self) -> Timeline:
        """What ran where and when."""
        return self.times.timeline(self._graph)

    def end(self) -> None:
        """Notify those who wait; called once, by the engine."""
        if self.status is RunStatus.RUNNING:
            self.status = RunStatus.DONE
        on_end, self._on_end = self._on_end, None
        self.waits_for, self.level_left, self.is_in_turn = [], [], None
        self._ended.set()
        if on_end is not None:
            on_end(self)
