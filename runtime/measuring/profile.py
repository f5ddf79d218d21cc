"""Profiles: measured times of a model's ops on every device, of tensors between devices, and of devices side by side.

Legend: N ops, D devices, S sizes of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, GetPydanticSchema, model_validator
from pydantic_core import core_schema

from hsdag.base.files import parse_record, read_text, write_atomically
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray
from hsdag.ir.placement.placement import Record
from hsdag.runtime.problem.schedule_problem import CostSource, ScheduleProblem, excess_of

MOST_LAUNCH_SHARE = 0.9
"""Largest share of a model's latency that is attributed to its launch: small models are little else."""

BYTES_OF_SYNC = 3
"""Bytes that a part of a sync's probe reads and writes, per byte of a tensor."""

LARGEST = 1e24
"""Upper bound of all figures, so that sums stay far from infinity."""

Figure = Annotated[float, Field(ge=0, le=LARGEST)] | None
"""A figure that is not negative; null if it is unknown or infinite."""
Table = list[list[Figure]]
_Amount = Annotated[float, Field(ge=0, le=LARGEST)]
_Count = Annotated[int, Field(ge=0, le=int(LARGEST))]


def figures(table: FloatArray) -> Any:
    """Return an array as nested lists, null for values that are not finite."""
    shown = table.astype(object)
    shown[~np.isfinite(table)] = None
    return shown.tolist()


def numbers(table: Any, missing: float = np.nan) -> FloatArray:
    """Return nested lists as an array, with ``missing`` for null. Raises ValueError where rows differ in length."""
    array = np.array(table, dtype=np.float64)
    return np.where(np.isnan(array), missing, array)


def _array(entries: Any, missing: float = np.nan) -> GetPydanticSchema:
    """Return the schema of an array in a file, as lists of ``entries``; null is ``missing``."""
    return GetPydanticSchema(
        lambda _, handler: core_schema.no_info_after_validator_function(
            partial(numbers, missing=missing),
            handler(entries),
            serialization=core_schema.plain_serializer_function_ser_schema(figures),
        )
    )


Column = Annotated[FloatArray, _array(list[Figure])]
Amounts = Annotated[FloatArray, _array(list[_Amount])]
Square = Annotated[FloatArray, _array(Table)]
Bandwidths = Annotated[FloatArray, _array(Table, np.inf)]
Stack = Annotated[FloatArray, _array(list[Table])]


@dataclass(frozen=True, eq=False)
class DeviceProfile:
    """Measured times and memory of one model on one device.

    ``time_s`` is NaN for ops that the device does not run. Ops that one primitive computes share its figure: it belongs
    to the op with the most FLOPs, the others are 0, and ``fused`` lists them together. The sum over all ops is
    ``latency_s``, the measured latency of the whole model, which is None if the device does not run all of it.
    ``spread`` is the interquartile range of that latency over its median, over ``runs``. ``resident_bytes`` is the
    growth of the process by compiling the model and its first inference, ``device_bytes`` that of the memory of GPUs
    (None if no device reports it), ``memory_bytes`` the device's memory. ``compile_s`` is the time to compile,
    ``first_s`` that of the first inference, 0 if unknown. Files of earlier versions may name another machine, ``box``,
    that has measured.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    time_s: Column  # [N]
    fused: tuple[tuple[_Count, ...], ...]
    latency_s: _Amount | None
    spread: _Amount
    runs: _Count
    resident_bytes: int
    memory_bytes: _Amount | None
    compile_s: _Amount = 0.0
    first_s: _Amount = 0.0
    device_bytes: int | None = None
    device: DeviceSpec = field(kw_only=True)
    box: Annotated[str | None, Field(exclude=True)] = field(default=None, kw_only=True)


@dataclass(frozen=True, eq=False)
class LinkProfile:
    """Measured costs of going from a submodel on one device to one on another.

    ``launch_s`` is paid once per submodel, latency and bytes over bandwidth once per tensor; they include the
    conversions that plugins make at the boundary. The diagonals, from one submodel to another on the same device, are
    means over the device's links, since HETERO cannot be made to part ops of one device.

    ``sync_s`` is the time of a step of the work-conserving executor beside its work, where two devices read each
    other's tensor of ``sync_bytes`` [S]: NaN for pairs without a measurement, None if not asked for. Hand-overs between
    GPUs in files of earlier versions are ignored.
    """

    __pydantic_config__ = ConfigDict(extra="ignore")
    launch_s: Amounts  # [D]
    latency_s: Square  # [D, D]
    bandwidth_bytes_per_s: Bandwidths  # [D, D]
    sync_bytes: tuple[Annotated[float, Field(gt=0, le=LARGEST)], ...] = ()
    sync_s: Stack | None = None  # [S, D, D]

    @property
    def syncs(self) -> tuple[FloatArray, FloatArray] | None:
        """Return [D, D] the seconds to start a part that reads another device's tensor, and per byte read or written.

        The seconds per byte are the mean of those between successive sizes, where no size takes less than a smaller
        one. NaN for pairs without a measurement, None if nothing was measured.
        """
        if self.sync_s is None:
            return None
        taken_s, size_bytes = np.maximum.accumulate(self.sync_s), BYTES_OF_SYNC * np.array(self.sync_bytes)
        per_byte: FloatArray = (np.diff(taken_s, axis=0) / np.diff(size_bytes)[:, None, None]).mean(axis=0)
        return np.maximum(taken_s[0] - size_bytes[0] * per_byte, 0.0), per_byte


KINDS = ("compute", "memory", "model")
"""Models that run on two devices at once: small ones bound by arithmetic or by memory, and the placed model itself."""


@dataclass(frozen=True, eq=False)
class Contention:
    """Factors [D, D] by kind, of a device's time for an inference while the device of the column is busy too.

    They are at least 1, and NaN where nothing was measured. Lower ends of intervals in files of earlier versions are
    ignored. If windows did not agree, or factors contradict each other, ``is_disturbed`` is True and a simulation does
    without them: else devices could seem to slow each other down so much that nothing is worth dividing.
    """

    __pydantic_config__ = ConfigDict(extra="ignore")
    factor: Mapping[str, Square]
    is_disturbed: bool = False

    @property
    def slowdown(self) -> FloatArray:
        """Return [D, D] the factors for a simulation: the model's if measured, else the mean of the two small models'.

        NaN where nothing was measured, or it is in doubt.
        """
        small = 0.5 * (self.factor["compute"] + self.factor["memory"])
        factor: FloatArray = np.where(np.isnan(self.factor["model"]), small, self.factor["model"])
        if self.is_disturbed:
            factor = np.full_like(small, np.nan)
        np.fill_diagonal(factor, 1.0)
        return factor


class ModelProfile(Record):
    """The measurements of one model on some devices, and the file of them; null is unknown, or no limit.

    ``contention`` is None if not asked for.
    """

    format: Literal["hsdag-profile"] = "hsdag-profile"
    version: Literal[1] = 1
    times: tuple[DeviceProfile, ...] = Field(min_length=1, alias="devices")
    links: LinkProfile
    contention: Contention | None = None

    @property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """Return the devices of the times."""
        return tuple(times.device for times in self.times)

    @property
    def fused(self) -> tuple[tuple[int, ...], ...]:
        """Return sets of ops that some device computes as one."""
        return tuple(ops for profile in self.times for ops in profile.fused)

    @property
    def memory_bytes(self) -> FloatArray:
        """Return [D] the memory of devices, infinite if unknown; devices over the CPU plugin share the machine's."""
        num_sharing = sum(spec.plugin == "CPU" for spec in self.devices)
        shares = [num_sharing if spec.plugin == "CPU" else 1 for spec in self.devices]
        whole = [np.inf if times.memory_bytes is None else times.memory_bytes for times in self.times]
        return np.array(whole) / shares

    def costs(self, graph: ComputationGraph, *, by_op: bool = False) -> ScheduleProblem:
        """Return the profile as a problem by ops of ``graph``; a model's launch is taken off the times of its ops.

        Links are HETERO's. Pairs of devices that were not measured side by side do not slow each other down in it.
        ``by_op`` is for an executor that starts every op by itself: there a model on one device has no launch beside
        its ops, and every crossing takes the launch and the latency of a probe. Raises ValueError for a graph with
        another number of ops.
        """
        links = self.links
        time_s = np.stack([profile.time_s for profile in self.times], axis=1)
        total_s = np.nansum(time_s, axis=0)
        share = np.divide(links.launch_s, total_s, out=np.zeros_like(total_s), where=total_s > 0)
        time_s[np.isnan(time_s).all(axis=1)] = 0.0  # ops that no device runs are free everywhere
        return ScheduleProblem.from_graph(
            graph,
            time_s if by_op else time_s * (1.0 - np.minimum(share, MOST_LAUNCH_SHARE)),
            [spec.name for spec in self.devices],
            launch_s=0.0 if by_op else links.launch_s,
            link_latency_s=links.latency_s + (links.launch_s[None, :] if by_op else 0.0),
            link_bandwidth_bytes_per_s=links.bandwidth_bytes_per_s,
            memory_bytes=self.memory_bytes,
            source=CostSource.MEASURED,
            slowdown=None if self.contention is None else np.nan_to_num(self.contention.slowdown, nan=1.0),
        )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Check that every column has an entry per op, every table one per device, or pair of devices."""
        n, d = len(self.times[0].time_s), len(self.times)
        if len({times.device.name for times in self.times}) != d:
            raise ValueError("devices: two have the same name")
        if any(len(times.time_s) != n for times in self.times):
            raise ValueError(f"devices: every time_s needs {n} entries, one per op, as the first one has")
        if any(op >= n for ops in self.fused for op in ops):
            raise ValueError(f"devices: fused may name ops up to {n - 1}")
        shapes = {"launch_s": (d,), "latency_s": (d, d), "bandwidth_bytes_per_s": (d, d)}
        tables = {f"links.{name}": (getattr(self.links, name), shape) for name, shape in shapes.items()}
        factors = {} if self.contention is None else self.contention.factor
        if self.contention is not None and set(factors) != set(KINDS):
            raise ValueError(f"contention.factor: it needs the kinds {', '.join(KINDS)}")
        tables |= {f"contention.factor.{kind}": (table, (d, d)) for kind, table in factors.items()}
        if self.links.sync_s is not None:
            tables["links.sync_s"] = self.links.sync_s, (len(self.links.sync_bytes), d, d)
            if len(self.links.sync_bytes) < 2 or np.diff(self.links.sync_bytes).min() <= 0:
                raise ValueError("links.sync_bytes: two sizes at least are needed, the smallest first")
        for name, (table, shape) in tables.items():
            if table.shape != shape:
                raise ValueError(f"{name}: one entry is expected for each of {d} devices, or pair of them")
        if (self.links.bandwidth_bytes_per_s <= 0).any():
            raise ValueError("links.bandwidth_bytes_per_s: every bandwidth must be above 0; null is no limit")
        if self.contention is not None:
            excess_of(np.nan_to_num(self.contention.slowdown, nan=1.0), d)
        return self


def write_profile(profile: ModelProfile, path: Path) -> None:
    """Write a profile file atomically. Raises OutputError."""
    write_atomically(path, (profile.model_dump_json(by_alias=True) + "\n").encode())


def read_profile(path: Path) -> ModelProfile:
    """Read a profile file. Raises FileFormatError when it is missing or not a profile."""
    return parse_record(ModelProfile, read_text(path), str(path))
