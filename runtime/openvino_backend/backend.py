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
from collections.abc import Callable, Sequence
from typing import Any

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.cutting.cut import Cut
from hsdag.runtime.executor import Attempt, Backend, Inbox
from hsdag.runtime.openvino_backend.compiled_submodels import CompiledSubmodels
from hsdag.runtime.openvino_backend.device_thread import DeviceThread
from hsdag.runtime.openvino_backend.shared_memory import SharedMemory
from hsdag.runtime.openvino_backend.slots import Slot, Wiring
from hsdag.runtime.openvino_backend.submodels import Submodel
from hsdag.runtime.platforms.inference import reason_of

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
