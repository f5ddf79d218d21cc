"""Lanes: what carries out the tasks of one resource, one after another, by a thread of the CPU or by CUDA streams."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import torch

from hsdag.runtime.executor import Attempt, Inbox
from hsdag.runtime.torch.buffers import RunState, task_error
from hsdag.runtime.torch.devices import LogicalDevice
from hsdag.runtime.torch.graph import Tensor

CLOSE_S = 1.0
"""How long closing waits for what runs; a thread that hangs longer ends with its task, a kernel keeps its tensors."""

SHORT_BYTES = 64 * 1024
"""Copying this much takes less time than handing it to a thread."""

_Item = tuple[Attempt, RunState, Inbox]


def device_lane(device: LogicalDevice) -> Lane:
    """What computes on a device."""
    if device.is_cuda:
        return StreamLane((device.physical,))
    return WorkerLane(device.name, device.threads)


def channel_lane(source: LogicalDevice, destination: LogicalDevice) -> Lane:
    """What copies from one device to another."""
    name = f"{source.name}->{destination.name}"
    if source.is_cuda and destination.is_cuda:
        return StreamLane(tuple(dict.fromkeys((source.physical, destination.physical))))
    return WorkerLane(name) if source.is_cuda or destination.is_cuda else CopyLane(name)


class Lane(ABC):
    """Starts tasks in order. One thread at a time calls the methods."""

    @abstractmethod
    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Start a task; True when it has ended already."""

    def poll(self, inbox: Inbox) -> None:  # noqa: B027 - lanes with threads report by themselves
        """Report tasks that have ended."""

    @abstractmethod
    def abandon(self, attempt: Attempt) -> None:
        """Let the tasks behind this one go on without it."""

    @abstractmethod
    def close(self) -> None:
        """Free threads and memory."""


class WorkerLane(Lane):
    """Tasks queue up for one thread, which runs torch with ``threads`` threads of its own.

    Torch keeps its number of threads per thread, but MKL for the whole process: while a lane is open, matrix products
    of other threads may use ``threads`` threads too.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._name = name
        self._threads = threads
        self._threads_outside = torch.get_num_threads()
        self._worker = _Worker(name, threads)

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Queue it."""
        self._worker.queue.put((attempt, state, inbox))
        return False

    def abandon(self, attempt: Attempt) -> None:
        """Where the thread hangs in this task, another takes over what waits behind it."""
        if self._worker.current is attempt:
            left, self._worker = self._worker, _Worker(self._name, self._threads)
            left.hand_over(self._worker)

    def close(self) -> None:
        """End the thread after the tasks it has."""
        self._worker.stop()
        torch.set_num_threads(self._threads_outside)


class CopyLane(WorkerLane):
    """Copies within the memory of the CPU: short ones are made at once, they cannot hang."""

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Copy it or queue it."""
        if sum(x.nbytes for x in state.inputs(attempt.task)) > SHORT_BYTES:
            return super().start(attempt, state, inbox)
        state.perform(attempt.task)
        return True


class _Worker:
    """A thread, and the queue that it empties until it finds None."""

    def __init__(self, name: str, threads: int) -> None:
        self.current: Attempt | None = None
        self.queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, args=(threads,), name=f"hsdag-{name}", daemon=True)
        self._thread.start()

    def hand_over(self, other: _Worker) -> None:
        """Give what is queued to another worker, and end after the present task."""
        try:
            while (item := self.queue.get_nowait()) is not None:
                other.queue.put(item)
        except Empty:
            pass
        self.queue.put(None)

    def stop(self) -> None:
        """End the thread."""
        self.queue.put(None)
        self._thread.join(CLOSE_S)

    def _main(self, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        get = self.queue.get
        while (item := get()) is not None:
            self._perform(*item)
            del item

    def _perform(self, attempt: Attempt, state: RunState, inbox: Inbox) -> None:
        self.current = attempt
        attempt.run.start_s[attempt.task] = time.perf_counter()  # when it was taken up, not when it was queued
        failure: BaseException | None = None
        try:
            if not state.is_cancelled:
                state.perform(attempt.task)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the engine must hear of the end
            failure = task_error(error)
        self.current = None
        if failure is None:
            inbox.done(attempt)
        else:
            inbox.failed(attempt, failure)


_NEVER_FREED: list[object] = []
"""Tensors that kernels may still touch when a lane has closed without seeing their end."""


@dataclass(frozen=True, eq=False)
class _Pending:
    """An enqueued task: the event behind it, and the tensors it touches, kept until the event has passed."""

    event: torch.cuda.Event
    attempt: Attempt | None  # None where it failed while it was enqueued
    state: RunState
    tensors: tuple[Sequence[Tensor], Sequence[Tensor]]


class StreamLane(Lane):
    """Tasks are enqueued by the engine's thread; nothing waits.

    There is a stream on each GPU that takes part; that of the last one gets the event. A task is enqueued only after
    the ends of all it reads were seen, and a tensor is dropped only after the ends of all that read it were seen. So
    no stream waits for another, and memory that returns to the allocator of any stream is in use by none.
    """

    def __init__(self, gpus: tuple[torch.device, ...]) -> None:
        self._gpus = gpus
        self._streams = self._new_streams()
        self._pending: deque[_Pending] = deque()
        self._left_behind: list[deque[_Pending]] = []
        self._events: list[torch.cuda.Event] = []
        self._last_end_s = 0.0

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:  # noqa: ARG002
        """Enqueue it. Raises what keeps it from being enqueued, out of memory by its own name."""
        for stream in self._streams:
            torch.cuda.set_stream(stream)  # and its GPU
        inputs = state.inputs(attempt.task)
        try:
            with torch.no_grad():
                results = state.works[attempt.task].run(inputs)
        except Exception as error:  # noqa: BLE001 - it is raised again under its own name
            self._pending.append(_Pending(self._mark(), None, state, (inputs, ())))  # kernels of it may run
            raise task_error(error)  # noqa: B904 - it carries its cause
        self._pending.append(_Pending(self._mark(), attempt, state, (inputs, results)))
        state.store(attempt.task, results)
        return False

    def poll(self, inbox: Inbox) -> None:
        """Report the tasks whose events have passed, in order."""
        self._report(self._pending, inbox)
        for pending in self._left_behind:
            self._report(pending, inbox)
        self._left_behind = [pending for pending in self._left_behind if pending]

    def abandon(self, attempt: Attempt) -> None:
        """Go on with new streams; the old ones' tensors are kept until their events pass."""
        if any(p.attempt is attempt for p in self._pending):
            self._left_behind.append(self._pending)
            self._pending, self._streams = deque(), self._new_streams()

    def close(self) -> None:
        """Wait a while for what runs; tensors of what runs longer are never freed."""
        limit_s, inbox = time.perf_counter() + CLOSE_S, Inbox()
        self.poll(inbox)
        while (self._pending or self._left_behind) and time.perf_counter() < limit_s:
            time.sleep(1e-3)
            self.poll(inbox)
        _NEVER_FREED.extend(p for queue in (self._pending, *self._left_behind) for p in queue)

    def _new_streams(self) -> list[torch.cuda.Stream]:
        return [torch.cuda.Stream(gpu) for gpu in self._gpus]  # type: ignore[no-untyped-call]

    def _mark(self) -> torch.cuda.Event:
        event = self._events.pop() if self._events else torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._streams[-1])
        return event

    def _report(self, pending: deque[_Pending], inbox: Inbox) -> None:
        while pending:
            first = pending[0]
            try:
                if not first.event.query():  # type: ignore[no-untyped-call]
                    return
            except RuntimeError as error:  # a kernel failed; CUDA says so to whoever asks next
                pending.popleft()
                if first.attempt is not None:
                    inbox.failed(first.attempt, task_error(error))
                continue
            pending.popleft()
            self._events.append(first.event)
            if first.attempt is not None:
                self._finish(first.attempt, first.state, inbox)

    def _finish(self, attempt: Attempt, state: RunState, inbox: Inbox) -> None:
        now_s = time.perf_counter()
        started = attempt.run.start_s  # it was enqueued then; it ran after the one before it at the earliest
        started[attempt.task] = max(started[attempt.task], self._last_end_s)
        self._last_end_s = now_s
        state.release(attempt.task)
        inbox.put(attempt, now_s)
