"""The memory of devices: counting the tensors that are live on one, and the error where there is no room."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence

import torch

from hsdag.ir.errors import ExecutionError
from hsdag.runtime.torch_backend.device import NO_LIMIT
from hsdag.runtime.torch_backend.graph import Tensor
from hsdag.runtime.torch_backend.program import UNUSED, Program


class DeviceMemoryError(ExecutionError):
    """A device does not have the memory that an op or its constants need."""


class MemoryLedger:
    """Counts each storage once, however many tensors show it. Any thread may call."""

    def __init__(self, device: str, limit_bytes: float) -> None:
        self.device = device
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.peak_bytes = 0
        self._holders: dict[int, int] = {}  # by address of the storage
        self._lock = threading.Lock()

    def take(self, tensor: Tensor) -> None:
        """A tensor has come to the device. Raises DeviceMemoryError, and does not count it, beyond the limit."""
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        with self._lock:
            holders = self._holders.get(address, 0)
            if not holders:
                if self.held_bytes + size > self.limit_bytes:
                    raise DeviceMemoryError(
                        f"out of memory: {size} bytes are needed, but device {self.device} holds {self.held_bytes} of "
                        f"its limit of {self.limit_bytes:.0f}; place less on it or raise its memory_bytes"
                    )
                self.held_bytes += size
                self.peak_bytes = max(self.peak_bytes, self.held_bytes)
            self._holders[address] = holders + 1

    def give(self, tensor: Tensor) -> None:
        """A tensor that was taken leaves; it must still be alive."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        with self._lock:
            holders = self._holders.pop(address)
            if holders > 1:
                self._holders[address] = holders - 1
            else:
                self.held_bytes -= storage.nbytes()


Ledgers = Sequence[MemoryLedger | None]
"""By device; None for devices without a limit, which need no counting."""


def ledgers_of(program: Program, count_all: bool = False) -> Ledgers:
    """A ledger for every device with a limit, or for all."""
    return [
        MemoryLedger(device.name, device.memory_bytes) if count_all or device.memory_bytes < NO_LIMIT else None
        for device in program.devices
    ]


class Buffers:
    """Tensors by buffer: ``values`` [B]. What is kept is counted where its device has a ledger; ``held`` [B] is not."""

    def __init__(self, program: Program, ledgers: Ledgers, held: Sequence[Tensor | None] | None = None) -> None:
        self.values: list[Tensor | None] = [None] * program.num_buffers if held is None else list(held)
        self._ledgers = [ledgers[d] for d in program.buffer_device]
        self._counted: set[int] = set()

    def keep(self, buffer: int, tensor: Tensor) -> None:
        """Put a tensor in. Raises DeviceMemoryError where there is no room."""
        ledger = self._ledgers[buffer]
        if ledger is not None:
            ledger.take(tensor)
            self._counted.add(buffer)
        self.values[buffer] = tensor

    def keep_all(self, buffers: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Put results in, but those that nothing reads."""
        for buffer, tensor in zip(buffers, tensors, strict=False):
            if buffer != UNUSED:
                self.keep(buffer, tensor)

    def drop(self, buffer: int) -> None:
        """Take a tensor out, if there is one."""
        self._uncount(buffer)
        self.values[buffer] = None

    def uncount_all(self) -> None:
        """Count no tensor any more, but leave them in."""
        for buffer in list(self._counted):
            self._uncount(buffer)

    def _uncount(self, buffer: int) -> None:
        if buffer in self._counted:
            ledger, tensor = self._ledgers[buffer], self.values[buffer]
            assert ledger is not None
            assert tensor is not None
            ledger.give(tensor)
            self._counted.discard(buffer)


def task_error(error: BaseException) -> BaseException:
    """The error to report for a task that raised ``error``: one line, and one name for out of memory.

    No tensor stays alive through it.
    """
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__.tb_next)
    text = str(error).strip()
    line = text.splitlines()[0] if text else repr(error)
    if isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in text:
        told: Exception = DeviceMemoryError(f"out of memory: {line}")
    elif line == text:
        return error
    else:
        told = RuntimeError(line)
    told.__cause__ = error
    return told
