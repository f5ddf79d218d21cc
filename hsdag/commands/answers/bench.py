"""Of ``hsdag bench``."""

from __future__ import annotations

from typing_extensions import TypedDict

from hsdag.commands.answers.base import Latency


class Row(Latency):
    """A candidate: single requests, and inferences per second with several in flight; what loading it took."""

    name: str
    min_s: float
    max_s: float
    ratio: float
    ci95: list[float | None]
    inferences_per_s: float | None
    submodels: int
    compile_s: float
    first_s: float
    resident_bytes: int
    device_bytes: int | None
    scenario_medians_s: list[float | None]


class Scenario(TypedDict):
    """Shapes of typical data."""

    data_shape: str
    weight: float


class Measured(TypedDict):
    """All candidates, fastest first; ratios are over ``versus``."""

    versus: str
    scenarios: list[Scenario]
    rows: list[Row]
    failures: dict[str, str]
    in_flight_failures: dict[str, str]


class DeviceOps(TypedDict):
    """A device of ``--per-op``: all ops together, and where it is best."""

    name: str
    total_s: float | None
    wins: int
    saved_s: float


class Op(TypedDict):
    """Ops that are computed as one, with seconds by device."""

    name: str
    type: str
    fused_ops: int
    time_s: dict[str, float | None]
    best: str | None
    share: float


class PerOp(TypedDict):
    """The heaviest ops."""

    devices: list[DeviceOps]
    ops: list[Op]


Answer = Measured | PerOp
