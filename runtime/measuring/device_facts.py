"""What devices say of themselves. Each is loaded when it is asked about, not before."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import openvino as ov
import psutil

from hsdag.ir.device import DeviceSpec
from hsdag.runtime.machine.devices import device_calls, make_core
from hsdag.runtime.measuring.differences import CPU_IN_SINGLE, output_difference, outputs_on
from hsdag.runtime.measuring.inferences import make_courses
from hsdag.runtime.measuring.messages import CallHandler, DeviceFacts, Precision, Transfer
from hsdag.runtime.measuring.probes import probe_model, probe_transfer

DRIVER = re.compile(rb"\bdriver=([^;\]]+)")
"""What a model that the GPU plugin has compiled says of the driver it was compiled with, in its first bytes."""

HEADER_BYTES = 4096


class DeviceExaminer(CallHandler):
    """Answers about devices without a model."""

    @device_calls()
    def list_devices(self, plugin: str | None = None) -> tuple[str, ...]:
        """The names of the devices that OpenVINO finds, or one plugin; none where it is missing."""
        core = ov.Core()
        if plugin is None:
            return tuple(str(name) for name in core.available_devices)
        try:
            ids = [str(each) for each in core.get_property(plugin, "AVAILABLE_DEVICES")]
        except RuntimeError:
            return ()
        return tuple(f"{plugin}.{each}" if len(ids) > 1 else plugin for each in ids)

    @device_calls()
    def device_facts(self, spec: DeviceSpec) -> DeviceFacts:
        """The properties of a device."""
        name, core = spec.openvino_name, make_core((spec,))

        def said(key: str) -> Any:
            try:
                return core.get_property(name, key)
            except RuntimeError:
                return None

        kind, hint = said("DEVICE_TYPE"), said("INFERENCE_PRECISION_HINT")
        return DeviceFacts(
            full_name=str(said("FULL_DEVICE_NAME")),
            kind=None if kind is None else str(kind).rpartition(".")[2].lower(),
            plugin_version=", ".join(str(version.build_number) for version in core.get_versions(name).values()),
            memory_bytes=device_memory_bytes(core, name),
            capabilities=tuple(str(each) for each in said("OPTIMIZATION_CAPABILITIES") or ()),
            precision=None if hint is None else hint.get_type_name(),
        )

    @device_calls()
    def precision(self, spec: DeviceSpec) -> Precision:
        """What a small network gives on a device in both precisions."""
        model = probe_model("compute")
        single = replace(spec, properties={**spec.properties, **CPU_IN_SINGLE.properties})
        courses = make_courses(model, (), 0, None)
        expected, default, in_single = (outputs_on(each, model, courses) for each in (CPU_IN_SINGLE, spec, single))
        distances = output_difference(default, expected), output_difference(in_single, expected)
        return Precision(*distances, _driver(spec, model))

    @device_calls()
    def transfer(self, writer: DeviceSpec, reader: DeviceSpec) -> Transfer:
        """What it takes to have one device write a tensor of some MB that another one reads."""
        return probe_transfer(writer, reader)


def _driver(spec: DeviceSpec, model: ov.Model) -> str | None:
    """The version of the driver, where a device tells it, itself or in a model that it has compiled."""
    core = make_core((spec,))
    if "NPU_DRIVER_VERSION" in core.get_property(spec.openvino_name, "SUPPORTED_PROPERTIES"):
        return str(core.get_property(spec.openvino_name, "NPU_DRIVER_VERSION"))
    if "GPU" not in spec.plugin:
        return None
    header = core.compile_model(model, spec.openvino_name).export_model().read(HEADER_BYTES)
    found = DRIVER.search(header)
    return None if found is None else found[1].decode(errors="replace")


def device_memory_bytes(core: Any, name: str) -> float | None:
    """Memory of a device; the machine's for those that compute in it, None where it is not known."""
    try:
        return float(core.get_property(name, "GPU_DEVICE_TOTAL_MEM_SIZE"))
    except RuntimeError:
        return float(psutil.virtual_memory().total) if "CPU" in name else None
