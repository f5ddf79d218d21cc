"""The tensors on devices: residents, which lie there before an inference begins, and those of one inference."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.torch_backend.graph import Tensor
from hsdag.runtime.torch_backend.memory import Buffers, DeviceMemoryError, Ledgers, task_error
from hsdag.runtime.torch_backend.program import UNUSED, Program

Inputs = Mapping[str, Tensor | NDArray[np.generic]]


class Residents:
    """Constants, from the start, and inputs, once loaded. ``held`` [B] has them by buffer.

    ``addresses`` are those of their storages. Raises ExecutionError that names constant and device where there is no
    room.
    """

    def __init__(self, program: Program, ledgers: Ledgers) -> None:
        self._program = program
        self._buffers = Buffers(program, ledgers)
        self.held = self._buffers.values
        self.addresses: frozenset[int] = frozenset()
        try:
            for node, port, buffer in program.constants:
                constant = program.graph.nodes[node].constants[port].detach()  # results keep no activations
                with self._told(f"constant {program.graph.nodes[node].name!r}", buffer):
                    self._buffers.keep(buffer, self._placed(constant, buffer))
            _synchronize(program)
            self._note_addresses()
        except BaseException:
            self.close()
            raise

    def load(self, inputs: Inputs) -> None:
        """Put copies of inputs where they are read. Raises ExecutionError where one does not fit."""
        try:
            for buffer, tensor in self._parts(inputs, copy=True):
                self._buffers.drop(buffer)
                with self._told(f"input {self._program.feeds[buffer].tensor!r}", buffer):
                    self._buffers.keep(buffer, tensor)
        finally:
            self._note_addresses()
        _synchronize(self._program)

    def feed(self, inputs: Inputs) -> dict[int, Tensor]:
        """The parts of inputs by buffer, for one inference. Raises ExecutionError where one is missing or misfits."""
        fed = dict(self._parts(inputs))
        feeds = self._program.feeds.items()
        lacking = dict.fromkeys(repr(feed.tensor) for b, feed in feeds if b not in fed and self.held[b] is None)
        if lacking:
            what = f"{self._program.graph.name!r} has no value for its inputs {', '.join(lacking)}"
            raise ExecutionError(f"{what}; load them or give them")
        if fed:
            _synchronize(self._program)
        return fed

    def close(self) -> None:
        """Let go of everything."""
        for buffer in range(len(self.held)):
            self._buffers.drop(buffer)

    def _parts(self, inputs: Inputs, copy: bool = False) -> Iterable[tuple[int, Tensor]]:
        known = self._program.graph.inputs
        for name in inputs:
            if name not in known:
                raise ExecutionError(f"{self._program.graph.name!r} has no input {name!r}; it has {', '.join(known)}")
        for buffer, feed in self._program.feeds.items():
            if feed.tensor in inputs:
                try:
                    part = feed.cut(tensor_of(inputs[feed.tensor]).detach())
                except (ValueError, TypeError) as error:
                    raise ExecutionError(f"input {feed.tensor!r} of {self._program.graph.name!r}: {error}") from error
                with self._told(f"input {feed.tensor!r}", buffer):
                    placed = self._placed(part, buffer, feed.dtype, copy)
                yield buffer, placed

    def _placed(self, tensor: Tensor, buffer: int, dtype: torch.dtype | None = None, copy: bool = False) -> Tensor:
        """A tensor on the device of a buffer, in memory of its own size."""
        device = self._program.devices[self._program.buffer_device[buffer]].physical
        placed = tensor.to(device=device, dtype=dtype or tensor.dtype, copy=copy).contiguous()
        is_view = placed.untyped_storage().nbytes() > placed.nbytes  # would keep the whole alive
        return placed.clone() if is_view else placed

    @contextmanager
    def _told(self, what: str, buffer: int) -> Iterator[None]:
        """Raise DeviceMemoryError that names ``what`` and the device of its buffer where there is no room."""
        try:
            yield
        except (RuntimeError, DeviceMemoryError) as error:
            told = task_error(error)
            if isinstance(told, DeviceMemoryError):
                device = self._program.devices[self._program.buffer_device[buffer]]
                raise DeviceMemoryError(f"{what} on device {device.name}: {told}") from error
            raise

    def _note_addresses(self) -> None:
        self.addresses = frozenset(x.untyped_storage().data_ptr() for x in self.held if x is not None)


def tensor_of(values: Tensor | NDArray[np.generic]) -> Tensor:
    """The tensor of an array, in the same memory where that may be written to; torch has no other tensors."""
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()
    return torch.as_tensor(values)


def _synchronize(program: Program) -> None:
    """Wait until copies to GPUs, which ran on the caller's streams, are there."""
    for physical in {device.physical for device in program.devices if device.is_cuda}:
        torch.cuda.current_stream(physical).synchronize()


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
            self._buffers.values = [None] * self.program.num_buffers
