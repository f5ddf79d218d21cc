"""Of ``hsdag profile``."""

from __future__ import annotations

from typing_extensions import TypedDict


class Device(TypedDict):
    """A device that was profiled."""

    name: str
    latency_s: float | None
    spread: float
    runs: int
    compile_s: float
    first_s: float
    resident_bytes: int
    device_bytes: int | None
    memory_bytes: float | None
    launch_s: float
    unsupported_ops: int


class Links(TypedDict):
    """From each device to each other one."""

    latency_s: list[list[float | None]]
    bandwidth_bytes_per_s: list[list[float | None]]


class Submodel(TypedDict):
    """A submodel of a cut, and what compiling it took."""

    cut: int
    device: str
    num_ops: int
    first_op: str
    last_op: str
    compile_s: float
    resident_bytes: int
    device_bytes: int | None


class Measured(TypedDict):
    """A measured profile; ``costs`` is the problem file."""

    costs: str
    source: str
    devices: list[Device]
    links: Links
    hand_over: dict[str, Links | None]
    slowdown: dict[str, list[list[float | None]]]
    ops: int
    units: int
    cuts_measured: int
    submodels: list[Submodel]


class Assumed(TypedDict):
    """Costs of a platform; nothing was measured."""

    costs: str
    source: str
    devices: list[str]
    ops: int


Answer = Measured | Assumed
