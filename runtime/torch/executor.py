"""TorchExecutor: a placed graph, ready to run inference after inference, work-conserving.

Lanes carry out the tasks of one resource, one after another: a thread of the CPU, or CUDA streams.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.ir.processes import Closing
from hsdag.runtime.executor.engine import GRACE_S, Engine
from hsdag.runtime.executor.openvino_backend import DeviceThread
from hsdag.runtime.executor.tasks import Attempt, Backend, Inbox, Run
from hsdag.runtime.torch.buffers import Inputs, Residents, RunState, task_error
from hsdag.runtime.torch.devices import LogicalDevice
from hsdag.runtime.torch.op import Tensor
from hsdag.runtime.torch.program import Program

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
            state.store(attempt.task, state.works[attempt.task].run(state.inputs(attempt.task)))
            state.release(attempt.task)
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
            each = self._pending[0]
            failure = None
            try:
                if not each.event.query():  # type: ignore[no-untyped-call]
                    return
                self._events.append(each.event)
            except RuntimeError as error:  # a kernel failed; CUDA says so to whoever asks next
                failure = task_error(error)
            self._pending.popleft()
            if each.attempt is None:
                continue
            now_s = time.perf_counter()
            if failure is None:
                started = each.attempt.run.start_s  # it was enqueued then; it ran after the one before it
                started[each.attempt.task] = max(started[each.attempt.task], self._last_end_s)
                self._last_end_s = now_s
                each.state.release(each.attempt.task)
            inbox.put(each.attempt, now_s, failure)

    def close(self) -> None:
        """Wait a while for what runs; tensors of what runs longer are never freed."""
        limit_s = time.perf_counter() + CLOSE_S
        inbox = Inbox()
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


class TorchBackend(Backend):
    """One lane per device and channel: a thread on the CPU, streams on GPUs.

    ``states`` are the inferences in flight by slot; whoever submits a run puts its state there first. Where there are
    threads alone, the one that ends a task starts what waited for it.
    """

    def __init__(self, program: Program) -> None:
        self.states: dict[int, RunState] = {}
        ends = [(resource.device, resource.destination) for resource in program.tasks.resources]
        self._lanes = [make_lane(program.devices[d], None if to is None else program.devices[to]) for d, to in ends]
        self._polled = [lane for lane in self._lanes if isinstance(lane, StreamLane)]
        self.poll_s = 0.0 if self._polled else None  # then streams are enqueued to by one thread alone

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        """Hand it to its lane."""
        return self._lanes[attempt.resource].start(attempt, self.states[attempt.run.slot], inbox)

    def poll(self, inbox: Inbox) -> None:
        """Ask the events of all streams."""
        for lane in self._polled:
            lane.poll(inbox)

    def cancel(self, attempt: Attempt) -> None:
        """What is queued behind a running task is skipped; a kernel or torch op that runs goes on to its end."""
        self.states[attempt.run.slot].is_cancelled = True

    def run_ended(self, slot: int) -> None:
        """Drop its tensors but the results."""
        self.states.pop(slot).end()

    def close(self) -> None:
        """End threads, wait for streams."""
        for lane in self._lanes:
            lane.close()


class TorchExecutor(Closing):
    """Runs a program. ``priority`` [N ops] order ready tasks, smallest first; None takes it as it became ready.

    Close it, or use it as a context manager.

    Raises ExecutionError where a device has no room for the constants of the ops on it.
    """

    def __init__(self, program: Program, *, priority: FloatArray | None = None, grace_s: float = GRACE_S) -> None:
        self.program = program
        task_priority = None if priority is None else program.task_priority(priority)
        self.residents = Residents(program)
        self._backend = TorchBackend(program)
        self.engine = Engine(program.tasks, self._backend, priority=task_priority, grace_s=grace_s)
        self._slots = itertools.count()

    def load(self, inputs: Inputs) -> None:
        """Put inputs where they are read, for all inferences that begin from now on.

        Raises ExecutionError for a name or shape that does not fit, and where there is no room.
        """
        self.residents.load(inputs)

    def begin(self, limit_s: float | None = None) -> tuple[Run, RunState]:
        """Start an inference, which fails after ``limit_s`` seconds; several may be in flight.

        Raises ExecutionError where an input is missing or the executor is closed.
        """
        self.residents.check()
        state = RunState(self.program, self.residents)
        slot = next(self._slots)
        self._backend.states[slot] = state
        try:
            return self.engine.submit(slot, limit_s=limit_s), state
        except BaseException:
            self._backend.run_ended(slot)
            raise

    def submit(self, limit_s: float | None = None) -> TorchRequest:
        """A request whose first inference has begun."""
        request = TorchRequest(self, limit_s)
        request.start_async()
        return request

    def infer(self, inputs: Inputs | None = None, *, limit_s: float | None = None) -> dict[str, Tensor]:
        """Load inputs, if there are any, run an inference and wait for it; see ``TorchRequest.wait``."""
        if inputs is not None:
            self.load(inputs)
        return self.submit(limit_s).wait()

    def close(self) -> None:
        """Cancel what is in flight and end the threads."""
        self.engine.close()


class TorchRequest:
    """One inference at a time, called like a request of OpenVINO's.

    Each fails after ``limit_s`` seconds with an ExecutionError that names op and device.
    """

    def __init__(self, executor: TorchExecutor, limit_s: float | None = None) -> None:
        self.executor = executor
        self._limit_s = limit_s

    def infer(self, **_: object) -> None:
        """Run and wait. Options of OpenVINO's have no meaning here."""
        self.start_async()
        self.wait()

    def start_async(self) -> None:
        """Start an inference, whose times are in ``run`` from its end on."""
        self.run, self._state = self.executor.begin(self._limit_s)

    def wait(self) -> dict[str, Tensor]:
        """The results by name, each on the device that made it, in memory apart from inputs and constants.

        Raises ExecutionError where the inference ended badly.
        """
        self.run.wait()
        return self._state.own_outputs()

    def cancel(self) -> None:
        """End the inference early."""
        self.executor.engine.cancel(self.run)

    @property
    def latency(self) -> float:
        """Seconds that the last inference took."""
        return self.run.makespan_s
