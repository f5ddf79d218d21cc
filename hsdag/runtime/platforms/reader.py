"""Reading platform files: TOML, checked against a schema, with errors that name the file and the key."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, ValidationError

from hsdag.ir.errors import FileFormatError, choices_for
from hsdag.ir.files import first_problem, read_text
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.platforms.platform import (
    Amount,
    Calibration,
    DataSheet,
    Name,
    Platform,
    PlatformDevice,
    Positive,
    Table,
)

_Names = Annotated[list[Name], Field(min_length=1)]


class _Devices(DataSheet):
    names: _Names


class _Between(Table):
    devices: _Names
    and_devices: _Names | None = None
    one_way: bool = False
    latency_s: Amount | None = None
    bandwidth_bytes_per_s: Positive | None = None


class _Links(Table):
    latency_s: Amount
    bandwidth_bytes_per_s: Positive
    between: list[_Between] = Field(default_factory=list)


class PlatformDocument(Table):
    format: Literal["hsdag-platform"]
    version: Literal[1]
    name: Name
    description: Name
    devices: list[_Devices] = Field(min_length=1)
    links: _Links | None = None
    calibration: Calibration | None = None


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
        known = choices_for(name_or_path, list_platforms())
        raise FileFormatError(f"no platform is called {name_or_path!r}{known}, or give the path of a .toml file")
    file_name = f"{name_or_path}.toml"
    return platform_from_toml(resources.files(__package__).joinpath(file_name).read_text(encoding="utf-8"), file_name)


def platform_from_toml(text: str, origin: str = "platform") -> Platform:
    """The platform in a TOML document. Raises FileFormatError naming ``origin`` and the key inside the document."""
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
    """The platform of a document whose keys are well-formed. Raises FileFormatError naming the key."""
    index: dict[str, int] = {}
    for i, entry in enumerate(document.devices):
        for j, name in enumerate(entry.names):
            if name in index:
                raise FileFormatError(f"devices[{i}].names[{j}]: {name!r} is already the name of another device")
            index[name] = len(index)
    fitted = document.calibration
    if fitted is not None:
        _indices(list(fitted.devices), index, "calibration.devices")
    devices = [
        PlatformDevice(name=name, **entry.model_dump(exclude={"names"}))
        for entry in document.devices
        for name in entry.names
    ]
    tables = _link_tables(document.links, index)
    return Platform(document.name, document.description, tuple(devices), *tables, calibration=fitted)


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
