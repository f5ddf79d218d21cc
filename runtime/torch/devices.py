"""Torch devices to place ops on, and how they are written as text and as records."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from hsdag.base.errors import DeviceError, option
from hsdag.ir.device import DeviceSpec, parse_devices, parse_properties
from hsdag.runtime.machine.devices import DeviceSet
from hsdag.runtime.machine.usable import usable_cpus
from hsdag.runtime.torch.op import PRECISIONS

DEPTH = 16
"""Default number of tasks that a stream of a GPU holds before the host has seen the first of them end.

A larger number hides the delays of a slower host. A smaller one lets more tasks be chosen late: a task that has been
enqueued keeps its place, and its results take memory.
"""
MOST_DEPTH = 64
"""Largest number of tasks of a stream; with more, the driver's queue may be full, and enqueueing would block."""

_NAMED = re.compile(r"(?:([A-Za-z]\w*)=)?(cpu|cuda:\d+)(?:\[([^\[\]]*)\])?")


@dataclass(frozen=True)
class LogicalDevice:
    """A device to place ops on: a stream of a GPU, or a worker thread of the CPU.

    Several may share one physical device: on a GPU each has a compute stream of its own, on the CPU a worker thread.
    Raises DeviceError for a number out of range, a precision that the device lacks, and a physical device that torch
    does not find on this machine.

    Attributes:
        torch_device: Torch's name of the physical device: "cpu", "cuda:0", ...
        threads: Number of threads that one op may use on the CPU, at least 1.
        precision: Precision of products of f32 tensors, a name of ``PRECISIONS``; "tf32" on GPUs only.
        depth: Number of tasks that a stream of a GPU may hold, from 1 to MOST_DEPTH.
    """

    name: str
    torch_device: str = "cpu"
    threads: int = 1
    precision: str = "f32"
    depth: int = DEPTH

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise DeviceError(f"device {self.name!r} needs at least one thread, not {self.threads}")
        if not 1 <= self.depth <= MOST_DEPTH:
            raise DeviceError(f"device {self.name!r} needs a depth from 1 to {MOST_DEPTH}, not {self.depth}")
        precisions = [name for name in PRECISIONS if self.is_cuda or name != "tf32"]
        if self.precision not in precisions:
            raise DeviceError(f"device {self.name!r} computes in {', '.join(precisions)}, not in {self.precision!r}")
        gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        if self.torch_device not in ("cpu", *gpus):
            raise DeviceError(
                f"device {self.name!r}: torch finds no {self.torch_device} here; "
                f"CUDA devices: {', '.join(gpus) or 'none'}"
            )

    @property
    def physical(self) -> torch.device:
        """Return the torch device."""
        return torch.device(self.torch_device)

    @property
    def is_cuda(self) -> bool:
        """Return whether the device is on a GPU."""
        return self.torch_device != "cpu"


def logical_devices(count: int, torch_device: str = "cpu") -> tuple[LogicalDevice, ...]:
    """Return ``count`` equal devices d0, d1, ... on one physical device."""
    return tuple(LogicalDevice(f"d{i}", torch_device) for i in range(count))


def parse_torch_devices(text: str | None) -> tuple[DeviceSpec, ...]:
    """Parse a comma-separated list of devices; None stands for all CUDA devices.

    Each is ``cpu``, ``cuda:N``, ``NAME=cpu[threads=1]`` or ``NAME=cuda:0[precision=tf32]``. Raises DeviceError if a
    device is unknown or occurs twice, or a property is out of range.
    """
    if text is None:
        text = ",".join(f"cuda:{i}" for i in range(torch.cuda.device_count()))
        if not text:
            raise DeviceError(
                "torch finds no CUDA device here; name logical devices of the CPU instead, for example "
                f"{option('devices')} 'A=cpu[threads=1],B=cpu[threads=1]'"
            )
    specs = parse_devices(text, _parse)
    for spec in specs:
        logical_device(spec)
    return specs


def resolve_torch_devices(text: str | None) -> DeviceSet:
    """Return the devices of a list, as ``parse_torch_devices`` does, and the physical devices that they are part of."""
    specs = parse_torch_devices(text)
    names = {spec.name for spec in specs}
    wholes = dict.fromkeys(spec.plugin for spec in specs if spec.plugin not in names)
    return DeviceSet(specs, tuple(DeviceSpec(plugin, plugin) for plugin in wholes))


def logical_device(spec: DeviceSpec) -> LogicalDevice:
    """Return the device that a record describes; on the CPU it uses all usable threads unless it says how many.

    Raises DeviceError if this machine lacks the device, or if a property is unknown or out of range.
    """
    properties = dict(spec.properties)
    number = "threads" if spec.plugin == "cpu" else "depth"
    precision, count = properties.pop("precision", "f32"), properties.pop(number, None)
    if properties or not (count is None or count.isdecimal()):
        shown = ", ".join(f"{key}={value}" for key, value in spec.properties.items())
        raise DeviceError(f"device {spec.name!r} over {spec.plugin} takes {number}=N and precision=NAME, not {shown}")
    numbers = {"threads": usable_cpus()} | ({} if count is None else {number: int(count)})
    return LogicalDevice(spec.name, spec.plugin, precision=precision, **numbers)


def _parse(text: str) -> DeviceSpec:
    match = _NAMED.fullmatch(text.strip())
    if match is None or (match[3] is not None and match[1] is None):
        raise DeviceError(
            f"device {text.strip()!r} is not one that torch runs: write cuda:0, NAME=cuda:0 or NAME=cpu[threads=1]"
        )
    name = match[1] or match[2]
    return DeviceSpec(name, match[2], parse_properties(name, match[3] or ""))
