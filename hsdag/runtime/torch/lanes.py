"""Lanes: what carries out the tasks of one resource, one after another, by a thread of the CPU or by CUDA streams."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from hsdag.runtime.executor.openvino_backend import DeviceThread
from hsdag.runtime.executor.tasks import Attempt, Inbox
from hsdag.runtime.torch.buffers import RunState, task_error
from hsdag.runtime.torch.devices import LogicalDevice
from hsdag.runtime.torch.op import Tensor

CLOSE_S = 1.0
"""How long closing waits for what runs; a thread that hangs longer ends with its task, a kernel keeps its tensors."""


class WorkerLane:
    """Tasks queue up for one thread, which runs torch with ``threads`` threads of its own.

    Torch keeps its number of threads per thread, but MKL for the whole process: while a lane is open, matrix products
    of other threads may use ``threads`` threads too.
    """

    def __init__(self, name: str, threads: int = 1) -> None:
        self._threads_outside = torch.get_num_threads()
        self._thread = DeviceThread(f"hsdag-{name}")
        self._thread.give(partial(torch.set_num_threads, threads))
        self._thread.give(partial(torch.set_grad_enabled, False))

    def start(self, attempt: Attempt, state: RunState, inbox: Inbox) -> bool:
        """Queue it."""
        self._thread.give(partial(_perform, attempt, state, inbox))
        return False

    def close(self) -> None:
        """End the thread after the tasks it has."""
        self._thread.close(CLOSE_S)
        torch.set_num_threads(self._threads_outside)


def _perform(attempt: Attempt, state: RunState, inbox: Inbox) -> None:
    attempt.run.start_s[attempt.task] = time.perf_counter()  # when it was taken up, not when it was queued
    failure: BaseException | None = None
    try:
        if not state.is_cancelled:
            state.perform(attempt.task)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the engine must hear of the end
        failure = task_error(error)
    inbox.put(attempt, time.perf_counter(), failure)


_NEVER_FREED: list[object] = []
"""Tensors that kernels may still touch when a lane has closed without seeing their end."""


@dataclass(frozen=True, eq=False)
class _Pending:
    """An enqueued task: the event behind it, and the tensors it touches, kept until the event has passed."""

    event: torch.cuda.Event
    attempt: Attempt | None  # None where it failed while it was enqueued
    state: RunState
    tensors: tuple[Sequence[Tensor], Sequence[Tensor]]


class StreamLane:
    """Tasks are enqueued by the engine's thread; nothing waits.

    There is a stream on each GPU that takes part; that of the last one gets the event. A task is enqueued only after
    the ends of all it reads were seen, and a tensor is dropped only after the ends of all that read it were seen. So
    no stream waits for another, and memory that returns to the allocator of any stream is in use by none.
    """

    def __init__(self, gpus: tuple[torch.device, ...]) -> None:
        self._streams = [torch.cuda.Stream(gpu) for gpu in gpus]  # type: ignore[no-untyped-call]
        self._pending: deque[_Pending] = deque()
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
            self._mark(None, state, (inputs, ()))  # kernels of it may run
            raise task_error(error)  # noqa: B904 - it carries its cause
        self._mark(attempt, state, (inputs, results))
        state.store(attempt.task, results)
        return False

    def poll(self, inbox: Inbox) -> None:
        """Report the tasks whose events have passed, in order."""
        while self._pending:
            each, failure = self._pending[0], None
            try:
                if not each.event.query():  # type: ignore[no-untyped-call]
                    return
                self._events.append(each.event)
            except RuntimeError as error:  # a kernel failed; CUDA says so to whoever asks next
                failure = task_error(error)
            self._pending.popleft()
            if each.attempt is None:
                continue
            now_s, task = time.perf_counter(), each.attempt.task
            if failure is None:
                started = each.attempt.run.start_s  # it was enqueued then; it ran after the one before it
                started[task] = max(started[task], self._last_end_s)
                self._last_end_s = now_s
                each.state.release(task)
            inbox.put(each.attempt, now_s, failure)

    def close(self) -> None:
        """Wait a while for what runs; tensors of what runs longer are never freed."""
        limit_s, inbox = time.perf_counter() + CLOSE_S, Inbox()
        self.poll(inbox)
        while self._pending and time.perf_counter() < limit_s:
            time.sleep(1e-3)
            self.poll(inbox)
        _NEVER_FREED.extend(self._pending)

    def _mark(
        self, attempt: Attempt | None, state: RunState, tensors: tuple[Sequence[Tensor], Sequence[Tensor]]
    ) -> None:
        event = self._events.pop() if self._events else torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._streams[-1])
        self._pending.append(_Pending(event, attempt, state, tensors))


Lane: TypeAlias = WorkerLane | StreamLane
"""Starts the tasks of one device or channel in order; one thread at a time calls the methods."""


def make_lane(device: LogicalDevice, destination: LogicalDevice | None = None) -> Lane:
    """What computes on a device, or copies from it to another one."""
    ends = (device,) if destination is None else (device, destination)
    if all(end.is_cuda for end in ends):
        return StreamLane(tuple(dict.fromkeys(end.physical for end in ends)))
    return WorkerLane("->".join(end.name for end in ends), device.threads if destination is None else 1)
