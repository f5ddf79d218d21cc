"""MemoryLedger: the bytes of live tensors on one logical device, and its limit."""

from __future__ import annotations

import threading

import torch

from hsdag.ir.errors import ExecutionError


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

    def take(self, tensor: torch.Tensor) -> None:
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

    def give(self, tensor: torch.Tensor) -> None:
        """A tensor that was taken leaves; it must still be alive."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        with self._lock:
            holders = self._holders.pop(address)
            if holders > 1:
                self._holders[address] = holders - 1
            else:
                self.held_bytes -= storage.nbytes()
