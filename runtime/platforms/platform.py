"""Platform: the devices of a machine and the links between them, as data sheets and assumptions give them.

Legend: D devices, C op classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from math import isfinite

import numpy as np

from hsdag.ir.flops import COMPUTES_PRODUCTS, MOVES_DATA
from hsdag.ir.graph import FloatArray

PRECISIONS = ("f32", "f16", "i8")
KINDS = ("cpu", "gpu", "npu")


class OpClass(Enum):
    """Ops that reach a like share of a device's peaks; the value is the key in platform files."""

    CONVOLUTION = "convolution"
    PRODUCT = "product"  # matrix products, recurrent cells, attention
    ELEMENTWISE = "elementwise"  # one result per element
    MOVEMENT = "movement"  # results are copies of inputs
    OTHER = "other"  # pooling, reductions, normalisation, sorting


OP_CLASSES = tuple(OpClass)
"""[C] the op classes in the order of every table's last axis."""

ELEMENTWISE_TYPES = frozenset(
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh Ceiling Clamp Cos Cosh Divide Elu Equal Erf Exp FakeQuantize "
    "Floor FloorMod Gelu Greater GreaterEqual HSigmoid HSwish HardSigmoid IsFinite IsInf IsNaN Less LessEqual Log "
    "LogicalAnd LogicalNot LogicalOr LogicalXor Maximum Minimum Mish Mod Multiply Negative Not NotEqual Or PRelu "
    "PReLU Power Relu ReLU Round Select Selu Sigmoid Sign Sin Sinh SoftPlus SoftSign Sqrt SquaredDifference "
    "Subtract Swish Tan Tanh Xor".split()
)
"""Op types with one result per element."""


def op_class(op_type: str) -> OpClass:
    """The class of an op type; a type nobody knows is OTHER."""
    if op_type in COMPUTES_PRODUCTS:
        return OpClass.CONVOLUTION if "Convolution" in op_type else OpClass.PRODUCT
    if op_type in MOVES_DATA:
        return OpClass.MOVEMENT
    return OpClass.ELEMENTWISE if op_type in ELEMENTWISE_TYPES else OpClass.OTHER


@dataclass(frozen=True)
class PlatformDevice:
    """One device by its data sheet, with assumptions.

    ``peak_flops_per_s`` has at least "f32"; a missing precision runs at the next wider one's peak.
    ``efficiency`` is the share of the arithmetic peak that ops of a class reach, ``memory_efficiency`` the share
    of the memory bandwidth that any op reaches.
    ``inference_precision`` is the precision floating ops run in by default, None for the model's own (the GPU
    plugin of OpenVINO takes f16). Raises ValueError when a figure is out of range.
    """

    name: str
    kind: str
    peak_flops_per_s: Mapping[str, float]
    memory_bandwidth_bytes_per_s: float
    memory_bytes: float
    launch_s: float
    op_overhead_s: float
    efficiency: Mapping[OpClass, float]
    memory_efficiency: float
    inference_precision: str | None = None
    unsupported: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if not self.name or self.kind not in KINDS:
            raise ValueError(f"device {self.name!r} needs a name and a kind of {', '.join(KINDS)}, not {self.kind!r}")
        if "f32" not in self.peak_flops_per_s or not set(self.peak_flops_per_s) <= set(PRECISIONS):
            raise ValueError(f"device {self.name!r} needs peaks for f32 and at most f16 and i8 beside it")
        positive = (*self.peak_flops_per_s.values(), self.memory_bandwidth_bytes_per_s, self.memory_bytes)
        if not all(isfinite(x) and x > 0 for x in positive):
            raise ValueError(f"peaks and memory of device {self.name!r} must be positive")
        if not all(isfinite(x) and x >= 0 for x in (self.launch_s, self.op_overhead_s)):
            raise ValueError(f"overheads of device {self.name!r} must not be negative")
        if set(self.efficiency) != set(OpClass) or not all(
            0 < x <= 1 for x in (*self.efficiency.values(), self.memory_efficiency)
        ):
            raise ValueError(f"device {self.name!r} needs an efficiency in (0, 1] for each op class and for memory")
        if self.inference_precision not in (None, *PRECISIONS):
            raise ValueError(f"device {self.name!r} cannot infer in {self.inference_precision!r}")

    def peak(self, precision: str) -> float:
        """FLOP/s in ``precision``, or in the next wider one that the device has a figure for."""
        at = PRECISIONS.index(precision)
        return next(self.peak_flops_per_s[p] for p in PRECISIONS[at::-1] if p in self.peak_flops_per_s)


@dataclass(frozen=True)
class DeviceCalibration:
    """What measurements made of one device: roofline times are multiplied, overheads replaced.

    Raises ValueError when a factor is not positive or an overhead negative.
    """

    op_time: Mapping[OpClass, float]
    op_overhead_s: float
    launch_s: float

    def __post_init__(self) -> None:
        if set(self.op_time) != set(OpClass) or not all(isfinite(x) and x > 0 for x in self.op_time.values()):
            raise ValueError("a calibration needs a positive op_time factor for each op class")
        if not all(isfinite(x) and x >= 0 for x in (self.op_overhead_s, self.launch_s)):
            raise ValueError("calibrated overheads must not be negative")


@dataclass(frozen=True)
class CalibratedRow:
    """One measured latency that a calibration was fitted to, beside what the calibrated model gives for it."""

    model: str
    device: str
    measured_s: float
    calibrated_s: float


@dataclass(frozen=True)
class Calibration:
    """Fitted figures of some of a platform's devices, and the measurements they rest on."""

    provenance: str
    devices: Mapping[str, DeviceCalibration]
    rows: tuple[CalibratedRow, ...] = ()


@dataclass(frozen=True, eq=False)
class Platform:
    """Devices and the links of every ordered pair of them; the diagonals of the link tables are ignored.

    Raises ValueError when there is no device, two share a name, a link is missing or out of range, or the
    calibration names another device.
    """

    name: str
    description: str
    devices: tuple[PlatformDevice, ...]
    link_latency_s: FloatArray  # [D, D]
    link_bandwidth_bytes_per_s: FloatArray  # [D, D]
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        d = self.num_devices
        if not d or len(set(self.device_names)) != d:
            raise ValueError(f"platform {self.name!r} needs devices with names of their own")
        if self.link_latency_s.shape != (d, d) or self.link_bandwidth_bytes_per_s.shape != (d, d):
            raise ValueError(f"the link tables of platform {self.name!r} must be [{d}, {d}]")
        off = ~np.eye(d, dtype=np.bool_)
        latency_s, bandwidth = self.link_latency_s[off], self.link_bandwidth_bytes_per_s[off]
        if not np.all(np.isfinite(latency_s) & (latency_s >= 0) & np.isfinite(bandwidth) & (bandwidth > 0)):
            raise ValueError(f"every link of platform {self.name!r} needs a latency >= 0 and a bandwidth > 0")
        if self.calibration and not set(self.calibration.devices) <= set(self.device_names):
            raise ValueError(f"the calibration of platform {self.name!r} names a device that it does not have")
        self.link_latency_s.flags.writeable = False
        self.link_bandwidth_bytes_per_s.flags.writeable = False

    @property
    def num_devices(self) -> int:
        """D."""
        return len(self.devices)

    @cached_property
    def device_names(self) -> tuple[str, ...]:
        """[D] in the order of every table."""
        return tuple(device.name for device in self.devices)

    @cached_property
    def memory_bytes(self) -> FloatArray:
        """[D] capacities."""
        return np.array([device.memory_bytes for device in self.devices])

    @cached_property
    def op_time(self) -> FloatArray:
        """[D, C] factor on roofline seconds: fitted where the device is calibrated, else 1."""
        fitted = [self._fitted(device) for device in self.devices]
        return np.array([[f.op_time[c] if f else 1.0 for c in OP_CLASSES] for f in fitted])

    @cached_property
    def op_overhead_s(self) -> FloatArray:
        """[D] seconds that each op that does work takes beside its roofline."""
        return np.array([(self._fitted(device) or device).op_overhead_s for device in self.devices])

    @cached_property
    def launch_s(self) -> FloatArray:
        """[D] seconds that each subgraph takes beside its ops."""
        return np.array([(self._fitted(device) or device).launch_s for device in self.devices])

    def uncalibrated(self) -> Platform:
        """The platform as data sheets and assumptions alone give it."""
        return replace(self, calibration=None)

    def _fitted(self, device: PlatformDevice) -> DeviceCalibration | None:
        return self.calibration.devices.get(device.name) if self.calibration else None
