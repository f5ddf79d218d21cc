"""Devices of a search: those that the options name, with settings that an earlier search has chosen."""

from __future__ import annotations

from pathlib import Path

from hsdag.base.errors import OptionError, option
from hsdag.commands.place.run_folder import read_record
from hsdag.ir.device import DeviceSpec
from hsdag.ir.placement.placement import Placement
from hsdag.runtime.machine.devices import DeviceSet, canonical, make_core, resolve_devices, with_precision
from hsdag.search.options import ANY_PRECISION, PlaceOptions


def devices_of(options: PlaceOptions) -> DeviceSet:
    """Return the devices of the executor. Raises DeviceError, and OptionError for options that it does not use."""
    if options.executor != "cuda":
        devices = resolve_devices(options.devices, options.partition_cpu)
        if options.precision not in (None, ANY_PRECISION):
            hinted = with_precision(devices.all, options.precision)
            num = len(devices.placed)
            devices = DeviceSet(hinted[:num], hinted[num:])
            make_core(devices.all)  # raises for properties that a device does not have
        return devices
    if options.precision:
        raise OptionError(
            f"{option('infer_precision')} is OpenVINO's; with {option('executor')} cuda name A=cuda:0[precision=f16]"
        )
    if options.partition_cpu is not None:
        raise OptionError(
            f"{option('partition_cpu')} makes devices of OpenVINO's; with {option('executor')} cuda name "
            "A=cpu[threads=1],..."
        )
    from hsdag.runtime.torch.devices import resolve_torch_devices  # only here: it loads torch

    return resolve_torch_devices(options.devices)


def settled(
    devices: DeviceSet, start: Placement | None, resumed: Path | None
) -> tuple[DeviceSet, dict[str, DeviceSpec]]:
    """Give devices the settings that the placement to start with, or the resumed search, has chosen for them.

    Returns the devices, and those that got settings as the user named them, by name.
    """
    of_earlier = list(start.devices) if start is not None else []
    defaults: dict[str, str] = {}
    if resumed is not None:
        record = read_record(resumed)
        of_earlier, defaults = record.devices, record.defaults
    described = {spec.name: canonical(spec) for spec in of_earlier}

    def with_settings(spec: DeviceSpec) -> DeviceSpec:
        other = described.get(spec.name, spec)
        is_more = other.plugin == spec.plugin and spec.properties.items() <= other.properties.items()
        return other if is_more else spec

    placed, rivals = (tuple(map(with_settings, specs)) for specs in (devices.placed, devices.rivals))
    extra = tuple(described[name] for name in defaults)
    fixed = {spec.name: spec for spec in (*devices.all, *extra) if spec.name in described}
    return DeviceSet(placed, rivals + extra, defaults), fixed
