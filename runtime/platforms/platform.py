"""Platforms: the devices of a machine and the links between them, by data sheets and assumptions, and their files.

These are TOML, checked against a schema, with errors that name the file and the key. Legend: D devices, C op classes.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from hsdag.base.errors import FileFormatError, choices_for
from hsdag.base.files import first_problem, read_text
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.ir.graph.flops import COMPUTES_PRODUCTS, ELEMENTWISE, MOVES_DATA


class OpClass(Enum):
    """A class of ops that reach a similar share of a device's peaks; the value is the key in platform files."""

    CONVOLUTION = "convolution"
    PRODUCT = "product"  # matrix products, recurrent cells, attention
    ELEMENTWISE = "elementwise"  # one result per element
    MOVEMENT = "movement"  # results are copies of inputs
    OTHER = "other"  # pooling, reductions, normalisation, sorting


OP_CLASSES = tuple(OpClass)
"""[C] The op classes in the order of every table's last axis."""


def op_class(op_type: str) -> OpClass:
    """Return the class of an op type; OTHER for unknown types."""
    if op_type in COMPUTES_PRODUCTS:
        return OpClass.CONVOLUTION if "Convolution" in op_type else OpClass.PRODUCT
    if op_type in MOVES_DATA:
        return OpClass.MOVEMENT
    return OpClass.ELEMENTWISE if op_type in ELEMENTWISE | {"ReLU"} else OpClass.OTHER


class Table(BaseModel):
    """Base of tables in platform files. Making one of anything else raises a ValueError that names the key."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


def _with_all(*keys: str) -> AfterValidator:
    """Return a validator that checks that a table has these keys."""

    def check(figures: Mapping[Any, float]) -> Mapping[Any, float]:
        present = {getattr(entry, "value", entry) for entry in figures}
        missing = [key for key in keys if key not in present]
        if missing:
            raise PydanticCustomError("missing", "no figure for {keys}", {"keys": ", ".join(missing)})
        return figures

    return AfterValidator(check)


Name = Annotated[str, Field(min_length=1)]
Positive = Annotated[float, Field(gt=0)]
Amount = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Precision = Literal["f32", "f16", "i8"]
_PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_Class = Annotated[OpClass, Field(strict=False)]
_EVERY_CLASS = _with_all(*(c.value for c in OpClass))


class DataSheet(Table):
    """The figures of one or several equal devices by their data sheet, with assumptions.

    A precision without a peak runs at that of the next wider one. ``efficiency`` is the share of the arithmetic peak
    that ops of a class reach, ``memory_efficiency`` the share of the memory bandwidth that any op reaches.
    ``inference_precision`` is the precision of floating-point ops by default, None for the model's own (the GPU plugin
    of OpenVINO uses f16).
    """

    kind: Literal["cpu", "gpu", "npu"]
    peak_flops_per_s: Annotated[Mapping[Precision, Positive], _with_all("f32")]
    memory_bandwidth_bytes_per_s: Positive
    memory_bytes: Positive
    launch_s: Amount
    op_overhead_s: Amount
    efficiency: Annotated[Mapping[_Class, Share], _EVERY_CLASS]
    memory_efficiency: Share
    inference_precision: Precision | None = None
    unsupported: Annotated[frozenset[Name], Field(strict=False)] = frozenset()


class PlatformDevice(DataSheet):
    """One device of a platform."""

    name: Name

    def peak(self, precision: str) -> float:
        """Return the FLOP/s in ``precision``, or in the next wider one for which the device has a figure."""
        at = _PRECISIONS.index(precision)
        return next(self.peak_flops_per_s[p] for p in _PRECISIONS[at::-1] if p in self.peak_flops_per_s)


class DeviceCalibration(Table):
    """Corrections of one device's figures by measurement: roofline times are multiplied, overheads replaced."""

    op_time: Annotated[Mapping[_Class, Positive], _EVERY_CLASS]
    op_overhead_s: Amount
    launch_s: Amount


class Calibration(Table):
    """Fitted figures of some of a platform's devices; ``rows`` are the measurements behind them, for people."""

    provenance: Name
    devices: Mapping[str, DeviceCalibration]
    rows: Annotated[tuple[dict[str, str | float], ...], Field(strict=False)] = ()


@dataclass(frozen=True, eq=False)
class Platform:
    """Devices and the links of every ordered pair of them; the diagonals of the link tables are ignored."""

    name: str
    devices: tuple[PlatformDevice, ...]
    link_latency_s: FloatArray  # [D, D]
    link_bandwidth_bytes_per_s: FloatArray  # [D, D]
    calibration: Calibration | None = None

    @property
    def num_devices(self) -> int:
        """Return D."""
        return len(self.devices)

    @cached_property
    def device_names(self) -> tuple[str, ...]:
        """Return [D] the names of the devices in the order of every table."""
        return tuple(device.name for device in self.devices)

    @cached_property
    def memory_bytes(self) -> FloatArray:
        """Return [D] the capacities of the devices' memories."""
        return np.array([device.memory_bytes for device in self.devices])

    @cached_property
    def op_time(self) -> FloatArray:
        """Return [D, C] factors on roofline seconds: fitted if the device is calibrated, else 1."""
        fitted = [self._fitted(device) for device in self.devices]
        return np.array([[f.op_time[c] if f else 1.0 for c in OP_CLASSES] for f in fitted])

    @cached_property
    def op_overhead_s(self) -> FloatArray:
        """Return [D] the seconds that each op that does work takes beside its roofline."""
        return np.array([(self._fitted(device) or device).op_overhead_s for device in self.devices])

    @cached_property
    def launch_s(self) -> FloatArray:
        """Return [D] the seconds that each subgraph takes beside its ops."""
        return np.array([(self._fitted(device) or device).launch_s for device in self.devices])

    def _fitted(self, device: PlatformDevice) -> DeviceCalibration | None:
        return self.calibration.devices.get(device.name) if self.calibration else None


_Names = Annotated[list[Name], Field(min_length=1)]


class _Devices(DataSheet):
    names: _Names


class _Between(Table):
    devices: _Names
    and_devices: _Names | None = None
    one_way: bool = False
    latency_s: Amount | None = None
    bandwidth_bytes_per_s: Positive | None = None


class _PlatformLinks(Table):
    latency_s: Amount
    bandwidth_bytes_per_s: Positive
    between: list[_Between] = Field(default_factory=list)


class PlatformDocument(Table):
    format: Literal["hsdag-platform"]
    version: Literal[1]
    name: Name
    description: Name
    devices: list[_Devices] = Field(min_length=1)
    links: _PlatformLinks | None = None
    calibration: Calibration | None = None


def list_platforms() -> tuple[str, ...]:
    """Return the names of the platforms that come with hsdag, sorted."""
    entries = resources.files(__package__).iterdir()
    return tuple(sorted(e.name.removesuffix(".toml") for e in entries if e.name.endswith(".toml")))


def load_platform(name_or_path: str | Path) -> Platform:
    """Load a platform that comes with hsdag, by name, or another one, by the path of its ``.toml`` file.

    Raises FileFormatError naming the file and the key, or the known names if there is none with this name.
    """
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml"):
        return platform_from_toml(read_text(Path(name_or_path)), str(name_or_path))
    if name_or_path not in list_platforms():
        choices = choices_for(name_or_path, list_platforms())
        raise FileFormatError(f"no platform is called {name_or_path!r}{choices}, or give the path of a .toml file")
    file_name = f"{name_or_path}.toml"
    return platform_from_toml(resources.files(__package__).joinpath(file_name).read_text(encoding="utf-8"), file_name)


def platform_from_toml(text: str, origin: str = "platform") -> Platform:
    """Parse the platform in a TOML document. Raises FileFormatError naming ``origin`` and the key inside it."""
    try:
        return _platform(PlatformDocument.model_validate(tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(f"{origin}: not TOML ({error})") from error
    except ValidationError as error:
        raise FileFormatError(f"{origin}: {first_problem(error)}") from error
    except FileFormatError as error:
        raise FileFormatError(f"{origin}: {error}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or endless nesting
        raise FileFormatError(f"{origin}: Python cannot read this document ({error})") from error


def _platform(document: PlatformDocument) -> Platform:
    """Return the platform of a document whose keys are well-formed. Raises FileFormatError naming the key."""
    index: dict[str, int] = {}
    for i, entry in enumerate(document.devices):
        for j, name in enumerate(entry.names):
            if name in index:
                raise FileFormatError(f"devices[{i}].names[{j}]: {name!r} is already the name of another device")
            index[name] = len(index)
    if document.calibration is not None:
        _indices(list(document.calibration.devices), index, "calibration.devices")
    devices = [
        PlatformDevice(name=name, **entry.model_dump(exclude={"names"}))
        for entry in document.devices
        for name in entry.names
    ]
    tables = _link_tables(document.links, index)
    return Platform(document.name, tuple(devices), *tables, calibration=document.calibration)


def _link_tables(links: _PlatformLinks | None, index: dict[str, int]) -> tuple[FloatArray, FloatArray]:
    """Return latency and bandwidth [D, D] of every ordered pair: the default, then each ``between`` in turn."""
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
