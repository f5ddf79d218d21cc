"""Energy counters of the machine: RAPL's in the kernel's powercap, and those of hwmon."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hsdag.base.errors import DeviceError
from hsdag.base.host import SYS

ROOT = "HSDAG_SYSFS"
"""Environment variable that names another root than /sys."""

J_PER_COUNT = 1e-6
"""Joules per count: both kinds count microjoules (kernel documentation, power/powercap and hwmon/sysfs-interface)."""

HWMON_RANGE = 2.0**64
"""Range of hwmon's counters, which are 64 bits wide."""

OF_CORES = ("amd_energy",)
"""Drivers whose counters count the same energy as RAPL's packages."""


@dataclass(frozen=True)
class EnergyCounters:
    """Files that count microjoules, each with the count at which it wraps around.

    They are RAPL's packages, with the memory where that is counted apart, and hwmon's of other devices, such as GPUs.
    """

    ranges: Mapping[Path, float]

    @staticmethod
    def find() -> EnergyCounters:
        """Find the counters of this machine. Raises DeviceError where there are none, or they cannot be read."""
        top = Path(os.environ.get(ROOT, SYS))
        ranges = _powercap(top)
        ranges |= _hwmon(top, is_beside=bool(ranges))
        if not ranges:
            raise DeviceError(
                f"this machine has no energy counters: neither {top / 'class/powercap'} nor {top / 'class/hwmon'} has "
                "any, as in virtual machines and containers; measure energy on the machine itself"
            )
        for path in ranges:
            if not os.access(path, os.R_OK):
                raise DeviceError(f"{path} counts energy and cannot be read: run 'sudo chmod a+r {path}', or as root")
        return EnergyCounters(ranges)

    def counts(self) -> dict[Path, float]:
        """Read the counters, in microjoules. Raises DeviceError where one cannot be read."""
        try:
            return {path: float(path.read_text()) for path in self.ranges}
        except (OSError, ValueError) as error:
            raise DeviceError(f"an energy counter cannot be read: {error}") from error

    def joules_since(self, before: Mapping[Path, float]) -> float:
        """Return the joules since ``before``, if no counter has wrapped around more than once since."""
        now = self.counts()
        return J_PER_COUNT * sum((now[path] - before[path]) % ends for path, ends in self.ranges.items())


def _powercap(top: Path) -> dict[Path, float]:
    """Find packages and the memory beside them; cores and graphics are parts of packages, and psys contains all."""
    ranges = {}
    for zone in sorted((top / "class" / "powercap").glob("intel-rapl:*")):
        name = _text(zone / "name")
        if (name.startswith("package") or name == "dram") and (zone / "energy_uj").exists():
            ranges[zone / "energy_uj"] = float(_text(zone / "max_energy_range_uj") or HWMON_RANGE) + 1.0
    return ranges


def _hwmon(top: Path, *, is_beside: bool) -> dict[Path, float]:
    """Find the first counter of each device (others count its parts); those of packages only if powercap has none."""
    ranges: dict[Path, float] = {}
    for chip in sorted((top / "class" / "hwmon").glob("hwmon*")):
        counters = sorted(chip.glob("energy*_input"))
        if counters and not (is_beside and _text(chip / "name") in OF_CORES):
            sockets = [p for p in counters if "socket" in _text(p.with_name(p.name.replace("input", "label"))).lower()]
            ranges |= dict.fromkeys(sockets or counters[:1], HWMON_RANGE)
    return ranges


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
