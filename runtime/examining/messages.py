"""Questions to the examining process, one device or pair of devices each, so that a device that fails costs one answer.

Legend: N ops of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hsdag.ir.device import DeviceSpec
from hsdag.ir.scenario import Scenario
from hsdag.runtime.measuring.messages import Request


@dataclass(frozen=True)
class ExaminerSetup(Request[None]):
    """The first request: the model's file, None where there is none, input shapes to fix, and typical data.

    ``inputs`` is a file of their values, else they are random. ``scenarios`` have all inputs of the model; there are
    some where shapes are dynamic and the model is to be run.
    """

    model: Path | None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    scenarios: tuple[Scenario, ...] = ()
    seed: int = 0
    inputs: Path | None = None


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
    """The names of the devices that OpenVINO finds."""


@dataclass(frozen=True)
class ListPlugin(Request[tuple[str, ...]]):
    """The names of the devices that one plugin finds."""

    plugin: str


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


@dataclass(frozen=True)
class CompareOutputs(Request[Mapping[str, float | None]]):
    """Run the model on a device as it is, and on the CPU in f32, on the same random inputs."""

    device: DeviceSpec


@dataclass(frozen=True)
class RunBeside(Request[list[list[list[tuple[float, float]]]]]):
    """[2, 2] by round: seconds of a small model alone, and beside another one on the other device.

    ``kind`` is "compute" or "memory", what the small models are bound by.
    """

    devices: tuple[DeviceSpec, DeviceSpec]
    kind: str
    for_s: float


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
class AskHetero(Request[list[str]]):
    """[N] the device of every op of the model, by OpenVINO's names, as HETERO distributes it; "" where none runs it."""

    devices: tuple[DeviceSpec, ...]
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class AskSupport(Request[list[bool]]):
    """[N] whether a device runs an op of the model."""

    device: DeviceSpec


@dataclass(frozen=True)
class LargestValues(Request[list[float]]):
    """[N] the largest finite magnitude of what every op gives on the CPU in f32, for random inputs; 0 for other types.

    Constants are cut off at ``most``, as plugins do with what half precision does not hold.
    """

    most: float


@dataclass(frozen=True)
class CompareAt(Request[Mapping[str, float | None]]):
    """Run a model up to ``op``, or all of it, on two devices: how far the first one's results are from the second's.

    ``alone`` has the op run by itself instead, on both devices on the inputs that the second device computes for it.
    """

    devices: tuple[DeviceSpec, DeviceSpec]
    op: str | None
    alone: bool = False
