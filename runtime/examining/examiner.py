"""The examining process: answers about devices, and about a model on them.

It is the client's to kill like a measuring process. A device is loaded when it is asked about, not before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.ir.build import name_uniquely, ordered_ops
from hsdag.ir.device import DeviceSpec, hetero_properties
from hsdag.ir.errors import ModelError
from hsdag.ir.reader import load_model
from hsdag.runtime.examining.messages import (
    AskDevice,
    AskHetero,
    AskSupport,
    CompareOutputs,
    DeviceFacts,
    ExaminerSetup,
    LargestValues,
    ListDevices,
    ListPlugin,
    Precision,
    ProbePrecision,
    ProbeTransfer,
    RunBeside,
)
from hsdag.runtime.examining.network import network
from hsdag.runtime.examining.transfer import probe_transfer
from hsdag.runtime.measuring.messages import Request
from hsdag.runtime.measuring.serving import main
from hsdag.runtime.measuring.side_by_side import probe_model, times_beside
from hsdag.runtime.measuring.worker import make_inputs, output_difference
from hsdag.runtime.measuring.worker_profile import device_memory_bytes
from hsdag.runtime.platforms.devices import make_core
from hsdag.runtime.platforms.inference import array_of, device_calls, infer_checked

SINGLE = {"INFERENCE_PRECISION_HINT": "f32"}
DRIVER = re.compile(rb"\bdriver=([^;\]]+)")
"""What a model that the GPU plugin has compiled says of the driver it was compiled with, in its first bytes."""

HEADER_BYTES = 4096


class Examiner:
    """Devices one at a time, and a model for them, if there is one."""

    def __init__(self, setup: ExaminerSetup) -> None:
        self.setup = setup

    @cached_property
    def model(self) -> ov.Model:
        """The model under unique names, whatever its shapes. Raises ModelError."""
        assert self.setup.model is not None
        model = load_model(self.setup.model, self.setup.shapes, dynamic=True)
        name_uniquely(model)
        return model

    def handle(self, request: Request[Any]) -> Any:
        """The answer to a request, by its type."""
        actions: dict[type[Request[Any]], Callable[[Any], Any]] = {
            ListDevices: lambda _: tuple(str(name) for name in ov.Core().available_devices),
            ListPlugin: lambda given: _names(given.plugin),
            AskDevice: lambda given: _facts(given.device),
            ProbePrecision: lambda given: _precision(given.device),
            CompareOutputs: self.compare,
            RunBeside: _beside,
            ProbeTransfer: lambda given: probe_transfer(given.writer, given.reader),
            AskHetero: self.distribution,
            AskSupport: self.support,
            LargestValues: self.largest,
        }
        with device_calls():
            return actions[type(request)](request)

    def compare(self, request: CompareOutputs) -> Mapping[str, float | None]:
        """Distance of a device's outputs from the CPU's in f32; from a fresh state where the model keeps one."""
        inputs = make_inputs(_static(self.model), request.seed, None)
        return output_difference(
            _outputs(request.device, self.model, inputs, {}), _outputs(_CPU, self.model, inputs, SINGLE)
        )

    def distribution(self, request: AskHetero) -> list[str]:
        """HETERO's own answer: it runs the same code when it compiles a model."""
        target = "HETERO:" + ",".join(spec.openvino_name for spec in request.devices)
        properties = hetero_properties(request.devices, request.properties)
        chosen = make_core(request.devices).query_model(self.model, target, properties)
        return [str(chosen.get(name, "")) for name, _ in ordered_ops(self.model)]

    def support(self, request: AskSupport) -> list[bool]:
        """What the device's plugin says."""
        chosen = make_core((request.device,)).query_model(self.model, request.device.openvino_name)
        return [name in chosen for name, _ in ordered_ops(self.model)]

    def largest(self, request: LargestValues) -> list[float]:
        """One inference of a clone that gives the largest magnitude of every op beside its own results."""
        inputs = make_inputs(_static(self.model), request.seed, None)
        watched = self.model.clone()
        _cut_off(watched, request.most)
        own, ports = len(watched.outputs), [port for node in watched.get_ordered_ops() for port in _data_of(node)]
        watched.add_results([opset13.result(_largest(port)) for port in ports])
        found = {name: 0.0 for name, _ in ordered_ops(self.model)}
        for port, array in zip(ports, _outputs(_CPU, watched, inputs, SINGLE)[own:], strict=True):
            name = port.get_node().get_friendly_name()
            found[name] = max(found[name], float(array))
        return list(found.values())


_CPU = DeviceSpec("CPU", "CPU")


def _static(model: ov.Model) -> ov.Model:
    """The model. Raises ModelError where it cannot be run without more shapes."""
    if model.is_dynamic() and any(port.get_partial_shape().is_dynamic for port in model.inputs):
        raise ModelError("the model has inputs of dynamic shapes: fix them with --shape")
    return model


def _outputs(spec: DeviceSpec, model: ov.Model, inputs: list[ov.Tensor], properties: Mapping[str, str]) -> list[Any]:
    """Outputs of one inference."""
    compiled = make_core((spec,)).compile_model(model, spec.openvino_name, dict(properties))
    request = compiled.create_infer_request()
    for port, tensor in zip(model.inputs, inputs, strict=True):
        request.set_tensor(port, tensor)
    infer_checked(request)
    return [array_of(request.get_tensor(port)) for port in model.outputs]


def _cut_off(model: ov.Model, most: float) -> None:
    """Limit the magnitude of constants of single and double precision, in place."""
    for node in model.get_ordered_ops():
        is_wide = node.get_type_name() == "Constant" and node.get_output_element_type(0) in (ov.Type.f32, ov.Type.f64)
        if is_wide and np.max(np.abs(node.data), initial=0.0) > most:
            limited = opset13.constant(np.clip(node.data, -most, most))
            for reader in node.output(0).get_target_inputs():
                reader.replace_source_output(limited.output(0))


def _data_of(node: ov.Node) -> list[Any]:
    """The outputs of an op that are real numbers, of known rank, and not constant."""
    if node.get_type_name() in ("Constant", "Result", "Assign"):
        return []
    ports = [port for port in node.outputs() if port.get_element_type().is_real()]
    return [port for port in ports if port.get_partial_shape().rank.is_static]


def _largest(port: Any) -> ov.Node:
    """The largest magnitude in a tensor of known rank."""
    axes = np.arange(len(port.get_partial_shape()))
    return opset13.reduce_max(opset13.abs(port), opset13.constant(axes))


def _names(plugin: str) -> tuple[str, ...]:
    """A plugin's devices, by OpenVINO's names; none where the plugin is missing."""
    try:
        ids = [str(each) for each in ov.Core().get_property(plugin, "AVAILABLE_DEVICES")]
    except RuntimeError:
        return ()
    return tuple(f"{plugin}.{each}" if len(ids) > 1 else plugin for each in ids)


def _facts(spec: DeviceSpec) -> DeviceFacts:
    core = make_core((spec,))
    name = spec.openvino_name

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


def _precision(spec: DeviceSpec) -> Precision:
    model, rng = network(), np.random.default_rng(0)
    inputs = [ov.Tensor(rng.standard_normal(tuple(port.get_shape())).astype(np.float32)) for port in model.inputs]
    expected = _outputs(_CPU, model, inputs, SINGLE)
    default = output_difference(_outputs(spec, model, inputs, {}), expected)
    single = output_difference(_outputs(spec, model, inputs, SINGLE), expected)
    return Precision(default, single, _driver(spec, model))


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


def _beside(request: RunBeside) -> list[list[list[tuple[float, float]]]]:
    core = make_core(request.devices)
    model = probe_model(request.kind)
    compiled = [core.compile_model(model, spec.openvino_name) for spec in request.devices]
    return times_beside([each.create_infer_request() for each in compiled], request.for_s)


if __name__ == "__main__":
    main(Examiner)
