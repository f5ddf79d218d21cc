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
from collections.abc import Callable, Sequence
from typing import Any

import openvino as ov

from hsdag.ir.reader import last_line
from hsdag.runtime.executor import Attempt, Backend, Inbox
from hsdag.runtime.openvino_backend.cut import MODEL_INPUT, Cut, Tensor
from hsdag.runtime.openvino_backend.device_thread import DeviceThread
from hsdag.runtime.openvino_backend.submodels import Submodel

CLOSE_S = 5.0
"""How long closing waits for each device."""

_infer = ov.InferRequest.__bases__[0].infer  # without the checks of arrays: inputs are bound beforehand

_hung: list[Any] = []
"""Requests that never came back: letting go of one would wait for it for ever."""


class OpenVinoBackend(Backend):
    """Requests of compiled submodels, by slot.

    ``compile_submodel`` compiles subgraph s; again where a request hangs, for others of its stream wait for it.
    """

    is_helped = True

    def __init__(self, cut: Cut, submodels: Sequence[Submodel], compile_submodel: Callable[[int], Any]) -> None:
        self._submodels, self._compile = submodels, compile_submodel
        self._compiled = [compile_submodel(s) for s in range(len(submodels))]
        self._device: list[int] = cut.device.tolist()
        self._threads = [DeviceThread(f"hsdag-device-{d}") for d in range(max(self._device, default=-1) + 1)]
        self._slots: dict[int, list[Any]] = {}
        self._next_slot = 0
        self._stale: set[int] = set()
        self._output_of = {t: (s, k) for s, sub in enumerate(submodels) for k, t in enumerate(sub.outputs)}
        self._inputs = [
            [(k, *self._output_of[t]) for k, t in enumerate(sub.inputs) if t.source != MODEL_INPUT] for sub in submodels
        ]
        self._late = [[bound for bound in inputs if self._is_dynamic(*bound[1:])] for inputs in self._inputs]

    def add_slot(self) -> int:
        """Requests for one more run in flight, their tensors bound; the slot's number."""
        slot = self._next_slot
        self._next_slot += 1
        requests = [compiled.create_infer_request() for compiled in self._compiled]
        for s in range(len(requests)):
            self._bind(s, requests)
        self._slots[slot] = requests
        return slot

    def drop_slot(self, slot: int) -> None:
        """Free the requests of a slot that nothing runs on."""
        self._slots.pop(slot, None)

    def tensor(self, slot: int, tensor: Tensor) -> Any:
        """The ov.Tensor in which a slot holds what a subgraph handed out."""
        s, k = self._output_of[tensor]
        return self._slots[slot][s].get_output_tensor(k)

    def bind_input(self, slot: int, op: int, tensor: Any) -> None:
        """Make every reader of an input of the model read an ov.Tensor. Raises RuntimeError for a misfit."""
        for s, sub in enumerate(self._submodels):
            for k, read in enumerate(sub.inputs):
                if read.source == MODEL_INPUT and read.op == op:
                    self._slots[slot][s].set_input_tensor(k, tensor)

    def start(self, attempt: Attempt, inbox: Inbox) -> bool:
        """Give a request to the thread of its device."""
        task = attempt.task
        if task in self._stale:
            self._renew(task)
        requests = self._slots[attempt.slot]
        for k, source, out in self._late[task]:
            requests[task].set_input_tensor(k, requests[source].get_output_tensor(out))
        request = requests[task]

        def job() -> None:
            try:
                _infer(request, {}, True, False)
            except Exception as error:  # noqa: BLE001 - whatever a plugin raises is the failure of its run
                inbox.failed(attempt, RuntimeError(last_line(error)))
            else:
                inbox.done(attempt)

        self._threads[self._device[task]].give(job)
        return False

    def cancel(self, attempt: Attempt) -> None:
        """Ask the plugin to stop between two ops."""
        with contextlib.suppress(RuntimeError):
            self._slots[attempt.slot][attempt.task].cancel()

    def abandon(self, attempt: Attempt) -> None:
        """Put a hung request and its thread aside; the subgraph is compiled anew before it runs again."""
        device = self._device[attempt.task]
        _hung.append((self._slots[attempt.slot][attempt.task], self._compiled[attempt.task]))
        self._stale.add(attempt.task)
        self._threads[device].end()
        self._threads[device] = DeviceThread(f"hsdag-device-{device}")

    def close(self) -> None:
        """End the threads and let go of all requests."""
        for thread in self._threads:
            thread.end()
        for thread in self._threads:
            thread.join(CLOSE_S)
        self._slots.clear()

    def _renew(self, s: int) -> None:
        """A new compilation of a subgraph for all slots, in place of one that hangs."""
        self._compiled[s] = self._compile(s)
        self._stale.discard(s)
        readers = [r for r, inputs in enumerate(self._inputs) if any(source == s for _, source, _ in inputs)]
        for requests in self._slots.values():
            old, requests[s] = requests[s], self._compiled[s].create_infer_request()
            for k, tensor in enumerate(self._submodels[s].inputs):
                if tensor.source == MODEL_INPUT:
                    requests[s].set_input_tensor(k, old.get_input_tensor(k))
            for r in (s, *readers):
                self._bind(r, requests)

    def _is_dynamic(self, s: int, k: int) -> bool:
        return bool(self._compiled[s].output(k).get_partial_shape().is_dynamic)

    def _bind(self, s: int, requests: list[Any]) -> None:
        """Make a subgraph read the output tensors of those it reads from, where their sizes are known beforehand."""
        for k, source, out in self._inputs[s]:
            if not self._is_dynamic(source, out):
                requests[s].set_input_tensor(k, requests[source].get_output_tensor(out))
