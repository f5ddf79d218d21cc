"""OpenVinoBackend: runs the submodels of a cut through infer requests, one thread per device.

Every slot has a request for each submodel, set up once; what one submodel writes is bound as the input of those that
read it, so nothing is copied between devices that share memory. Devices with memory of their own copy inside their
plugin, which is part of the time of a task.

Requests run synchronously in the thread of their device. OpenVINO's own asynchronous requests have a thread each, and
on a machine whose cores are busy every change of thread may wait for the scheduler: with them Inception-V3 on two
one-thread devices took 0.81 of one device, in device threads 0.72.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import openvino as ov

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.executor import Attempt, Backend, Inbox
from hsdag.runtime.executor.cut import MODEL_INPUT, Cut, Tensor
from hsdag.runtime.executor.shared_memory import SharedMemory
from hsdag.runtime.executor.submodels import Submodel
from hsdag.runtime.platforms.inference import infer_checked, infer_unchecked, reason_of

LEFT_BEHIND: list[Any] = []
"""Requests that failed in a thread of ours.

The CPU plugin leaves their task in its queue (2026.4.1), and runs it before the next one of that thread, or of one in
its place, whatever has become of the request. So these live on, and once there is one, every inference of the process
runs in a thread of the plugin.
"""


def has_open_sizes(model: Any) -> bool:
    """Whether a model has tensors whose size is known only when they are there."""
    return any(port.get_partial_shape().is_dynamic for op in model.get_ops() for port in op.outputs())


class Wiring:
    """Who reads what among the submodels of a cut: ``reads[s]`` are (input, subgraph, output of that subgraph).

    ``model_inputs[op]`` are (subgraph, input) that read an input of the model; ``is_dynamic[s]`` says of each output
    whether its size is known only when it is there, and ``has_open_sizes[s]`` whether that holds of any tensor within.
    """

    def __init__(self, submodels: Sequence[Submodel], compiled: Sequence[Any]) -> None:
        self.output_of = {t: (s, k) for s, sub in enumerate(submodels) for k, t in enumerate(sub.outputs)}
        self.num_outputs = [len(sub.outputs) for sub in submodels]
        self.has_state = [sub.has_state for sub in submodels]
        self.is_dynamic = [[output.get_partial_shape().is_dynamic for output in each.outputs] for each in compiled]
        self.has_open_sizes = [has_open_sizes(sub.model) for sub in submodels]
        self.reads: list[list[tuple[int, int, int]]] = [[] for _ in submodels]
        self.read_by: list[list[tuple[int, int, int]]] = [[] for _ in submodels]  # reader, its input, own output
        self.model_inputs: dict[int, list[tuple[int, int]]] = {}
        for s, sub in enumerate(submodels):
            for k, tensor in enumerate(sub.inputs):
                if tensor.source == MODEL_INPUT:
                    self.model_inputs.setdefault(tensor.op, []).append((s, k))
                else:
                    source, out = self.output_of[tensor]
                    self.reads[s].append((k, source, out))
                    self.read_by[source].append((s, k, out))


class Slot:
    """Requests and the tensors between them; ``compiled`` [S] are what they are made from.

    Only one run may use it at a time. A request that hangs is put aside, and there is none where ``compiled`` has None;
    another takes its place when it is needed. ``shared_outputs(s)`` are outputs of subgraph s, with their number, that
    are to live in memory other than the request's own.
    """

    def __init__(
        self,
        wiring: Wiring,
        compiled: Sequence[Any],
        shared_outputs: Callable[[int], Sequence[tuple[int, Any]]] = lambda _: (),
    ) -> None:
        self._wiring, self._shared_outputs = wiring, shared_outputs
        self._made_from: list[Any] = list(compiled)
        self._requests: list[Any] = [None if each is None else each.create_infer_request() for each in compiled]
        self._given: dict[int, Any] = {}  # by op: the tensor of an input of the model
        self.lock = threading.Lock()  # for who changes requests, and who gives them up
        self._marks: list[Any] = [np.zeros(1, dtype=np.float32) for _ in compiled]
        self._in_thread = [
            not any(found) and not is_open and not has_state
            for found, is_open, has_state in zip(
                wiring.is_dynamic, wiring.has_open_sizes, wiring.has_state, strict=True
            )
        ]
        made = [s for s, request in enumerate(self._requests) if request is not None]
        for s in made:
            self._prepare(s)
        for s in made:
            self._bind(wiring.reads[s], s)

    def tensor(self, tensor: Tensor) -> Any:
        """The ov.Tensor that holds what a subgraph handed out.

        Raises ExecutionError where its inference hung, and was not run again.
        """
        s, k = self._wiring.output_of[tensor]
        if self._requests[s] is None:
            raise ExecutionError("the inference was abandoned, so there is no result; run it again")
        return self._requests[s].get_output_tensor(k)

    def states(self) -> list[Any]:
        """The variables of all subgraphs. Raises ExecutionError where one hung and was not run again."""
        with_state = [r for r, has_state in zip(self._requests, self._wiring.has_state, strict=True) if has_state]
        if None in with_state:
            raise ExecutionError("a part that keeps state was abandoned; create another request")
        return [state for request in with_state for state in request.query_state()]

    def give(self, op: int, tensor: Any) -> None:
        """Make every reader of an input of the model read an ov.Tensor. Raises RuntimeError for a misfit."""
        readers = [(s, k) for s, k in self._wiring.model_inputs.get(op, ()) if self._requests[s] is not None]
        try:
            for s, k in readers:
                self._requests[s].set_input_tensor(k, tensor)
        except RuntimeError:
            for s, k in readers if op in self._given else ():
                self._requests[s].set_input_tensor(k, self._given[op])
            raise
        self._given[op] = tensor

    def infer(
        self, s: int, compiled: Any, begin: Callable[[], None], is_cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        """Run subgraph s, as compiled, in the calling thread. Raises what the plugin does.

        ``begin`` is called with the lock when the slot is about to be touched, and raises where it must not be.

        What runs in the calling thread may fail silently, so the constant output shows whether an inference went
        through. One that did not is run again, checked; where that goes well, once more, which takes what failed out of
        the plugin's queue. Outputs of unknown size cannot be touched after a swallowed error, and state must not change
        twice: subgraphs that have either are checked from the start, and not run again. So are those with tensors of
        unknown size within: what the CPU plugin refused for its sizes it takes when it comes again at once (2026.4.1),
        and computes something with the sizes of before.
        """
        is_fit = self._made_from[s] is compiled and self._requests[s] is not None
        fresh = None if is_fit else compiled.create_infer_request()
        with self.lock:
            begin()
            if fresh is not None:
                self._renew(s, compiled, fresh)
            request, mark = self._requests[s], self._marks[s]
        for k, source, out in self._wiring.reads[s]:
            if self._wiring.is_dynamic[source][out]:
                request.set_input_tensor(k, self._requests[source].get_output_tensor(out))
        if not self._in_thread[s]:
            infer_checked(request)
            return
        if LEFT_BEHIND:
            try:
                infer_checked(request)
            except RuntimeError:
                if is_cancelled():
                    raise
                infer_checked(request)
            return
        mark[0] = 0.0
        infer_unchecked(request)
        if not mark[0]:
            self._repeat(s, request, mark)

    def _repeat(self, s: int, request: Any, mark: Any) -> None:
        """Run again what did not go through in the calling thread. Raises what the plugin does."""
        try:
            infer_checked(request)
        except BaseException:
            LEFT_BEHIND.append(request)
            raise
        mark[0] = 0.0
        infer_unchecked(request)
        self._in_thread[s] = bool(mark[0])  # else nothing was wrong: the plugin does not write constants every time

    def cancel(self, s: int) -> None:
        """Ask the plugin to stop subgraph s between two ops. Raises RuntimeError where it cannot.

        What runs in the calling thread goes on to its end: a task that stops there stays in the plugin's queue.
        """
        if self._requests[s] is not None and (LEFT_BEHIND or not self._in_thread[s]):
            self._requests[s].cancel()

    def put_aside(self, s: int) -> None:
        """Leave a request that hangs to the thread it hangs in: touching it may block or raise."""
        self._requests[s] = None

    def _renew(self, s: int, compiled: Any, request: Any) -> None:
        """Take a request of another compilation; nobody who reads it runs now."""
        self._requests[s], self._made_from[s] = request, compiled
        self._prepare(s)
        for op, readers in self._wiring.model_inputs.items():
            for r, k in readers:
                if r == s and op in self._given:
                    request.set_input_tensor(k, self._given[op])
        self._bind(self._wiring.reads[s], s)
        for r, k, out in self._wiring.read_by[s]:
            self._bind([(k, s, out)], r)

    def _prepare(self, s: int) -> None:
        """Give a new request its outputs."""
        for k, tensor in self._shared_outputs(s):
            if isinstance(tensor, ov.RemoteTensor):  # OpenVINO takes it by name alone, and cannot show it after infer()
                self._requests[s].set_tensor(self._made_from[s].outputs[k].get_any_name(), tensor)
                self._in_thread[s] = False
            else:
                self._requests[s].set_output_tensor(k, tensor)
        # the constant output is written where ``infer`` looks for it
        self._marks[s] = np.zeros(1, dtype=np.float32)
        self._requests[s].set_output_tensor(self._wiring.num_outputs[s], ov.Tensor(self._marks[s], shared_memory=True))

    def _bind(self, reads: Sequence[tuple[int, int, int]], s: int) -> None:
        """Make subgraph s read output tensors of others, where their sizes are known beforehand."""
        for k, source, out in reads:
            if None not in (self._requests[s], self._requests[source]) and not self._wiring.is_dynamic[source][out]:
                self._requests[s].set_input_tensor(k, self._requests[source].get_output_tensor(out))


Job: TypeAlias = Callable[[], None]


class DeviceThread:
    """Runs jobs in the order they are given; begun by the first.

    A job may give the next one itself, which then follows without a change of thread: on a machine whose cores are
    all busy, waking another thread takes up to a slice of the scheduler's, some milliseconds.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._next: Job | None = None
        self._thread: threading.Thread | None = None

    @property
    def is_caller(self) -> bool:
        """Whether the calling thread is this one."""
        return threading.current_thread() is self._thread

    def give(self, job: Job) -> None:
        """Have a job run after those given before."""
        if self._thread is None:
            thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            thread.start()  # may raise where the system has no thread to give; the next job then tries again
            self._thread = thread
        if self.is_caller and self._next is None and self._jobs.empty():
            self._next = job
        else:
            self._jobs.put(job)

    def end(self) -> None:
        """Let the thread end after its jobs, without waiting for it."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, unless it is the caller."""
        if self._thread is not None and not self.is_caller:
            self._thread.join(timeout_s)

    def _main(self) -> None:
        while True:
            job, self._next = self._next, None
            if job is None:
                job = self._jobs.get()
            if job is None:
                return
            job()
            del job


class CompiledSubmodels:
    """What ``compile_submodel`` makes of subgraphs 0 to ``count - 1``. Any thread may call any method.

    An inference that hangs blocks the others of its compiled model, so ``renew`` has the subgraph compiled once more,
    in a thread of its own; whoever wants the subgraph waits for that, and nobody starts a second compilation meanwhile.
    """

    def __init__(self, compile_submodel: Callable[[int], Any], count: int) -> None:
        self._compile = compile_submodel
        self._compiled = [compile_submodel(s) for s in range(count)]
        self._pending: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def renew(self, s: int) -> Future[Any]:
        """Begin to compile subgraph s again."""
        future: Future[Any] = Future()
        with self._lock:
            self._pending[s] = future
        try:
            threading.Thread(target=self._fill, args=(s, future), name=f"hsdag-compile-{s}", daemon=True).start()
        except RuntimeError as error:  # the system has no thread to give
            future.set_exception(error)
        return future

    def _fill(self, s: int, future: Future[Any]) -> None:
        try:
            compiled = self._compile(s)
        except BaseException as error:  # noqa: BLE001 - whatever a plugin raises is the failure of who waits
            future.set_exception(error)
            return
        with self._lock:
            if self._pending.get(s) is future and not self._is_closed:
                self._compiled[s] = compiled
                del self._pending[s]
        future.set_result(compiled)

    def get(self, s: int) -> Any:
        """Subgraph s compiled; waits where it is being compiled, once more where that failed before.

        Raises what the compiler did.
        """
        with self._lock:
            future = self._pending.get(s)
            if future is None:
                return self._compiled[s]
        if future.done() and future.exception() is not None:
            future = self.renew(s)
        return future.result()

    def now(self) -> list[Any]:
        """[S] without waiting: None where a subgraph is being compiled."""
        with self._lock:
            return [None if s in self._pending else compiled for s, compiled in enumerate(self._compiled)]

    def wait(self, timeout_s: float) -> None:
        """Wait until nothing is being compiled any more. Raises ExecutionError after ``timeout_s``."""
        for future in list(self._pending.values()):
            try:
                future.exception(timeout_s)
            except TimeoutError as error:
                reason = f"a device has spent {timeout_s:g} s on compiling a part that hung; it may need a restart"
                raise ExecutionError(reason) from error

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            self._is_closed = True
            self._compiled.clear()


CLOSE_S = 5.0
"""How long closing waits for each device."""
COMPILE_S = 120.0
"""How long an inference waits while a part that hung is compiled again, before its own time limit begins."""


class OpenVinoBackend(Backend):
    """Requests of compiled submodels, by slot.

    ``compile_submodel`` compiles subgraph s; again where a request hangs, for others wait for it. Every device has a
    thread, which runs one request at a time.
    Slots are added, dropped and bound by any thread, but only while no run is on them; the rest is the engine's.
    """

    is_helped = True

    def __init__(
        self,
        cut: Cut,
        submodels: Sequence[Submodel],
        compile_submodel: Callable[[int], Any],
        memory: SharedMemory | None = None,
    ) -> None:
        self._compiled = CompiledSubmodels(compile_submodel, len(submodels))
        self._wiring = Wiring(submodels, self._compiled.now())
        self._device: list[int] = cut.device.tolist()
        self._memory = memory
        self._results = {tensor for _, tensor in cut.results}
        self._submodels = submodels
        num_devices = max(self._device, default=-1) + 1
        self._threads = [DeviceThread(f"hsdag-device-{d}") for d in range(num_devices)]
        self._slots: dict[int, Slot] = {}
        self._numbers = itertools.count()
        self._jobs: dict[Attempt, _Job] = {}  # that have not come back; one who takes a job out reports it or gives up
        self._is_closed = False

    def add_slot(self) -> int:
        """Requests for one more run in flight, their tensors bound; the slot's number.

        Raises ExecutionError when the backend is closed.
        """
        if self._is_closed:
            raise ExecutionError("the executor is closed; compile the model again")
        number = next(self._numbers)
        self._slots[number] = Slot(self._wiring, self._compiled.now(), self._shared_outputs)
        return number

    def _shared_outputs(self, s: int) -> list[tuple[int, Any]]:
        """Outputs of subgraph s that a GPU writes or reads, in memory that spares copies where there is such."""
        if self._memory is None:
            return []
        found = []
        for k, output in enumerate(self._submodels[s].outputs):
            port = self._submodels[s].model.outputs[k]
            if port.get_partial_shape().is_static:
                readers = [self._device[r] for r, _, out in self._wiring.read_by[s] if out == k]
                is_result = output in self._results
                kind, shape = port.get_element_type(), port.get_shape()
                found.append((k, self._memory.tensor(self._device[s], readers, is_result, kind, shape)))
        return [(k, tensor) for k, tensor in found if tensor is not None]

    def drop_slot(self, slot: int) -> None:
        """Free the requests of a slot that nothing runs on."""
        self._slots.pop(slot, None)

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        """Give a request to the thread of its device."""
        job = self._jobs[attempt] = _Job(self, attempt, inbox)
        try:
            self._threads[self._device[attempt.task]].give(job)
        except BaseException:
            self.came_back(attempt)
            raise
        return False

    def cancel(self, attempt: Attempt) -> None:
        """Ask the plugin to stop between two ops."""
        job = self._jobs.get(attempt)
        if job is not None:
            job.cancel()

    def abandon(self, attempt: Attempt) -> None:
        """Put a hung thread and its request aside; the part is compiled again before it runs again."""
        job = self._jobs.pop(attempt, None)
        if job is None:
            return  # it has just come back
        if job.give_up():
            self._compiled.renew(attempt.task)
        device = self._device[attempt.task]
        self._threads[device].end()
        self._threads[device] = DeviceThread(f"hsdag-device-{device}")

    def close(self) -> None:
        """End the threads, and let go of compiled models. Slots keep their tensors until they are dropped."""
        self._is_closed = True
        for thread in self._threads:
            thread.end()
        for thread in self._threads:
            thread.join(CLOSE_S)
        self._compiled.close()

    def await_compiled(self) -> None:
        """Wait while a part that hung is compiled again. Raises ExecutionError after COMPILE_S."""
        self._compiled.wait(COMPILE_S)

    def compiled(self, s: int) -> Any:
        """Subgraph s compiled; called by the thread of its device."""
        return self._compiled.get(s)

    def came_back(self, attempt: Attempt) -> bool:
        """Strike an attempt off those that run; False where it was given up."""
        # of this and abandon, which may run at the same time, only one finds the job
        return self._jobs.pop(attempt, None) is not None

    def slot(self, number: int) -> Slot:
        """A slot by its number."""
        return self._slots[number]


class _Job:
    """One inference of one submodel, for the thread of its device."""

    def __init__(self, backend: OpenVinoBackend, attempt: Attempt, inbox: Inbox) -> None:
        self._backend, self._attempt, self._inbox = backend, attempt, inbox
        self._slot = backend.slot(attempt.slot)
        self._is_cancelled = self._is_given_up = self._has_begun = False

    def __call__(self) -> None:
        """Infer, and report; who reports may go on to start other tasks."""
        error = self._infer()
        if not self._backend.came_back(self._attempt):
            return
        if error is None:
            self._inbox.done(self._attempt)
        else:
            self._inbox.failed(self._attempt, error)

    def _infer(self) -> BaseException | None:
        """Infer; what went wrong, without the frames it went through."""
        task = self._attempt.task
        try:
            if self._is_cancelled:
                raise ExecutionError("cancelled")
            self._slot.infer(task, self._backend.compiled(task), self._begin, lambda: self._is_cancelled)
        except BaseException as raised:  # noqa: BLE001 - whatever a plugin raises is the failure of its run
            return RuntimeError(reason_of(raised))
        return None

    def cancel(self) -> None:
        """Ask the plugin to stop between two ops."""
        self._is_cancelled = True
        with contextlib.suppress(RuntimeError):
            self._slot.cancel(self._attempt.task)

    def _begin(self) -> None:
        """Go on to infer, unless the job was given up meanwhile, and the slot is for others."""
        if self._is_given_up:
            raise ExecutionError("given up")
        self._has_begun = True

    def give_up(self) -> bool:
        """Leave the job to itself; whether it has begun to infer, so that nothing else may touch its request."""
        with self._slot.lock:
            self._is_cancelled = self._is_given_up = True
            if self._has_begun:
                self._slot.put_aside(self._attempt.task)
            return self._has_begun
