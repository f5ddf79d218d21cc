"""Reading platform files: TOML, checked against a schema, with errors that name the file and the key."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hsdag.ir.errors import FileFormatError
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.ir.placement import first_problem, read_text
from hsdag.runtime.platforms.platform import (
    CalibratedRow,
    Calibration,
    DeviceCalibration,
    OpClass,
    Platform,
    PlatformDevice,
)

_Positive = Annotated[float, Field(gt=0)]
_Amount = Annotated[float, Field(ge=0)]
_Share = Annotated[float, Field(gt=0, le=1)]
_Name = Annotated[str, Field(min_length=1)]
_Names = Annotated[list[_Name], Field(min_length=1)]
_Figure = TypeVar("_Figure")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class _Peaks(_Table):
    f32: _Positive
    f16: _Positive | None = None
    i8: _Positive | None = None


class _PerClass(_Table, Generic[_Figure]):
    convolution: _Figure
    product: _Figure
    elementwise: _Figure
    movement: _Figure
    other: _Figure

    def by_class(self) -> dict[OpClass, float]:
        return {OpClass(key): figure for key, figure in self.model_dump().items()}


class _Devices(_Table):
    names: _Names
    kind: Literal["cpu", "gpu", "npu"]
    peak_flops_per_s: _Peaks
    memory_bandwidth_bytes_per_s: _Positive
    memory_bytes: _Positive
    launch_s: _Amount
    op_overhead_s: _Amount
    efficiency: _PerClass[_Share]
    memory_efficiency: _Share
    inference_precision: Literal["f32", "f16", "i8"] | None = None
    unsupported: list[_Name] = []


class _Between(_Table):
    devices: _Names
    and_devices: _Names | None = None
    one_way: bool = False
    latency_s: _Amount | None = None
    bandwidth_bytes_per_s: _Positive | None = None


class _Links(_Table):
    latency_s: _Amount
    bandwidth_bytes_per_s: _Positive
    between: list[_Between] = []


class _DeviceCalibration(_Table):
    op_time: _PerClass[_Positive]
    op_overhead_s: _Amount
    launch_s: _Amount


class _Row(_Table):
    model: _Name
    device: _Name
    measured_s: _Positive
    calibrated_s: _Positive


class _Calibration(_Table):
    provenance: _Name
    devices: dict[str, _DeviceCalibration]
    rows: list[_Row] = []


class _Document(_Table):
    format: Literal["hsdag-platform"]
    version: Literal[1]
    name: _Name
    description: _Name
    devices: list[_Devices] = Field(min_length=1)
    links: _Links | None = None
    calibration: _Calibration | None = None


def list_platforms() -> tuple[str, ...]:
    """Names of the platforms that come with hsdag, sorted."""
    entries = resources.files(__package__).iterdir()
    return tuple(sorted(e.name.removesuffix(".toml") for e in entries if e.name.endswith(".toml")))


def load_platform(name_or_path: str | Path) -> Platform:
    """A platform that comes with hsdag, by name, or one of your own, by the path of its ``.toml`` file.

    Raises FileFormatError naming the file and the key, or the known names where the name is not one.
    """
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml"):
        return platform_from_toml(read_text(Path(name_or_path)), str(name_or_path))
    if name_or_path not in list_platforms():
        known = ", ".join(list_platforms())
        raise FileFormatError(
            f"no platform is called {name_or_path!r}; choose one of {known}, or give the path of a .toml file"
        )
    file_name = f"{name_or_path}.toml"
    return platform_from_toml(resources.files(__package__).joinpath(file_name).read_text(encoding="utf-8"), file_name)


def platform_from_toml(text: str, origin: str = "platform") -> Platform:
    """The platform in a TOML document. Raises FileFormatError naming ``origin`` and the key inside the document."""
    try:
        return _platform(_Document.model_validate(tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{origin}: not TOML ({error})") from error
    except ValidationError as error:
        raise FileFormatError(f"{origin}: {first_problem(error)}") from error
    except FileFormatError as error:
        raise FileFormatError(f"{origin}: {error}") from error


def _platform(document: _Document) -> Platform:
    """The platform of a document whose keys are well-formed. Raises FileFormatError naming the key."""
    index: dict[str, int] = {}
    for i, entry in enumerate(document.devices):
        for j, name in enumerate(entry.names):
            if name in index:
                raise FileFormatError(f"devices[{i}].names[{j}]: {name!r} is already the name of another device")
            index[name] = len(index)
    latency_s, bandwidth = _link_tables(document.links, index)
    return Platform(
        name=document.name,
        description=document.description,
        devices=tuple(_device(entry, name) for entry in document.devices for name in entry.names),
        link_latency_s=latency_s,
        link_bandwidth_bytes_per_s=bandwidth,
        calibration=_calibration(document.calibration, index) if document.calibration else None,
    )


def _device(entry: _Devices, name: str) -> PlatformDevice:
    figures = entry.model_dump(exclude={"names", "efficiency", "unsupported"})
    figures["peak_flops_per_s"] = entry.peak_flops_per_s.model_dump(exclude_none=True)
    by_class, unsupported = entry.efficiency.by_class(), frozenset(entry.unsupported)
    return PlatformDevice(name=name, efficiency=by_class, unsupported=unsupported, **figures)


def _link_tables(links: _Links | None, index: dict[str, int]) -> tuple[FloatArray, FloatArray]:
    """Latency and bandwidth of every ordered pair: the default, then each ``between`` in turn. [D, D] each."""
    d = len(index)
    if links is None:
        if d > 1:
            raise FileFormatError("links: Field required, since there is more than one device")
        return np.zeros((1, 1)), np.full((1, 1), np.inf)
    latency_s, bandwidth = np.full((d, d), links.latency_s), np.full((d, d), links.bandwidth_bytes_per_s)
    for i, entry in enumerate(links.between):
        left = _indices(entry.devices, index, f"links.between[{i}].devices")
        others = entry.and_devices
        right = left if others is None else _indices(others, index, f"links.between[{i}].and_devices")
        for pair in (np.ix_(left, right), np.ix_(right, left))[: 1 if entry.one_way else 2]:
            if entry.latency_s is not None:
                latency_s[pair] = entry.latency_s
            if entry.bandwidth_bytes_per_s is not None:
                bandwidth[pair] = entry.bandwidth_bytes_per_s
    np.fill_diagonal(latency_s, 0.0)
    np.fill_diagonal(bandwidth, np.inf)
    return latency_s, bandwidth


def _indices(names: Sequence[str], index: dict[str, int], where: str) -> IntArray:
    for j, name in enumerate(names):
        if name not in index:
            raise FileFormatError(f"{where}[{j}]: there is no device {name!r}; the devices are {', '.join(index)}")
    return np.array([index[name] for name in names], dtype=np.int64)


def _calibration(entry: _Calibration, index: dict[str, int]) -> Calibration:
    for name in entry.devices:
        _indices([name], index, "calibration.devices")
    for i, row in enumerate(entry.rows):
        _indices([row.device], index, f"calibration.rows[{i}].device")
    return Calibration(
        provenance=entry.provenance,
        devices={
            name: DeviceCalibration(fitted.op_time.by_class(), fitted.op_overhead_s, fitted.launch_s)
            for name, fitted in entry.devices.items()
        },
        rows=tuple(CalibratedRow(**row.model_dump()) for row in entry.rows),
    )
