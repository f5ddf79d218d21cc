"""Probes of a measuring process, whose compiled models are kept for further windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.runtime.machine.devices import device_calls, infer_checked
from hsdag.runtime.measuring.candidates import Compiler
from hsdag.runtime.measuring.messages import Beside, Probe, Probed
from hsdag.runtime.measuring.probes import probe, probe_model, probe_request, stretch, times_beside


class KeptProbes:
    """Requests of small models, and of the model on devices side by side, which further windows of a profile need."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._requests: dict[object, Any] = {}

    def probe(self, what: Probe) -> Probed:
        """Return the figures of a probe."""
        key = what.devices, what.kind, what.tensors, what.size_bytes
        if key not in self._requests:
            with device_calls():
                self._requests[key] = probe_request(self._compiler.core, self._compiler.specs, what)
        return probe(self._requests[key], what)

    def pulse(self) -> list[float]:
        """Return the seconds of the same small model on each physical device, at all of them at once."""
        names = dict.fromkeys(spec.plugin for spec in self._compiler.specs)
        if "pulse" not in self._requests:
            with device_calls():
                model = probe_model("compute")
                core = self._compiler.core
                requests = [core.compile_model(model, name).create_infer_request() for name in names]
                for request in requests:
                    infer_checked(request)
                self._requests["pulse"] = requests
        with device_calls():
            return stretch(self._requests["pulse"])

    def contention(self, devices: Sequence[DeviceSpec], kind: str, whole_devices: Sequence[DeviceSpec]) -> Beside:
        """Measure one window of devices alone and side by side, and of ``whole_devices`` alone."""
        key = kind, DeviceIndex.of((*devices, *whole_devices)).openvino_names
        if key not in self._requests:
            self._requests[key] = self._requests_beside((*devices, *whole_devices), kind)
        return times_beside(self._requests[key], len(whole_devices))

    def forget(self) -> None:
        """Release the compiled models."""
        self._requests.clear()

    def _requests_beside(self, devices: Sequence[DeviceSpec], kind: str) -> list[Any]:
        """Return requests of the model, or of a small one, on each device, which have run once."""
        measured = self._compiler.measured
        model = measured.model if kind == "model" else probe_model(kind)
        core, names = self._compiler.core_of(devices), DeviceIndex.of(devices).openvino_names
        with self._compiler.compiling(",".join(names)), device_calls():
            compiled = [core.compile_model(model, name) for name in names]
            if kind == "model":
                requests = [measured.runner(each).stream(measured.courses[0]) for each in compiled]
            else:
                requests = [each.create_infer_request() for each in compiled]
            for request in requests:
                infer_checked(request)
        return requests
