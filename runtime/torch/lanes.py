"""Lanes: each carries out the tasks of one resource, one after another, on a thread of the CPU or on CUDA streams."""

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
"""How long closing waits for what runs; a thread that hangs longer ends with its task, and keeps the tensors of it."""

Streams: TypeAlias = tuple[torch.cuda.Stream, ...]
_in_use = threading.local()


@cache
def streams_of(resource: str, gpus: tuple[torch.device, ...]) -> Streams:  # noqa: ARG001 - the cache asks
    """Return a stream on each GPU for a resource by its name, the same for all executors until a task hangs on one.

    The allocator keeps what is freed for the stream that it was allocated on, so new streams would need new memory.
    """
    return tuple(torch.cuda.Stream(gpu) for gpu in gpus)  # type: ignore[no-untyped-call]


def use(streams: Streams) -> None:
    """Have the calling thread, the engine's or that of a lane, work on streams of GPUs, without gradients."""
    if getattr(_in_use, "streams", None) is not streams:
        torch.set_grad_enabled(False)
        for stream in streams:
            torch.cuda.set_stream(stream)  # and its GPU
        _in_use.streams = streams


class WorkerLane:
    """Tasks queue up for one thread, which runs torch with ``threads`` threads of its own.

    What it does on GPUs goes to streams of its own, and has ended when a task ends. Torch keeps its number of threads
    per thread, but MKL for the whole process: while a lane is open, matrix products of other threads may use
    ``threads`` threads too.
    """

    def __init__(self, name: str, gpus: tuple[torch.device, ...], threads: int = 1) -> None:
        self._streams = streams_of(name, gpus)
        self._threads_outside = torch.get_num_threads()
        self._thread = DeviceThread(f"hsdag-{name}")
        self._thread.give(partial(torch.set_num_threads, threads))

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Queue it."""
        self._thread.give(partial(self._perform, attempt, state, inbox))
        return False

    def close(self) -> None:
        """End the thread after the tasks it has."""
        self._thread.close(CLOSE_S)
        torch.set_num_threads(self._threads_outside)

    def _perform(self, attempt: Attempt, state: RunState, inbox: Inbox) -> None:
        attempt.run.start_s[attempt.task] = time.perf_counter()  # when it was taken up, not when it was queued
        failure: BaseException | None = None
        try:
            if not state.is_cancelled:
                use(self._streams)
                state.store(attempt.task, state.works[attempt.task].run(state.inputs(attempt.task)))
                for stream in self._streams:
                    stream.synchronize()
                state.release(attempt.task)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the engine must hear of the end
            failure = task_error(error)
        inbox.put(attempt, time.perf_counter(), failure)


class StreamLane:
    """Tasks are enqueued by the engine's thread, which never waits for them; a thread of the lane awaits their ends.

    There is a stream on each GPU that takes part: the first waits for what tasks read of other lanes, and the last has
    the event behind each. A tensor is dropped only after the ends of all that read it were seen, so memory that returns
    to the allocator of any stream is in use by none.
    """

    def __init__(self, name: str, gpus: tuple[torch.device, ...]) -> None:
        self._streams = streams_of(name, gpus)
        self._thread = DeviceThread(f"hsdag-{name}")
        self._last: Enqueued | None = None
        self._last_end_s = 0.0

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Enqueue it. Raises what keeps it from being enqueued, out of memory by its own name."""
        task = attempt.task
        use(self._streams)
        for each in state.enqueued(task):
            if each.lane is not self and not each.is_over:
                self._streams[0].wait_event(each.event)
        inputs = state.inputs(task)
        try:
            results = state.works[task].run(inputs)
        except Exception as error:  # noqa: BLE001 - it is raised again under its own name
            self._mark(Enqueued(self, self._new_event(), [*inputs]), None, state, inbox)  # kernels of it may run
            raise task_error(error)  # noqa: B904 - it carries its cause
        enqueued = Enqueued(self, self._new_event(), [*inputs, *results])
        state.store(task, results, enqueued)
        self._mark(enqueued, attempt, state, inbox)
        return False

    def close(self) -> None:
        """Wait a while for what runs; the thread of what runs longer keeps its tensors, and its streams get no more."""
        self._thread.close(CLOSE_S)
        if self._last is not None and not self._last.is_over:
            streams_of.cache_clear()  # executors to come would hang behind it

    def _new_event(self) -> torch.cuda.Event:
        """Return an event that waits without computing, behind what is enqueued now."""
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._streams[-1])
        return event

    def _mark(self, enqueued: Enqueued, attempt: Attempt | None, state: RunState, inbox: Inbox) -> None:
        before, self._last = self._last, enqueued
        if before is not None and before.is_over:
            before = None  # the stream was idle
        self._thread.give(partial(self._await, enqueued, before, attempt, state, inbox))

    def _await(
        self, enqueued: Enqueued, before: Enqueued | None, attempt: Attempt | None, state: RunState, inbox: Inbox
    ) -> None:
        """Report the end of a task, None for one that could not be enqueued; by the GPU's clock where it was busy."""
        failure: BaseException | None = None
        end_s = 0.0
        try:
            enqueued.event.synchronize()
            end_s = time.perf_counter()
            if before is not None:  # this thread may be late
                since_s = before.event.elapsed_time(enqueued.event) / 1e3
                end_s = min(end_s, self._last_end_s + since_s)
        except RuntimeError as error:  # a kernel failed; CUDA says so to whoever asks next
            failure = task_error(error)
        begin_s, self._last_end_s = self._last_end_s, end_s
        enqueued.is_over = True
        enqueued.tensors.clear()
        if attempt is None:
            return
        if failure is None:
            started = attempt.run.start_s  # it was enqueued then; it ran after the one before it
            started[attempt.task] = max(started[attempt.task], begin_s)
            state.release(attempt.task)
        inbox.put(attempt, end_s, failure)


Lane: TypeAlias = WorkerLane | StreamLane
"""Starts the tasks of one resource in order; one thread at a time calls the methods."""
