"""The devices of a machine one by one and in pairs, as far as they answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hsdag.diagnosis import findings
from hsdag.diagnosis.findings import Questions
from hsdag.ir.device import PLUGIN_LIBRARIES, DeviceSpec
from hsdag.ir.placement.placement import DeviceRecord, Record
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


class Device(DeviceRecord):
    """A device, and what it said; None where it failed."""

    facts: DeviceFacts | None
    outputs_of_a_small_network: Precision | None


class Pair(Record):
    """Two devices: how a tensor goes ``there`` and ``back``, and what both do at the same time.

    ``gains`` are the work of both at once over that of one after the other, by what bounds the two small models: 2
    where they do not disturb each other, 1 where they take turns.
    """

    names: tuple[str, str]
    there: Transfer | None
    back: Transfer | None
    gains: dict[str, float]


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
    precision = None if facts is None else questions.ask(spec.name, "a small network", ProbePrecision(spec))
    if facts is not None and precision is not None:
        questions.findings += findings.of_precision(spec.name, facts, precision)
    record = DeviceRecord.of(spec).model_dump()
    return Device(**record, facts=facts, outputs_of_a_small_network=precision)


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
    return Pair(names=(one.name, other.name), there=ways[0], back=ways[1], gains=gains)
