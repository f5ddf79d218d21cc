"""LogicalDevice: a device to place ops on, which may be a whole GPU, a part of one, or a thread of the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hsdag.ir.errors import DeviceError, OptionError

NO_LIMIT = float("inf")


@dataclass(frozen=True)
class LogicalDevice:
    """A name for people, the torch device behind it, and how much of that it may use.

    Several may be on one physical device: on a GPU each has a compute stream of its own, on the CPU a worker
    thread. ``share`` in (0, 1] sets that part of a GPU's multiprocessors aside for it, where green contexts can be
    had; None lets it use them all. ``threads`` is what one op may use on the CPU. ``memory_bytes`` bounds the
    tensors that are live on it, constants and inputs included, without what kernels need inside.

    Raises OptionError for figures out of range, DeviceError for a device torch does not have here.
    """

    name: str
    torch_device: str = "cpu"
    share: float | None = None
    memory_bytes: float = NO_LIMIT
    threads: int = 1

    def __post_init__(self) -> None:
        if self.share is not None and not 0 < self.share <= 1:
            raise OptionError(f"the share of device {self.name!r} must lie above 0 and up to 1, not {self.share:g}")
        if not self.memory_bytes > 0:
            raise OptionError(f"the memory of device {self.name!r} must be positive, not {self.memory_bytes:g} bytes")
        if self.threads < 1:
            raise OptionError(f"device {self.name!r} needs at least one thread, not {self.threads}")
        if self.torch_device != "cpu":
            self._check_cuda()

    def _check_cuda(self) -> None:
        kind, _, index = self.torch_device.partition(":")
        if kind != "cuda" or not index.isdecimal() or index != str(int(index)):
            raise DeviceError(f"device {self.name!r} must be on 'cpu' or 'cuda:N', not {self.torch_device!r}")
        count = torch.cuda.device_count()
        if int(index) >= count:
            found = ", ".join(f"cuda:{i}" for i in range(count)) or "none"
            raise DeviceError(f"device {self.name!r}: torch finds no {self.torch_device} here; CUDA devices: {found}")

    @property
    def physical(self) -> torch.device:
        """The torch device."""
        return torch.device(self.torch_device)

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a GPU."""
        return self.torch_device != "cpu"


def logical_devices(
    count: int, torch_device: str = "cpu", *, partition: bool = False, memory_bytes: float = NO_LIMIT
) -> tuple[LogicalDevice, ...]:
    """``count`` equal devices d0, d1, ... on one physical device; ``partition`` gives each its multiprocessors."""
    if count < 1:
        raise OptionError(f"at least one device is needed, not {count}")
    share = 1 / count if partition and torch_device != "cpu" else None
    return tuple(LogicalDevice(f"d{i}", torch_device, share, memory_bytes) for i in range(count))
