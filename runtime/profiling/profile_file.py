"""Profile files: what was measured of a model, as a JSON document. Legend: N ops, D devices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hsdag.ir.errors import FileFormatError
from hsdag.ir.graph import FloatArray
from hsdag.ir.placement import DeviceRecord, first_problem, parse_document, read_text, write_atomically
from hsdag.runtime.profiling.contention import KINDS, Contention
from hsdag.runtime.profiling.profile import DeviceProfile, LinkProfile, ModelProfile

FORMAT_NAME: Literal["hsdag-profile"] = "hsdag-profile"
FORMAT_VERSION: Literal[1] = 1

LARGEST = 1e24
"""Bound of all figures: sums stay far from infinity."""

Figure = Annotated[float, Field(ge=0, le=LARGEST)] | None
"""A figure that is not negative; null where it is not known, or is infinite."""
Table = list[list[Figure]]
_HAND_OVERS = ("ordinary", "shared")
_Amount = Annotated[float, Field(ge=0, le=LARGEST)]
_Count = Annotated[int, Field(ge=0, le=int(LARGEST))]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DeviceTimes(_Record):
    """What one device takes for the model, as ``DeviceProfile`` has it; ``time_s`` is [N], null for what it lacks.

    ``box`` is absent where the machine that wrote the file has measured.
    """

    device: DeviceRecord
    time_s: list[Figure]
    fused: list[list[_Count]]
    latency_s: _Amount | None
    spread: _Amount
    runs: _Count
    resident_bytes: int
    memory_bytes: _Amount | None
    compile_s: _Amount
    first_s: _Amount
    device_bytes: int | None = None
    box: str | None = None


class LinkTimes(_Record):
    """What it takes to go from one device to another, as ``LinkProfile`` has it; bandwidths are null for no limit."""

    launch_s: list[_Amount]
    latency_s: Table
    bandwidth_bytes_per_s: Table
    ordinary: list[Table] | None = None
    shared: list[Table] | None = None


class ContentionFactors(_Record):
    """How much devices slow each other down, as ``Contention`` has it."""

    factor: dict[str, Table]
    least: dict[str, Table]


class ProfileRecord(_Record):
    """A ``ModelProfile``."""

    format: Literal["hsdag-profile"] = FORMAT_NAME
    version: Literal[1] = FORMAT_VERSION
    devices: list[DeviceTimes] = Field(min_length=1)
    links: LinkTimes
    contention: ContentionFactors | None = None

    @staticmethod
    def of(profile: ModelProfile) -> ProfileRecord:
        """The record of a profile."""
        devices = [
            DeviceTimes(
                device=DeviceRecord.of(spec),
                **{**vars(times), "time_s": figures(times.time_s), "fused": [list(ops) for ops in times.fused]},
            )
            for spec, times in zip(profile.devices, profile.times, strict=True)
        ]
        tables = vars(profile.links).items()
        links = LinkTimes.model_validate({name: None if t is None else figures(t) for name, t in tables})
        known = profile.contention
        factors = (
            None
            if known is None
            else ContentionFactors(
                factor={kind: figures(table) for kind, table in known.factor.items()},
                least={kind: figures(table) for kind, table in known.least.items()},
            )
        )
        return ProfileRecord(devices=devices, links=links, contention=factors)

    def profile(self) -> ModelProfile:
        """The profile. Raises ValueError where its columns and tables do not fit together."""
        times = tuple(
            DeviceProfile(
                **{
                    **{name: getattr(each, name) for name in DeviceTimes.model_fields if name != "device"},
                    "time_s": numbers(each.time_s),
                    "fused": tuple(tuple(ops) for ops in each.fused),
                }
            )
            for each in self.devices
        )
        handed = {way: getattr(self.links, way) for way in _HAND_OVERS}
        links = LinkProfile(
            numbers(self.links.launch_s),
            numbers(self.links.latency_s),
            numbers(self.links.bandwidth_bytes_per_s, np.inf),
            **{way: None if table is None else numbers(table) for way, table in handed.items()},
        )
        contention = None
        if self.contention is not None:
            factors = ({kind: numbers(t) for kind, t in side.items()} for side in vars(self.contention).values())
            contention = Contention(*factors)
        profile = ModelProfile(tuple(each.device.spec() for each in self.devices), times, links, contention)
        _check(profile)
        return profile


def write_profile(profile: ModelProfile, path: Path) -> None:
    """Write a profile file atomically. Raises OutputError."""
    own = {d: {"box"} for d, times in enumerate(profile.times) if times.box is None}
    write_atomically(path, (ProfileRecord.of(profile).model_dump_json(exclude={"devices": own}) + "\n").encode())


def read_profile(path: Path) -> ModelProfile:
    """Read a profile file. Raises FileFormatError when it is missing, or is no profile."""
    document = parse_document(read_text(path), str(path), FORMAT_NAME, (FORMAT_VERSION,))
    try:
        return ProfileRecord.model_validate(document).profile()
    except ValidationError as error:
        raise FileFormatError(f"{path}: {first_problem(error)}") from error
    except ValueError as error:
        raise FileFormatError(f"{path}: {error}") from error


def _check(profile: ModelProfile) -> None:
    """Raise ValueError where columns have other lengths than one entry per op, or tables than one per device."""
    n, d, links = len(profile.times[0].time_s), len(profile.devices), profile.links
    if len({spec.name for spec in profile.devices}) != d:
        raise ValueError("devices: two have the same name")
    if any(len(times.time_s) != n for times in profile.times):
        raise ValueError(f"devices: every time_s needs {n} entries, one per op, as the first one has")
    if any(op >= n for ops in profile.fused for op in ops):
        raise ValueError(f"devices: fused may name ops up to {n - 1}")
    shapes = {"launch_s": (d,), "latency_s": (d, d), "bandwidth_bytes_per_s": (d, d)}
    shapes |= {way: (3, d, d) for way in _HAND_OVERS if getattr(links, way) is not None}
    tables = {f"links.{name}": (getattr(links, name), shape) for name, shape in shapes.items()}
    for side, factors in () if profile.contention is None else vars(profile.contention).items():
        if set(factors) != set(KINDS):
            raise ValueError(f"contention.{side}: it needs the kinds {', '.join(KINDS)}")
        tables |= {f"contention.{side}.{kind}": (table, (d, d)) for kind, table in factors.items()}
    for name, (table, shape) in tables.items():
        if table.shape != shape:
            raise ValueError(f"{name}: one entry is expected for each of {d} devices, or pair of them")
    if (links.bandwidth_bytes_per_s <= 0).any():
        raise ValueError("links.bandwidth_bytes_per_s: every bandwidth must be above 0; null is no limit")
    profile.costs()
    profile.costs(side_by_side=True)


def figures(table: FloatArray) -> Any:
    """An array as nested lists, null for what is not finite."""
    shown = table.astype(object)
    shown[~np.isfinite(table)] = None
    return shown.tolist()


def numbers(table: Any, missing: float = np.nan) -> FloatArray:
    """Nested lists as an array, with ``missing`` for null. Raises ValueError where rows differ in length."""
    found = np.array(table, dtype=np.float64)
    return np.where(np.isnan(found), missing, found)
