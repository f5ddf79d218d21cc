"""The devices of a machine one by one and in pairs, as far as they answer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hsdag.commands.doctor import findings
from hsdag.commands.doctor.questions import Questions
from hsdag.ir.device import PLUGIN_LIBRARIES, DeviceSpec
from hsdag.runtime.measuring.messages import (
    AskDevice,
    DeviceFacts,
    ListDevices,
    Precision,
    ProbePrecision,
    ProbeTransfer,
    SideBySide,
    Transfer,
)
from hsdag.runtime.measuring.profile import Contention

PAIR_S = 0.3
"""Seconds for which two devices run side by side, of each kind of small model."""


@dataclass(frozen=True)
class Device:
    """A device, and what it said; None where it failed."""

    spec: DeviceSpec
    facts: DeviceFacts | None
    precision: Precision | None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.spec.name,
            "plugin": self.spec.plugin,
            "properties": dict(self.spec.properties),
            "facts": None if self.facts is None else asdict(self.facts),
            "outputs_of_a_small_network": None if self.precision is None else asdict(self.precision),
        }


@dataclass(frozen=True)
class Pair:
    """Two devices: how a tensor goes ``there`` and ``back``, and what both do at the same time.

    ``gains`` are the work of both at once over that of one after the other, by what bounds the two small models: 2
    where they do not disturb each other, 1 where they take turns.
    """

    names: tuple[str, str]
    there: Transfer | None
    back: Transfer | None
    gains: Mapping[str, float]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def listed_devices(questions: Questions) -> tuple[str, ...]:
    """What OpenVINO finds; where it crashes over that, what each plugin finds by itself."""
    found = questions.ask("OpenVINO", "listing devices", ListDevices(), compiles=False)
    if found is not None:
        return found
    by_plugin = [
        questions.ask(name, "listing its devices", ListDevices(name), compiles=False) for name in PLUGIN_LIBRARIES
    ]
    return tuple(itertools.chain.from_iterable(names or () for names in by_plugin))


def examined_device(questions: Questions, spec: DeviceSpec) -> Device:
    """A device, with findings on its precision."""
    facts = questions.ask(spec.name, "loading", AskDevice(spec), compiles=False)
    if facts is None:
        return Device(spec, None, None)
    precision = questions.ask(spec.name, "a small network", ProbePrecision(spec))
    if precision is not None:
        questions.findings += findings.of_precision(spec.name, facts, precision)
    return Device(spec, facts, precision)


def examined_pairs(questions: Questions, devices: Sequence[DeviceSpec]) -> tuple[Pair, ...]:
    """All pairs of devices, with findings on what goes between them and whether they overlap."""
    return tuple(_examined_pair(questions, *two) for two in itertools.combinations(devices, 2))


def _examined_pair(questions: Questions, one: DeviceSpec, other: DeviceSpec) -> Pair:
    ways = []
    for writer, reader in ((one, other), (other, one)):
        about = f"{writer.name} -> {reader.name}"
        ways.append(questions.ask(about, "handing a tensor over", ProbeTransfer(writer, reader)))
        questions.findings += findings.of_transfer(about, ways[-1])
    about, gains = f"{one.name} and {other.name}", {}
    for kind in ("compute", "memory"):
        rounds = questions.ask(about, f"side by side, bound by {kind}", SideBySide((one, other), kind, PAIR_S))
        if rounds is not None:
            factor = Contention.of({kind: rounds}, 2).factor[kind]
            gains[kind] = float(1 / factor[0, 1] + 1 / factor[1, 0])
    questions.findings += findings.of_overlap(about, gains)
    return Pair((one.name, other.name), ways[0], ways[1], gains)
