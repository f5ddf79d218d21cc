"""Precision hints: in which precision devices are to compute, as OpenVINO's benchmark_app takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import OptionError
from hsdag.runtime.platforms.devices import DeviceSet, canonical

HINT = "INFERENCE_PRECISION_HINT"
"""OpenVINO's property."""

EVERY = ""
"""Stands for all devices among the names of a hint."""


def parse_precision(text: str | None) -> dict[str, str]:
    """Precisions by device from ``CPU:bf16,GPU.0:f32``, or one for EVERY device, ``f32``.

    Raises OptionError for a text of another form, and for a device that is named twice.
    """
    found: dict[str, str] = {}
    items = [item.strip() for item in text.split(",")] if text is not None else []
    for item in items:
        name, colon, precision = (part.strip() for part in item.rpartition(":"))
        if not precision or bool(name) != bool(colon) or (not name and len(items) > 1):
            raise OptionError(
                f"--infer-precision {text!r}: {item!r} is not of the form DEVICE:PRECISION, such as CPU:bf16; "
                "one precision alone, such as f32, is for every device"
            )
        if name in found:
            raise OptionError(f"--infer-precision {text!r} gives device {name!r} two precisions")
        found[name] = precision
    return found


def with_precision(devices: DeviceSet, wanted: Mapping[str, str]) -> DeviceSet:
    """The devices with the hint among their properties; a plugin's name stands for every device over it.

    Raises OptionError for a name that is no device here, and where a device has another hint of its own.
    """
    hints = {canonical(DeviceSpec(name, name)).name if name else name: hint for name, hint in wanted.items()}
    known = {name for spec in devices.all for name in (spec.name, spec.plugin)} | {EVERY}
    for name in sorted(hints.keys() - known):
        listed = ", ".join(spec.name for spec in devices.all)
        raise OptionError(f"--infer-precision names device {name!r}; the devices are {listed}")
    placed, rivals = (tuple(_hinted(spec, hints) for spec in specs) for specs in (devices.placed, devices.rivals))
    return DeviceSet(placed, rivals)


def _hinted(spec: DeviceSpec, hints: Mapping[str, str]) -> DeviceSpec:
    """The device with what is said of itself, else of its plugin, else of every device."""
    hint = next((hints[name] for name in (spec.name, spec.plugin, EVERY) if name in hints), None)
    if hint is None:
        return spec
    own = spec.properties.get(HINT, hint)
    if own != hint:
        raise OptionError(
            f"device {spec.name!r} has {HINT}={own} among its properties, and --infer-precision says {hint}; "
            "leave one of them out"
        )
    return replace(spec, properties={**spec.properties, HINT: hint})
