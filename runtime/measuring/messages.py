"""Messages to the process that measures and examines: typed requests, and what answers them.

Legend: N ops of the model, D devices.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.scenario import Scenario
from hsdag.ir.processes import Request, WorkerClient
from hsdag.runtime.machine.usable import usable_memory_bytes

WORKER_COMMAND = (sys.executable, "-m", "hsdag.runtime.measuring.worker")


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
class Throughput(Request[float]):
    """Seconds per inference while ``requests`` are in flight over ``runs``: at least so many, or exactly."""

    key: str
    requests: int
    runs: int
    is_exact: bool = False


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
    """[N] the device per op that ``target`` would choose by itself, OpenVINO's names; "" for ops it does not run.

    ``devices`` are loaded for the question where the process has not loaded them yet; HETERO keeps their properties,
    and gets its own ``properties``.
    """

    target: str
    devices: tuple[DeviceSpec, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LeftToOpenVino(Request[list[str]]):
    """The types of ops that the CUDA engine has OpenVINO evaluate on the CPU."""


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

    devices: tuple[DeviceSpec, ...]
    kind: str
    for_s: float


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
class ListDevices(Request[tuple[str, ...]]):
    """The names of the devices that OpenVINO finds, or one plugin."""

    plugin: str | None = None


@dataclass(frozen=True)
class AskDevice(Request[DeviceFacts]):
    """Load a device and ask for its properties."""

    device: DeviceSpec


@dataclass(frozen=True)
class Precision:
    """How far outputs are from those of the CPU in f32: by default, and with a hint of f32; figures by name.

    ``driver`` is the version of the driver that a compiled model names, None where it names none.
    """

    default: Mapping[str, float | None]
    single: Mapping[str, float | None]
    driver: str | None = None


@dataclass(frozen=True)
class ProbePrecision(Request[Precision]):
    """Run a small network on a device in both precisions."""

    device: DeviceSpec


CPU_IN_SINGLE = DeviceSpec("CPU", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
"""What outputs of devices are compared with."""


@dataclass(frozen=True)
class CompareOutputs(Request[Mapping[str, float | None]]):
    """Run the model on two devices, all of it or up to ``op``: how far the first one's results are from the second's.

    ``alone`` has the op run by itself instead, on both devices on the inputs that the second device computes for it.
    """

    devices: tuple[DeviceSpec, DeviceSpec]
    op: str | None = None
    alone: bool = False


@dataclass(frozen=True)
class CompareShrunk(Request[Mapping[str, float | None] | None]):
    """Run a model of dynamic shapes on typical data and then on half of it, against a new request on that half.

    None where half of the data is no input that the model takes.
    """

    device: DeviceSpec


@dataclass(frozen=True)
class Transfer:
    """What it takes to hand a tensor over: seconds of both inferences with an ordinary tensor, and with the best one.

    ``memory`` is where the best one is: "process", or "host" for memory that a GPU sees as well; ``copied_by`` are the
    devices that copy it nevertheless.
    """

    memory: str
    copied_by: tuple[str, ...]
    plain_s: float
    best_s: float
    is_right: bool


@dataclass(frozen=True)
class ProbeTransfer(Request[Transfer]):
    """Have one device write a tensor of some MB that another one reads."""

    writer: DeviceSpec
    reader: DeviceSpec


@dataclass(frozen=True)
class LargestValues(Request[list[float]]):
    """[N] the largest finite magnitude of what every op gives on the CPU in f32, for random inputs; 0 for other types.

    Constants are cut off at ``most``, as plugins do with what half precision does not hold.
    """

    most: float
