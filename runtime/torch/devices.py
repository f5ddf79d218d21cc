"""Torch devices to place ops on: a whole GPU, or a thread of the CPU; as text, as records and as values."""

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
"""Tasks that a stream of a GPU holds by default: as many as it may run before the host sees the first of them end.

More hide a slower host. Fewer leave more for later to decide: what is enqueued keeps its place, and its results exist.
"""
MOST_DEPTH = 64
"""With more, the driver may have no room for what is enqueued, and enqueueing would wait."""

_NAMED = re.compile(r"(?:([A-Za-z]\w*)=)?(cpu|cuda:\d+)(?:\[([^\[\]]*)\])?")


@dataclass(frozen=True)
class LogicalDevice:
    """A name for people, the torch device behind it, and the threads that one op may use on the CPU.

    Several may be on one physical device: on a GPU each has a compute stream of its own, on the CPU a worker thread.
    Products of f32 tensors are computed in ``precision``, and a stream holds up to ``depth`` tasks.

    Raises DeviceError for a number out of range, a precision that the device lacks, and a device that torch does not
    have here.
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
        known = [name for name in PRECISIONS if self.is_cuda or name != "tf32"]
        if self.precision not in known:
            raise DeviceError(f"device {self.name!r} computes in {', '.join(known)}, not in {self.precision!r}")
        found = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        if self.torch_device not in ("cpu", *found):
            raise DeviceError(
                f"device {self.name!r}: torch finds no {self.torch_device} here; "
                f"CUDA devices: {', '.join(found) or 'none'}"
            )

    @property
    def physical(self) -> torch.device:
        """The torch device."""
        return torch.device(self.torch_device)

    @property
    def is_cuda(self) -> bool:
        """Whether it is on a GPU."""
        return self.torch_device != "cpu"


def logical_devices(count: int, torch_device: str = "cpu") -> tuple[LogicalDevice, ...]:
    """``count`` equal devices d0, d1, ... on one physical device."""
    return tuple(LogicalDevice(f"d{i}", torch_device) for i in range(count))


def parse_torch_devices(text: str | None) -> tuple[DeviceSpec, ...]:
    """Devices from a comma-separated list; None stands for all CUDA devices.

    Each is ``cpu``, ``cuda:N``, ``NAME=cpu[threads=1]`` or ``NAME=cuda:0[precision=tf32]``. Raises DeviceError where
    one is unknown or occurs twice, or a property is out of range.
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
    """The devices of a list as ``parse_torch_devices`` takes it, and the whole devices that they are parts of."""
    specs = parse_torch_devices(text)
    names = {spec.name for spec in specs}
    wholes = dict.fromkeys(spec.plugin for spec in specs if spec.plugin not in names)
    return DeviceSet(specs, tuple(DeviceSpec(plugin, plugin) for plugin in wholes))


def logical_device(spec: DeviceSpec) -> LogicalDevice:
    """The device that a record stands for; one of the CPU takes all usable threads where it does not say how many.

    Raises DeviceError where it is not here or a property is unknown or out of range.
    """
    given = dict(spec.properties)
    number = "threads" if spec.plugin == "cpu" else "depth"
    precision, count = given.pop("precision", "f32"), given.pop(number, None)
    if given or not (count is None or count.isdecimal()):
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
