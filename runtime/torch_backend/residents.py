"""Residents: the tensors that lie on devices before an inference begins, constants and inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.torch_backend.graph import Tensor
from hsdag.runtime.torch_backend.memory import Buffers, DeviceMemoryError, Ledgers, task_error
from hsdag.runtime.torch_backend.program import Program

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
