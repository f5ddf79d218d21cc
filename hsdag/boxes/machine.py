"""Machine: what measurements depend on beside the model, which has to be the same wherever a search measures."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import openvino as ov

from hsdag.ir.device import DeviceSpec
from hsdag.runtime.measuring.caches import identity
from hsdag.runtime.platforms.usable_cpus import usable_cpus

_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Machine:
    """A machine's kind as ``facts`` by what they are called; ``id`` is its own, and common to all of its containers."""

    id: str
    facts: Mapping[str, str]

    @staticmethod
    def here(devices: Sequence[DeviceSpec]) -> Machine:
        """This machine, with these devices: their hardware and properties, the processor, and versions."""
        facts = {
            "OpenVINO": ov.get_version(),
            "system": f"{platform.system()} {platform.machine()}",
            "processor": str(identity(DeviceSpec.parse("CPU"))["hardware"]),
            "number of processors": str(usable_cpus()),
        }
        for spec in devices:
            found = identity(spec)
            settings = ", ".join(f"{name}={value}" for name, value in found["properties"].items())
            hardware = found["hardware"] or "none"
            facts[f"device {spec.name}"] = f"{hardware} ({settings})" if settings else hardware
        return Machine(_BOOT.read_text().strip() if _BOOT.exists() else platform.node(), facts)

    def differences(self, other: Machine) -> list[str]:
        """What is otherwise on ``other``, a clause each; nothing where it is of the same kind."""
        names = dict.fromkeys([*self.facts, *other.facts])
        return [
            f"its {name} is {other.facts.get(name, 'none')}, not {self.facts.get(name, 'none')}"
            for name in names
            if self.facts.get(name) != other.facts.get(name)
        ]
