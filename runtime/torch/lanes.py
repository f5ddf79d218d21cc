"""Run the tasks of one resource, one after another, on a thread of the CPU or on CUDA streams."""

from __future__ import annotations

import threading
import time
from functools import cache, partial
from typing import TypeAlias

import torch

from hsdag.runtime.executor.openvino_backend import DeviceThread
from hsdag.runtime.executor.tasks import Attempt, Inbox
from hsdag.runtime.torch.buffers import Enqueued, RunState, task_error

CLOSE_S = 1.0
"""Seconds that closing waits for a running task; a thread that takes longer ends with its task.

Until then it keeps the task's tensors.
"""

Streams: TypeAlias = tuple[torch.cuda.Stream, ...]
"""One stream on each GPU that a resource uses."""
_in_use = threading.local()


@cache
def streams_of(resource: str, gpus: tuple[torch.device, ...]) -> Streams:  # noqa: ARG001 - part of the cache's key
    """Return a stream on each GPU for a resource by its name.

    All executors get the same streams until a task hangs on one: the allocator keeps freed memory for the stream that
    it was allocated on, so new streams would need new memory.
    """
    return tuple(torch.cuda.Stream(gpu) for gpu in gpus)  # type: ignore[no-untyped-call]


def use(streams: Streams) -> None:
    """Make the calling thread, the engine's or that of a lane, work on these streams, without gradients."""
    if getattr(_in_use, "streams", None) is not streams:
        torch.set_grad_enabled(False)
        for stream in streams:
            torch.cuda.set_stream(stream)  # which sets its GPU, too
        _in_use.streams = streams


class WorkerLane:
    """A lane whose tasks queue up for one thread.

    Work on GPUs goes to streams of the lane, and has ended when its task ends. Torch keeps its number of threads per
    thread, but MKL for the whole process: while a lane is open, matrix products of other threads may use ``threads``
    threads, too.

    Args:
        gpus: GPUs that tasks copy to or from.
        threads: Number of threads that torch uses for one op.
    """

    def __init__(self, name: str, gpus: tuple[torch.device, ...], threads: int = 1) -> None:
        self._streams = streams_of(name, gpus)
        self._threads_outside = torch.get_num_threads()
        self._thread = DeviceThread(f"hsdag-{name}")
        self._thread.give(partial(torch.set_num_threads, threads))

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Queue a task for the thread."""
        self._thread.give(partial(self._perform, attempt, state, inbox))
        return False

    def close(self) -> None:
        """End the thread after its queued tasks, and wait CLOSE_S for that."""
        self._thread.close(CLOSE_S)
        torch.set_num_threads(self._threads_outside)

    def _perform(self, attempt: Attempt, state: RunState, inbox: Inbox) -> None:
        attempt.run.start_s[attempt.task] = time.perf_counter()  # when it was started, not when it was queued
        failure: BaseException | None = None
        try:
            if not state.is_cancelled:
                use(self._streams)
                state.store(attempt.task, state.works[attempt.task].run(state.inputs(attempt.task)))
                for stream in self._streams:
                    stream.synchronize()
                state.release(attempt.task)
        except BaseException as error:  # noqa: BLE001 - the engine must learn of the end in any case
            failure = task_error(error)
        inbox.put(attempt, time.perf_counter(), failure)


class StreamLane:
    """A lane whose tasks the engine's thread enqueues on streams, without waiting for them to end.

    A thread of the lane waits for the ends. Each GPU that takes part has a stream: the first one waits for results of
    other lanes that a task reads, and on the last one an event is recorded after each task. A tensor is dropped only
    when all tasks that read it have been seen to end, so no stream uses memory that has returned to an allocator.

    Args:
        gpus: The resource's GPU; for a channel between two, the source and the destination.
    """

    def __init__(self, name: str, gpus: tuple[torch.device, ...]) -> None:
        self._streams = streams_of(name, gpus)
        self._thread = DeviceThread(f"hsdag-{name}")
        self._last: Enqueued | None = None
        self._last_end_s = 0.0

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Enqueue a task. Raises RuntimeError, as ``task_error`` words it, if the task cannot be enqueued."""
        task = attempt.task
        use(self._streams)
        for writer in state.enqueued(task):
            if writer.lane is not self and not writer.is_over:
                self._streams[0].wait_event(writer.event)
        inputs = state.inputs(task)
        try:
            results = state.works[task].run(inputs)
        except Exception as error:  # noqa: BLE001 - it is raised again as a task's error
            self._mark(Enqueued(self, self._new_event(), [*inputs]), None, state, inbox)  # some of its kernels may run
            raise task_error(error)  # noqa: B904 - it has its cause already
        enqueued = Enqueued(self, self._new_event(), [*inputs, *results])
        state.store(task, results, enqueued)
        self._mark(enqueued, attempt, state, inbox)
        return False

    def close(self) -> None:
        """Wait CLOSE_S for running tasks.

        If one takes longer, the thread keeps its tensors, and executors to come get new streams.
        """
        self._thread.close(CLOSE_S)
        if self._last is not None and not self._last.is_over:
            streams_of.cache_clear()  # later executors would hang behind the task

    def _new_event(self) -> torch.cuda.Event:
        """Return an event recorded after all that is enqueued now; waiting for it takes no CPU time."""
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._streams[-1])
        return event

    def _mark(self, enqueued: Enqueued, attempt: Attempt | None, state: RunState, inbox: Inbox) -> None:
        """Have the lane's thread wait for an enqueued task; ``attempt`` is None if not all of it was enqueued."""
        before, self._last = self._last, enqueued
        if before is not None and before.is_over:
            before = None  # the stream was idle
        self._thread.give(partial(self._await, enqueued, before, attempt, state, inbox))

    def _await(
        self, enqueued: Enqueued, before: Enqueued | None, attempt: Attempt | None, state: RunState, inbox: Inbox
    ) -> None:
        """Wait for the end of a task, and report it.

        Args:
            before: Task enqueued before it, from whose end the time is measured by the GPU's clock; None if the stream
                was idle.
            attempt: Task to report; None for one that could not be enqueued, whose end is not reported.
        """
        failure: BaseException | None = None
        end_s = 0.0
        try:
            enqueued.event.synchronize()
            end_s = time.perf_counter()
            if before is not None:  # this thread may have woken up late
                since_s = before.event.elapsed_time(enqueued.event) / 1e3
                end_s = min(end_s, self._last_end_s + since_s)
        except RuntimeError as error:  # a kernel failed; CUDA reports that to the next call
            failure = task_error(error)
        begin_s, self._last_end_s = self._last_end_s, end_s
        enqueued.is_over = True
        enqueued.tensors.clear()
        if attempt is None:
            return
        if failure is None:
            started = attempt.run.start_s  # when it was enqueued; it ran only after the task before it
            started[attempt.task] = max(started[attempt.task], begin_s)
            state.release(attempt.task)
        inbox.put(attempt, end_s, failure)


Lane: TypeAlias = WorkerLane | StreamLane
"""A lane starts the tasks of one resource in order; one thread at a time calls its methods."""
