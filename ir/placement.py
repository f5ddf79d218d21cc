"""Placement: a device for every op of one model, as an artefact on disk."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import openvino as ov
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import FileFormatError, OutputError, PlacementError

FORMAT_NAME: Literal["hsdag-placement"] = "hsdag-placement"
FORMAT_VERSION: Literal[1] = 1

ExecutorName: TypeAlias = Literal["hetero", "work-conserving"]
"""What runs a placed model: OpenVINO's HETERO, one submodel after another, or our own executor, side by side."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelRecord(_Record):
    """Which model a placement is for."""

    name: str
    fingerprint: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")


class DeviceRecord(_Record):
    """A device a placement may name."""

    name: str = Field(min_length=1)
    plugin: str = Field(min_length=1)
    properties: dict[str, str] = {}

    def spec(self) -> DeviceSpec:
        """The device to register."""
        return DeviceSpec(self.name, self.plugin, self.properties)


class LatencyRecord(_Record):
    """Seconds per inference; ``measured`` is false for simulated figures."""

    median_s: float = Field(gt=0)
    mean_s: float = Field(gt=0)
    p95_s: float = Field(gt=0)
    runs: int = Field(ge=1)
    measured: bool


class SpeedupRecord(_Record):
    """Latency of the best single device over the placement's, with its 95% bootstrap interval."""

    versus: str
    ratio: float = Field(gt=0)
    ci95: tuple[float, float]


class Placement(_Record):
    """A device per op, complete by construction.

    ``affinity`` names every op of the model. Raises FileFormatError (``load``) or a pydantic error when an
    affinity names a device that ``devices`` does not list.
    """

    format: Literal["hsdag-placement"] = FORMAT_NAME
    version: Literal[1] = FORMAT_VERSION
    model: ModelRecord
    devices: list[DeviceRecord] = Field(min_length=1)
    affinity: dict[str, str] = Field(min_length=1)
    method: str
    seed: int
    objective: str = Field(min_length=1)
    executor: ExecutorName
    latency: LatencyRecord | None = None
    baselines: dict[str, LatencyRecord] = {}
    speedup: SpeedupRecord | None = None
    priority: dict[str, int] | None = None
    created_with: dict[str, str] = {}

    @model_validator(mode="after")
    def _devices_are_listed(self) -> Placement:
        names = [device.name for device in self.devices]
        if len(set(names)) != len(names):
            raise ValueError("two devices have the same name")
        for op, device in self.affinity.items():
            if device not in names:
                raise ValueError(f"affinity of op {op!r} names device {device!r}, which 'devices' does not list")
        return self

    @property
    def used_devices(self) -> tuple[str, ...]:
        """Devices that hold at least one op, in the order of ``devices``."""
        used = set(self.affinity.values())
        return tuple(device.name for device in self.devices if device.name in used)

    @property
    def num_ops_per_device(self) -> dict[str, int]:
        """Ops on each device, in the order of ``devices``."""
        counts = dict.fromkeys((device.name for device in self.devices), 0)
        for device in self.affinity.values():
            counts[device] += 1
        return counts

    def to_json(self) -> str:
        """The document as text."""
        return self.model_dump_json(indent=1, exclude_none=True) + "\n"

    @staticmethod
    def from_json(text: str, origin: str = "placement") -> Placement:
        """Parse a document. Raises FileFormatError that names ``origin`` and the path inside the document."""
        document = parse_document(text, origin, FORMAT_NAME, FORMAT_VERSION)
        try:
            return Placement.model_validate(document)
        except ValidationError as error:
            raise FileFormatError(f"{origin}: {first_problem(error)}") from error

    def save(self, path: str | Path) -> None:
        """Write the file atomically. Raises OutputError."""
        write_atomically(Path(path), self.to_json().encode())

    @staticmethod
    def load(path: str | Path) -> Placement:
        """Read a file. Raises FileFormatError when it is missing, or no placement."""
        return Placement.from_json(read_text(Path(path)), str(path))

    @staticmethod
    def from_model(model: ov.Model) -> Placement:
        """The placement an exported IR carries. Raises PlacementError when it carries none."""
        from hsdag.ir.affinity import embedded_placement

        text = embedded_placement(model)
        if text is None:
            raise PlacementError("the model carries no placement; it was not written by 'hsdag export --format ir'")
        return Placement.from_json(text, "placement inside the model")

    def apply(self, model: ov.Model) -> ov.Model:
        """Set the affinity of every op of ``model``, which is changed in place and returned.

        Constants and shape arithmetic read on several devices are copied, one copy per device. Applying
        again, also another placement of the same model, replaces what was there.
        Raises PlacementError when the model is another one or its ops and the map disagree.
        """
        from hsdag.ir.affinity import apply_affinity

        return apply_affinity(self, model)

    def compile(self, core: Any, model: ov.Model, properties: Mapping[str, Any] | None = None) -> Any:
        """Compile ``model`` with this placement: under HETERO, or plainly where one device holds all ops.

        Devices that OpenVINO does not have by itself are registered on ``core``. Raises PlacementError as
        ``apply`` does, and DeviceError when a device is absent here or fails to load.
        """
        from hsdag.ir.affinity import compile_placement

        return compile_placement(self, core, model, properties)


def parse_document(text: str, origin: str, format_name: str, version: int) -> Mapping[str, Any]:
    """The JSON object in a text that is of a format ``hsdag-KIND`` and version.

    Raises FileFormatError that names ``origin`` when it is not.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{origin}: not JSON ({error.msg} in line {error.lineno})") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or endless nesting
        raise FileFormatError(f"{origin}: not a document Python can hold ({error})") from error
    if not isinstance(document, Mapping) or document.get("format") != format_name:
        kind = format_name.removeprefix("hsdag-")
        raise FileFormatError(f"{origin}: 'format' is not {format_name!r}; this is not a {kind} file")
    if document.get("version") != version:
        found = document.get("version")
        raise FileFormatError(f"{origin}: 'version' is {found!r}, but this hsdag reads {version}")
    return document


def first_problem(error: ValidationError) -> str:
    """The first complaint of a schema error as ``path.inside[3].document: message``."""
    detail = error.errors()[0]
    path = ""
    for part in detail["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    message = detail["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{path or 'document'}: {message}{more}"


def read_text(path: Path) -> str:
    """The text of a file. Raises FileFormatError when it is missing or not text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FileFormatError(f"no such file: {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it is there as a whole or not at all: temporary file, fsync, rename.

    Raises OutputError when the folder is missing or not writable.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o666 & ~current_umask())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def current_umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
