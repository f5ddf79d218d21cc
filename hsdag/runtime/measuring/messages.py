"""The process that measures and examines: how it is started and asked, and what it answers.

A request is a method of its worker and the arguments to call it with. Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.scenario import Scenario
from hsdag.ir.processes import Request, WorkerClient, process_command
from hsdag.runtime.machine.usable import usable_memory_bytes

A = TypeVar("A")
P = ParamSpec("P")

WORKER_COMMAND = process_command("hsdag.runtime.measuring.worker")


def worker_client(setup: Request[None], command: Sequence[str] = WORKER_COMMAND) -> WorkerClient:
    """The client of a measuring process, within the memory that this process may use when it starts."""
    return WorkerClient(setup, command, usable_memory_bytes)


@dataclass(frozen=True)
class WorkerSetup(Request[None]):
    """The first request: the model's file, devices to load at once, fixed shapes, and where inputs come from.

    Without a file for ``inputs``, they are random. ``scenarios`` have all inputs of the model; there are some where
    shapes are dynamic and the model is to be run. ``model`` is None where only devices are asked about.
    """

    model: Path | None
    devices: tuple[DeviceSpec, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    seed: int = 0
    inputs: Path | None = None
    scenarios: tuple[Scenario, ...] = ()


@dataclass(frozen=True)
class Call(Request[A]):
    """A method of the worker to be called, by its name; what it returns is the answer."""

    method: str
    args: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


def ask(method: Callable[Concatenate[Any, P], A], *args: P.args, **options: P.kwargs) -> Call[A]:
    """The request for a method of a worker's class; workers of other classes have methods of the same names."""
    return Call(method.__name__, args, options)


class CallHandler:
    """A worker whose methods are called by name."""

    def handle(self, request: Call[A]) -> A:
        """What the method returns."""
        answer: A = getattr(self, request.method)(*request.args, **request.options)
        return answer


Distance: TypeAlias = dict[str, float | None]
"""How far outputs are from others, as ``output_difference`` has it."""

TimesBeside: TypeAlias = list[list[list[tuple[float, float]]]]
"""[D, D] for each device and another one, by round: seconds of an inference alone, and beside the other device."""


@dataclass(frozen=True)
class Probe:
    """A small model on one device, or cut between two by HETERO so that ``tensors`` of about ``size_bytes`` cross.

    ``kind`` is "image" (1x1 convolutions, which plugins compute in layouts of their own) or "matrix" (products).
    """

    devices: tuple[str, ...]
    kind: str
    tensors: int
    size_bytes: int
    runs: int
    for_s: float


@dataclass(frozen=True)
class Probed:
    """Seconds that a probe takes beside its ops, its standard error, and the bytes of each tensor that crosses."""

    rest_s: float
    error_s: float
    tensor_bytes: int


@dataclass(frozen=True)
class DeviceFacts:
    """What a device says of itself; ``precision`` is the type that it computes in by default, None where unknown."""

    full_name: str
    kind: str | None  # integrated or discrete
    plugin_version: str
    memory_bytes: float | None
    capabilities: tuple[str, ...]
    precision: str | None


@dataclass(frozen=True)
class Precision:
    """How far outputs are from those of the CPU in f32: by default, and with a hint of f32.

    ``driver`` is the version of the driver that a compiled model names, None where it names none.
    """

    default: Distance
    single: Distance
    driver: str | None = None
