"""Messages between a worker process and its client: typed requests, and answers under the number of their request.

Legend: N ops of the model, D devices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from hsdag.ir.device import DeviceSpec
from hsdag.ir.scenario import Scenario

A = TypeVar("A")


class Request(Generic[A]):
    """Something to do, answered by an ``A``."""


@dataclass(frozen=True)
class WorkerSetup(Request[None]):
    """The first request: the model's file, fixed shapes, devices, and where inputs come from (None: random).

    With ``scenarios``, which have all inputs, shapes may be dynamic.
    """

    model: Path
    devices: tuple[DeviceSpec, ...]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    seed: int = 0
    inputs: Path | None = None
    scenarios: tuple[Scenario, ...] = ()


@dataclass(frozen=True)
class CompiledPart:
    """A part of a candidate of the work-conserving executor: its device by OpenVINO's name, its ops, and loading it.

    Memory is as in ``Opened``, but before any inference.
    """

    device: str
    num_ops: int
    first_op: str
    last_op: str
    compile_s: float
    resident_bytes: int
    device_bytes: int | None


@dataclass(frozen=True)
class Opened:
    """A compiled candidate: seconds to compile, submodels HETERO made, devices it runs on by OpenVINO's names.

    ``first_s`` are the seconds of its first inference. By the end of that, ``resident_bytes`` more are in the memory of
    the process than before compiling, and ``device_bytes`` in that of its GPUs: None where no device tells.
    """

    compile_s: float
    submodels: int
    devices: tuple[str, ...]
    first_s: float = 0.0
    resident_bytes: int = 0
    device_bytes: int | None = None
    parts: tuple[CompiledPart, ...] = ()  # of the work-conserving executor


@dataclass(frozen=True)
class Run(Request[list[float]]):
    """Seconds of each of ``runs`` inferences, ending early after ``stop_after_s`` in all.

    Those of the scenario of an index, or else weighted means over all scenarios.
    """

    key: str
    runs: int
    stop_after_s: float
    scenario: int | None = None


@dataclass(frozen=True)
class InFlight:
    """Seconds per inference while ``requests`` are in flight."""

    period_s: float
    requests: int


@dataclass(frozen=True)
class Throughput(Request[InFlight]):
    """Keep ``requests`` in flight over ``runs`` inferences: at least so many, or where ``is_exact`` exactly."""

    key: str
    requests: int
    runs: int
    is_exact: bool = False


@dataclass(frozen=True)
class Counter:
    """What OpenVINO's performance counter of one primitive says of one inference."""

    name: str
    status: str
    op_type: str
    exec_type: str
    real_s: float
    cpu_s: float


def counter_of(info: Any) -> Counter:
    """From OpenVINO's ``ProfilingInfo``."""
    real_s, cpu_s = info.real_time.total_seconds(), info.cpu_time.total_seconds()
    return Counter(info.node_name, str(info.status), info.node_type, info.exec_type, real_s, cpu_s)


@dataclass(frozen=True)
class Counters(Request[list[list[Counter]]]):
    """The counters of each of ``runs`` inferences on ``target``, with ``devices`` per op where it takes several.

    It is compiled with ``properties`` and counters, run, and forgotten.
    """

    target: str
    devices: tuple[str, ...] | None
    properties: Mapping[str, Any]
    runs: int


@dataclass(frozen=True)
class Close(Request[None]):
    """Forget a candidate."""

    key: str


@dataclass(frozen=True)
class Difference(Request[dict[str, float | None]]):
    """How far the outputs of ``key`` are from those of ``reference`` on the same inputs."""

    key: str
    reference: str


@dataclass(frozen=True)
class Choices(Request[list[str]]):
    """[N] the device per op that ``target`` would choose by itself, OpenVINO's names; "" for ops it does not run."""

    target: str


@dataclass(frozen=True)
class OpTimes(Request[dict[str, Any]]):
    """Times of the model's ops on ``target``, with ``devices`` per op where it takes several.

    The answer also has the memory of device ``of``, what compiling added to the process, and how long it took. Latency
    is that with performance counters where compiling takes longer than ``again_s``, for it is then done once.
    """

    target: str
    devices: tuple[str, ...] | None
    of: str
    runs: int
    for_s: float
    again_s: float = math.inf


@dataclass(frozen=True)
class Probed:
    """Seconds that a probe takes beside its ops, its standard error, and the bytes of each tensor that crosses."""

    rest_s: float
    error_s: float
    tensor_bytes: int


@dataclass(frozen=True)
class Probe(Request[Probed | None]):
    """Run a small model on one device, or cut between two so that ``tensors`` of about ``size_bytes`` cross.

    ``kind`` is "image" (1x1 convolutions, which plugins compute in layouts of their own), "matrix" (products), or
    "elementwise", which takes least. HETERO runs it; or, as the work-conserving executor does, two requests with common
    tensors, "ordinary" ones or "shared" ones, which spare copies. The answer is None where there are no such tensors.
    """

    devices: tuple[str, ...]
    kind: str
    tensors: int
    size_bytes: int
    runs: int
    for_s: float
    way: str = "hetero"


@dataclass(frozen=True)
class SideBySide(Request[list[list[list[tuple[float, float]]]]]):
    """[D, D] for each device and another one, by round: seconds of an inference alone, and beside the other device.

    ``kind`` is "compute" or "memory", small models bound by either, or "model". Each pair gets ``for_s`` seconds.
    """

    devices: tuple[str, ...]
    kind: str
    for_s: float


@dataclass(frozen=True)
class Compiling:
    """A note ahead of the answer to a request: for which devices something is compiled now, None once that is over."""

    target: str | None


@dataclass(frozen=True)
class Question:
    """Something that the worker asks its client ahead of its answer; what comes back is the content alone."""

    content: Any


@dataclass(frozen=True)
class Numbered:
    """A request, a note or a question on it, or its answer, under a number that no other request of the process has.

    An answer is the value that was asked for, or the exception that the client raises in its place.
    """

    number: int
    content: Any
