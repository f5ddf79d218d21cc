"""Descriptions of machines: what their devices and links could do by data sheet."""

from hsdag.runtime.platforms.platform import (
    CalibratedRow,
    Calibration,
    DeviceCalibration,
    OpClass,
    Platform,
    PlatformDevice,
    op_class,
)
from hsdag.runtime.platforms.reader import list_platforms, load_platform

__all__ = [
    "CalibratedRow",
    "Calibration",
    "DeviceCalibration",
    "OpClass",
    "Platform",
    "PlatformDevice",
    "list_platforms",
    "load_platform",
    "op_class",
]
