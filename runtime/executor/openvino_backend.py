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
from queue import SimpleQueue
from typing import Any

import numpy as np
import openvino as ov

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.executor import Attempt, Backend, Inbox
from hsdag.runtime.executor.cut import MODEL_INPUT, Cut, Tensor
from hsdag.runtime.executor.shared_memory import SharedMemory
from hsdag.runtime.executor.submodels import Submodel
from hsdag.runtime.machine.inference import infer_checked, infer_unchecked, reason_of

LEFT_BEHIND: list[Any] = []
"""Requests that failed in a thread of ours.

The CPU plugin leaves their task in its queue (2026.4.1), and runs it before the next one of that thread, or of one in
its place, whatever has become of the request. So these live on, and once there is one, every inference of the process
runs in a thread of the plugin.
"""
CLOSE_S = 5.0
"""How long closing waits for each device."""


def has_open_sizes(model: Any) -> bool:
    """Whether a model has tensors whose size is known only when they are there."""
    return any(port.get_partial_shape().is_dynamic for op in model.get_ops() for port in op.outputs())


def passed_on(compiled: Any) -> dict[int, int]:
    """Outputs of unknown size that a compiled model passes on from an input, {output: input}.

    That is so where the plugin has removed every op between them, such as a Convert from f32 to f32. The CPU plugin
    (2026.4.1) then gives zeros, or writes beyond the tensor, when an inference has a smaller size than the one before.
    """
    try:
        results = compiled.get_runtime_model().get_results()
    except RuntimeError:  # a plugin need not show what it runs
        return {}
    inputs = {port.get_node().get_friendly_name(): k for k, port in enumerate(compiled.inputs)}
    source = {result.get_friendly_name(): result.input_value(0).get_node().get_friendly_name() for result in results}
    sources = [source.get(port.get_node().get_friendly_name()) for port in compiled.outputs]
    return {
        k: inputs[name]
        for k, (name, port) in enumerate(zip(sources, compiled.outputs, strict=True))
        if name in inputs and port.get_partial_shape().is_dynamic
    }


class CompiledPart:
    """A submodel compiled on its device, without the outputs that it would only pass on.

    ``passed`` are these with their input, {output: input}; ``position`` has the compiled model's number of every other
    output, and of the constant behind them. ``model`` is None where nothing is left to be run.
    """

    def __init__(self, submodel: Submodel, compile_model: Callable[[ov.Model], Any]) -> None:
        self.model: Any = compile_model(submodel.model)
        self.is_dynamic = [output.get_partial_shape().is_dynamic for output in self.model.outputs]
        self.passed = passed_on(self.model) if any(self.is_dynamic) else {}
        kept = [k for k in range(len(self.is_dynamic)) if k not in self.passed]
        self.position = {k: nth for nth, k in enumerate(kept)}
        if self.passed:
            results, sinks = submodel.model.get_results(), submodel.model.get_sinks()
            rest = ov.Model(
                [results[k] for k in kept], sinks, submodel.model.get_parameters(), submodel.model.get_name()
            )
            self.model = compile_model(rest) if len(kept) > 1 or submodel.has_state else None
        has_open = any(self.is_dynamic) or has_open_sizes(submodel.model)
        self.may_run_unchecked = not has_open and not submodel.has_state


class Wiring:
    """Who reads what among the submodels of a cut: ``reads[s]`` are (input, subgraph, output of that subgraph).

    ``model_inputs[op]`` are (subgraph, input) that read an input of the model; ``inputs[s]`` and ``outputs[s]`` are
    the tensors of each.
    """

    def __init__(self, submodels: Sequence[Submodel], parts: Sequence[CompiledPart]) -> None:
        self.parts = parts
        self.inputs = [sub.inputs for sub in submodels]
        self.outputs = [sub.outputs for sub in submodels]
        self.has_state = [sub.has_state for sub in submodels]
        self.output_of = {t: (s, k) for s, sub in enumerate(submodels) for k, t in enumerate(sub.outputs)}
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
    """Requests and the tensors between them, for one run in flight at a time.

    ``shared_outputs(s)`` are outputs of subgraph s, with their number, that are to live in memory other than the
    request's own.
    """

    def __init__(
        self, wiring: Wiring, shared_outputs: Callable[[int], Sequence[tuple[int, Any]]] = lambda _: ()
    ) -> None:
        self._wiring = wiring
        self._requests: list[Any] = [
            None if part.model is None else part.model.create_infer_request() for part in wiring.parts
        ]
        self._given: dict[int, Any] = {}  # by op: the tensor of an input of the model
        self._marks = [np.zeros(1, dtype=np.float32) for _ in wiring.parts]
        self._in_thread = [part.may_run_unchecked for part in wiring.parts]
        for s, part in enumerate(wiring.parts):
            for k, tensor in shared_outputs(s):
                if isinstance(tensor, ov.RemoteTensor):  # OpenVINO takes it by name alone, and cannot show it later
                    self._requests[s].set_tensor(part.model.outputs[k].get_any_name(), tensor)
                    self._in_thread[s] = False
                else:
                    self._requests[s].set_output_tensor(k, tensor)
            if part.model is not None:  # the constant output is written where ``infer`` looks for it
                mark = ov.Tensor(self._marks[s], shared_memory=True)
                self._requests[s].set_output_tensor(part.position[len(wiring.outputs[s])], mark)
        for s, part in enumerate(wiring.parts):
            for k, source, out in wiring.reads[s]:
                if part.model is not None and not wiring.parts[source].is_dynamic[out]:
                    self._requests[s].set_input_tensor(k, self._output(source, out))

    def tensor(self, tensor: Tensor) -> Any:
        """The ov.Tensor that holds what a subgraph handed out, or the model's input that it passed on."""
        if tensor.source == MODEL_INPUT:
            return self._given[tensor.op]
        return self._output(*self._wiring.output_of[tensor])

    def _output(self, s: int, k: int) -> Any:
        part = self._wiring.parts[s]
        if k in part.passed:
            return self.tensor(self._wiring.inputs[s][part.passed[k]])
        return self._requests[s].get_output_tensor(part.position[k])

    def states(self) -> list[Any]:
        """The variables of all subgraphs."""
        with_state = [r for r, has_state in zip(self._requests, self._wiring.has_state, strict=True) if has_state]
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

    def infer(self, s: int, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Run subgraph s in the calling thread. Raises what the plugin does.

        What runs in the calling thread may fail silently, so the constant output shows whether an inference went
        through. One that did not is run again, checked; where that goes well, once more, which takes what failed out of
        the plugin's queue. Outputs of unknown size cannot be touched after a swallowed error, and state must not change
        twice: subgraphs that have either are checked from the start, and not run again. So are those with tensors of
        unknown size within: what the CPU plugin refused for its sizes it takes when it comes again at once (2026.4.1),
        and computes something with the sizes of before.
        """
        request, mark = self._requests[s], self._marks[s]
        for k, source, out in self._wiring.reads[s]:
            if self._wiring.parts[source].is_dynamic[out]:
                request.set_input_tensor(k, self._output(source, out))
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
        if LEFT_BEHIND or not self._in_thread[s]:
            self._requests[s].cancel()


class DeviceThread:
    """The thread in which the requests of one device run, one at a time; begun by the first job.

    A job may give the next one itself, which then follows without a change of thread: on a machine whose cores are
    all busy, waking another thread takes up to a slice of the scheduler's, some milliseconds.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def give(self, job: Callable[[], None]) -> None:
        """Have a job run after those given before."""
        if self._thread is None:
            thread = threading.Thread(target=self._main, name=self._name, daemon=True)
            thread.start()  # may raise where the system has no thread to give; the next job then tries again
            self._thread = thread
        self._jobs.put(job)

    def end(self) -> None:
        """Let the thread end after its jobs, without waiting for it."""
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, unless it is the caller."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _main(self) -> None:
        for job in iter(self._jobs.get, None):
            job()
            del job


class OpenVinoBackend(Backend):
    """Requests of compiled submodels, by slot; every device has a thread, which runs one request at a time.

    A part whose inference was given up is refused until the device has come back from it.
    Slots are added, dropped and bound by any thread, but only while no run is on them; the rest is the engine's.
    """

    is_helped = True

    def __init__(
        self,
        cut: Cut,
        submodels: Sequence[Submodel],
        parts: Sequence[CompiledPart],
        memory: SharedMemory | None = None,
    ) -> None:
        self._parts = parts
        self._wiring = Wiring(submodels, parts)
        self._device: list[int] = cut.device.tolist()
        self._memory = memory
        self._results = {tensor for _, tensor in cut.results}
        num_devices = max(self._device, default=-1) + 1
        self._threads = [DeviceThread(f"hsdag-device-{d}") for d in range(num_devices)]
        self._slots: dict[int, Slot] = {}
        self._numbers = itertools.count()
        self._jobs: dict[Attempt, _Job] = {}  # that have not come back; who takes a job out reports it or gives it up
        self._given_up: set[int] = set()  # parts whose device has not come back
        self._is_closed = False

    def add_slot(self) -> int:
        """Requests for one more run in flight, their tensors bound; the slot's number.

        Raises ExecutionError when the backend is closed.
        """
        if self._is_closed:
            raise ExecutionError("the executor is closed; compile the model again")
        number = next(self._numbers)
        self._slots[number] = Slot(self._wiring, self._shared_outputs)
        return number

    def _shared_outputs(self, s: int) -> list[tuple[int, Any]]:
        """Outputs of subgraph s that a GPU writes or reads, in memory that spares copies where there is such."""
        model = self._parts[s].model
        if self._memory is None or model is None:
            return []
        found = []
        for k, output in enumerate(self._wiring.outputs[s]):
            if not self._parts[s].is_dynamic[k]:
                port = model.outputs[self._parts[s].position[k]]
                readers = [self._device[r] for r, _, out in self._wiring.read_by[s] if out == k]
                is_result = output in self._results
                kind, shape = port.get_element_type(), port.get_shape()
                tensor = self._memory.tensor(self._device[s], readers, is_result, kind, shape)
                found.append((self._parts[s].position[k], tensor))
        return [(k, tensor) for k, tensor in found if tensor is not None]

    def drop_slot(self, slot: int) -> None:
        """Free the requests of a slot that nothing runs on."""
        self._slots.pop(slot, None)

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        """Give a request to the thread of its device; what is only passed on has been done."""
        if attempt.task in self._given_up:
            raise ExecutionError("the device has not come back from an inference that was given up")
        if self._parts[attempt.task].model is None:
            return True
        job = self._jobs[attempt] = _Job(self, attempt, inbox)
        try:
            self._threads[self._device[attempt.task]].give(job)
        except BaseException:
            self._jobs.pop(attempt, None)
            raise
        return False

    def cancel(self, attempt: Attempt) -> None:
        """Ask the plugin to stop between two ops."""
        job = self._jobs.get(attempt)
        if job is not None:
            job.cancel()

    def abandon(self, attempt: Attempt) -> None:
        """Leave a hung thread with its request to themselves; other parts of the device go on in a new thread."""
        self._given_up.add(attempt.task)  # first: the job may come back at any moment
        if self._jobs.pop(attempt, None) is None:
            self._given_up.discard(attempt.task)
            return
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

    def came_back(self, attempt: Attempt) -> bool:
        """Strike an attempt off those that run; False where it was given up."""
        # of this and abandon, which may run at the same time, only one finds the job
        if self._jobs.pop(attempt, None) is not None:
            return True
        self._given_up.discard(attempt.task)
        return False

    def slot(self, number: int) -> Slot:
        """A slot by its number."""
        return self._slots[number]


class _Job:
    """One inference of one submodel, for the thread of its device."""

    def __init__(self, backend: OpenVinoBackend, attempt: Attempt, inbox: Inbox) -> None:
        self._backend, self._attempt, self._inbox = backend, attempt, inbox
        self._slot = backend.slot(attempt.slot)
        self._is_cancelled = False

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
        try:
            if self._is_cancelled:
                raise ExecutionError("cancelled")
            self._slot.infer(self._attempt.task, lambda: self._is_cancelled)
        except BaseException as raised:  # noqa: BLE001 - whatever a plugin raises is the failure of its run
            return RuntimeError(reason_of(raised))
        return None

    def cancel(self) -> None:
        """Ask the plugin to stop between two ops."""
        self._is_cancelled = True
        with contextlib.suppress(RuntimeError):
            self._slot.cancel(self._attempt.task)
