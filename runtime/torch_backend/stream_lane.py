"""StreamLane: CUDA streams that run the tasks of one resource; ends are found by asking events."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hsdag.runtime.executor import Attempt, Inbox
from hsdag.runtime.torch_backend.graph import Tensor
from hsdag.runtime.torch_backend.lane import Lane
from hsdag.runtime.torch_backend.memory import task_error
from hsdag.runtime.torch_backend.state import RunState
from hsdag.runtime.torch_backend.streams import has_passed, new_event

CLOSE_S = 1.0
"""How long closing waits for kernels that run."""

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

    ``make_streams`` makes the streams to work on, one for each GPU that takes part; the last gets the event. A task
    is enqueued only after the ends of all it reads were seen, and a tensor is dropped only after the ends of all
    that read it were seen. So no stream waits for another, and memory that returns to the allocator of any stream
    is in use by none.
    """

    def __init__(self, make_streams: Callable[[], tuple[torch.cuda.Stream, ...]]) -> None:
        self._make_streams = make_streams
        self._streams = make_streams()
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
            self._pending, self._streams = deque(), self._make_streams()

    def close(self) -> None:
        """Wait a while for what runs; tensors of what runs longer are never freed."""
        limit_s, inbox = time.perf_counter() + CLOSE_S, Inbox()
        self.poll(inbox)
        while (self._pending or self._left_behind) and time.perf_counter() < limit_s:
            time.sleep(1e-3)
            self.poll(inbox)
        _NEVER_FREED.extend(p for queue in (self._pending, *self._left_behind) for p in queue)

    def _mark(self) -> torch.cuda.Event:
        event = self._events.pop() if self._events else new_event()
        event.record(self._streams[-1])
        return event

    def _report(self, pending: deque[_Pending], inbox: Inbox) -> None:
        while pending:
            first = pending[0]
            try:
                if not has_passed(first.event):
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
