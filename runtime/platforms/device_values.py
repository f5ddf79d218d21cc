"""Values by device, as OpenVINO's benchmark_app takes them, such as CPU:bf16,GPU.0:f32, among devices' properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hsdag.ir.device import ADDED_DEFAULTS, DeviceSpec
from hsdag.ir.errors import OptionError
from hsdag.runtime.platforms.devices import canonical

PRECISION, PRECISION_OPTION = "INFERENCE_PRECISION_HINT", "infer-precision"
"""OpenVINO's property for the precision that a device computes in, and the option that gives it."""

EVERY = ""
"""Stands for all devices among the names of values."""


def parse_values(option: str, text: str | None) -> dict[str, str]:
    """Values by device from ``CPU:bf16,GPU.0:f32``; one alone, ``f32``, is for EVERY device that is not named.

    Raises OptionError for a text of another form, and for a device that is named twice.
    """
    found: dict[str, str] = {}
    for item in text.split(",") if text is not None else ():
        name, colon, value = (part.strip() for part in item.rpartition(":"))
        if not value or bool(name) != bool(colon):
            raise OptionError(
                f"--{option} {text!r}: {item.strip()!r} is neither of the form DEVICE:VALUE nor one value for every "
                "device"
            )
        if name in found:
            raise OptionError(f"--{option} {text!r} gives {f'device {name!r}' if name else 'every device'} two values")
        found[name] = value
    return found


def with_values(
    specs: Sequence[DeviceSpec], option: str, key: str, values: Mapping[str, str]
) -> tuple[DeviceSpec, ...]:
    """The devices with the property ``key``: what is said of a device, else of its plugin, else of every device.

    Raises OptionError for a name that is no device here, and where a device was given another value of its own.
    """
    wanted = {canonical(DeviceSpec(name, name)).name if name else name: value for name, value in values.items()}
    known = {name for spec in specs for name in (spec.name, spec.plugin)} | {EVERY}
    for name in sorted(wanted.keys() - known):
        listed = ", ".join(spec.name for spec in specs) or "none"
        raise OptionError(f"--{option} names device {name!r}; the devices are {listed}")
    return tuple(_with_value(spec, option, key, wanted) for spec in specs)


def _with_value(spec: DeviceSpec, option: str, key: str, wanted: Mapping[str, str]) -> DeviceSpec:
    value = next((wanted[name] for name in (spec.name, spec.plugin, EVERY) if name in wanted), None)
    if value is None:
        return spec
    default = ADDED_DEFAULTS.get(spec.plugin, {}).get(key) if spec.is_added else None
    own = spec.properties.get(key, value)
    if own not in (value, default):
        raise OptionError(
            f"device {spec.name!r} has {key}={own} among its properties, and --{option} says {value}; "
            "leave one of them out"
        )
    return replace(spec, properties={**spec.properties, key: value})
