"""RunState: the tensors of one inference; each is dropped after its last use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Mapping, Sequence

import torch

from hsdag.runtime.torch_backend.graph import Tensor
from hsdag.runtime.torch_backend.memory import Buffers, Ledgers
from hsdag.runtime.torch_backend.program import UNUSED, Program

KEPT = 1 << 60
"""More uses than any buffer has: for what outlives the inference."""


class RunState:
    """Buffers of one inference, filled and dropped by tasks from any thread.

    ``held`` [B] are tensors that outlive it: constants and inputs that were loaded, with storages at ``addresses``;
    ``fed`` are its own inputs by buffer. Raises DeviceMemoryError where a device has no room for the inputs.

    Every task reads buffers of one device, and writes those of one device; each device has a lock, so that threads of
    different devices do not wait for each other.
    """

    def __init__(
        self,
        program: Program,
        held: Sequence[Tensor | None],
        fed: Mapping[int, Tensor],
        ledgers: Ledgers,
        addresses: Collection[int] = (),
    ) -> None:
        self.program = program
        self.works = program.works
        self.outputs: dict[str, Tensor] | None = None
        self.is_over = False
        self.is_cancelled = False
        self._not_own = {*addresses, *(x.untyped_storage().data_ptr() for x in fed.values())}
        self._device_of = program.buffer_device
        self._buffers = Buffers(program, ledgers, held)
        self._left = [uses if x is None else KEPT for uses, x in zip(program.uses, held, strict=True)]
        self._locks = [threading.Lock() for _ in program.devices]
        try:
            for buffer, tensor in fed.items():
                self._left[buffer] = program.uses[buffer]
                self._buffers.keep(buffer, tensor)
        except BaseException:
            self.end()
            raise

    def inputs(self, task: int) -> list[Tensor]:
        """What a task reads; the engine starts it when all of it is there."""
        values = self._buffers.values
        return [values[b] for b in self.works[task].reads]  # type: ignore[misc]

    def perform(self, task: int) -> None:
        """Run a task from reading to dropping, where its results are there when it returns."""
        self.store(task, self.works[task].run(self.inputs(task)))
        self.release(task)

    def store(self, task: int, results: Sequence[Tensor]) -> None:
        """Keep those results of a task that are read later. Raises DeviceMemoryError where there is no room."""
        writes = self.works[task].writes
        if len(results) < len(writes):
            raise RuntimeError(f"{len(writes)} results are expected, but it returned {len(results)}")
        kept = max(writes, default=UNUSED)  # any of them: all lie on one device
        if kept == UNUSED:
            return
        with self._locks[self._device_of[kept]]:
            if self.is_over:
                return
            self._buffers.keep_all(writes, results)

    def release(self, task: int) -> None:
        """A task has read its inputs; those that no other task reads are dropped."""
        left, reads = self._left, self.works[task].reads
        if not reads:
            return
        with self._locks[self._device_of[reads[0]]]:
            if self.is_over:
                return
            for buffer in reads:
                left[buffer] -= 1
                if not left[buffer]:
                    self._buffers.drop(buffer)

    def own_outputs(self) -> dict[str, Tensor]:
        """The results after a good end; those that show memory of inputs or constants are copied, at the first call.

        So whoever asks may change what they get. On GPUs copies are made on the present stream of the caller.
        """
        with self._locks[0]:
            assert self.outputs is not None
            for name, tensor in self.outputs.items():
                if tensor.is_cuda:  # whoever reads it works on a stream of their own
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
                if self._not_own and tensor.untyped_storage().data_ptr() in self._not_own:
                    self.outputs[name] = tensor.clone()
                    if tensor.is_cuda:  # another thread may ask next
                        torch.cuda.current_stream(tensor.device).synchronize()
            self._not_own.clear()
            return dict(self.outputs)

    def end(self) -> None:
        """Drop everything; the results stay in ``outputs`` where all of them are there."""
        with contextlib.ExitStack() as stack:
            for lock in self._locks:
                stack.enter_context(lock)
            if self.is_over:
                return
            self.is_over = self.is_cancelled = True
            found = {name: self._buffers.values[buffer] for name, buffer in self.program.outputs.items()}
            results = {name: x for name, x in found.items() if x is not None}
            self.outputs = results if len(results) == len(found) else None
            self._buffers.uncount_all()
            self._buffers.values[:] = [None] * self.program.num_buffers
