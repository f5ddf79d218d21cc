"""Torch devices as text and as records: ``cuda:1``, ``NAME=cuda:0[share=0.5]``, ``NAME=cpu[threads=1]``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch

from hsdag.ir.device import DeviceSpec, parse_devices
from hsdag.ir.errors import DeviceError
from hsdag.runtime.platforms.devices import DeviceSet
from hsdag.runtime.platforms.usable import usable_cpus
from hsdag.runtime.torch_backend.device import NO_LIMIT, LogicalDevice

_NAMED = re.compile(r"(?:([A-Za-z]\w*)=)?(cpu|cuda:\d+)(?:\[([^\[\]]*)\])?")

PROPERTIES: dict[str, Callable[[str], float]] = {"threads": int, "share": float, "memory": float}
"""What a logical device may be given: threads of the CPU, a share of a GPU's multiprocessors, bytes of memory."""


def parse_torch_devices(text: str | None) -> tuple[DeviceSpec, ...]:
    """Devices from a comma-separated list; None stands for all CUDA devices.

    Each is ``cpu``, ``cuda:N`` or ``NAME=cpu[threads=1;memory=1e9]``, with ``share`` on a GPU. Raises DeviceError where
    one is unknown or occurs twice, or a property is out of range.
    """
    if text is None:
        text = ",".join(f"cuda:{i}" for i in range(torch.cuda.device_count()))
        if not text:
            raise DeviceError(
                "torch finds no CUDA device here; name logical devices of the CPU instead, for example "
                "--devices 'A=cpu[threads=1],B=cpu[threads=1]'"
            )
    specs = parse_devices(text, _parse)
    for spec in specs:
        logical_device(spec)
    return specs


def resolve_torch_devices(text: str | None) -> DeviceSet:
    """The devices of a list as ``parse_torch_devices`` takes it, and the whole devices that they are parts of.

    Parts with a limit of memory stand for devices that are not here, and compete with no whole one.
    """
    specs = parse_torch_devices(text)
    limited = {spec.plugin for spec in specs if "memory" in spec.properties}
    names = {spec.name for spec in specs} | limited
    wholes = dict.fromkeys(spec.plugin for spec in specs if spec.plugin not in names)
    return DeviceSet(specs, tuple(DeviceSpec(plugin, plugin) for plugin in wholes))


def logical_device(spec: DeviceSpec) -> LogicalDevice:
    """The device that a record stands for; one of the CPU takes all usable threads where it does not say how many.

    Raises DeviceError where it is not here, OptionError where a property is out of range.
    """
    given = spec.properties
    wrong = [key for key in given if key not in PROPERTIES]
    if wrong or ("threads" in given and spec.plugin != "cpu") or ("share" in given and spec.plugin == "cpu"):
        taken = "threads and memory" if spec.plugin == "cpu" else "share and memory"
        raise DeviceError(f"device {spec.name!r}: a device over {spec.plugin} takes {taken}, not {', '.join(given)}")
    return LogicalDevice(
        spec.name,
        spec.plugin,
        share=_number(spec, given, "share"),
        memory_bytes=_number(spec, given, "memory") or NO_LIMIT,
        threads=int(_number(spec, given, "threads") or usable_cpus()),
    )


def _number(spec: DeviceSpec, given: Mapping[str, str], key: str) -> float | None:
    if key not in given:
        return None
    try:
        value = PROPERTIES[key](given[key])
    except ValueError as error:
        raise DeviceError(f"device {spec.name!r}: {key} must be a number, not {given[key]!r}") from error
    if not 0 < value < NO_LIMIT:
        raise DeviceError(f"device {spec.name!r}: {key} must be above 0, not {given[key]}")
    return value


def _parse(text: str) -> DeviceSpec:
    match = _NAMED.fullmatch(text.strip())
    if match is None or (match[3] is not None and match[1] is None):
        raise DeviceError(
            f"device {text.strip()!r} is none that torch runs: write cuda:0, NAME=cuda:0[share=0.5;memory=8e9] or "
            "NAME=cpu[threads=1]"
        )
    properties = {}
    for item in filter(None, (part.strip() for part in (match[3] or "").split(";"))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key or not value:
            raise DeviceError(f"device {match[1]!r}: property {item!r} is not of the form KEY=VALUE")
        properties[key] = value
    return DeviceSpec(match[1] or match[2], match[2], properties)
