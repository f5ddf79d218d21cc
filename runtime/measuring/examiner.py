"""The examining process: answers about devices, and about a model on them.

It is the client's to kill like a measuring process. A device is loaded when it is asked about, not before.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.ir.build import name_uniquely, ordered_ops
from hsdag.ir.device import DeviceSpec, hetero_properties
from hsdag.ir.errors import ModelError
from hsdag.ir.processes import Request, main
from hsdag.ir.reader import load_model
from hsdag.runtime.measuring.inferences import Course, CourseRunner, make_courses
from hsdag.runtime.measuring.messages import (
    AskDevice,
    AskHetero,
    AskSupport,
    CompareAt,
    CompareOutputs,
    CompareShrunk,
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
from hsdag.runtime.measuring.probes import probe_model, probe_transfer, times_beside
from hsdag.runtime.measuring.references import alone
from hsdag.runtime.measuring.worker import device_memory_bytes, output_difference
from hsdag.runtime.platforms.devices import make_core
from hsdag.runtime.platforms.inference import device_calls

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
        model = load_model(self.setup.model, self.setup.shapes, dynamic=True, guarded=False)
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
            CompareShrunk: self.compare_shrunk,
            CompareAt: self.compare_at,
            RunBeside: _beside,
            ProbeTransfer: lambda given: probe_transfer(given.writer, given.reader),
            AskHetero: self.distribution,
            AskSupport: self.support,
            LargestValues: self.largest,
        }
        with device_calls():
            return actions[type(request)](request)

    def compare(self, request: CompareOutputs) -> Mapping[str, float | None]:
        """Distance of a device's outputs from the CPU's in f32, over all inferences of the scenarios."""
        found, expected = self.outputs(request.device, {}), self.outputs(_CPU, SINGLE)
        return output_difference(found, expected)

    def compare_shrunk(self, request: CompareShrunk) -> Mapping[str, float | None] | None:
        """Distance of outputs on smaller inputs: after an inference on larger ones, against a new request."""
        courses = make_courses(self.model, self.setup.scenarios, self.setup.seed, self.setup.inputs)
        larger = courses[0].inferences[-1]
        smaller = [_halved(port, tensor) for port, tensor in zip(self.model.inputs, larger, strict=True)]
        compiled = make_core((request.device,)).compile_model(self.model, request.device.openvino_name)
        used, new = compiled.create_infer_request(), compiled.create_infer_request()
        used.infer(list(larger))
        try:
            expected = [np.array(array) for array in new.infer(smaller).values()]
            found = [np.array(array) for array in used.infer(smaller).values()]
        except RuntimeError:  # half of these inputs may contradict each other
            return None
        return output_difference(found, expected)

    def compare_at(self, request: CompareAt) -> Mapping[str, float | None]:
        """Distance of two devices' results, of the model, up to an op, or of an op alone on equal inputs."""
        first, second = request.devices
        if request.op is not None and request.alone:
            read = inputs_of(self.model, request.op)
            excerpt = up_to(self.model, read)
            arrays = self.outputs(second, {}, excerpt) if read else []
            read_keys = [(name, k) for name in read for k in range(len(_node(self.model, name).outputs()))]
            first_inference = zip(read_keys, arrays, strict=False)
            tensors = {key: _tensor(array) for key, array in first_inference}
            node = _node(self.model.clone(), request.op)
            sources = [port.get_source_output() for port in node.inputs()]
            keys = [(source.get_node().get_friendly_name(), source.get_index()) for source in sources]
            model, given = alone(node, {port: tensors[key] for port, key in enumerate(keys) if key in tensors})
            courses = (Course((tuple(given),)),)
            return output_difference(*(_outputs(spec, model, courses, {}) for spec in (first, second)))
        model = self.model if request.op is None else up_to(self.model, (request.op,))
        return output_difference(*(self.outputs(spec, {}, model) for spec in (first, second)))

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
        watched = self.model.clone()
        _cut_off(watched, request.most)
        own, ports = len(watched.outputs), [port for node in watched.get_ordered_ops() for port in _data_of(node)]
        watched.add_results([opset13.result(_largest(port)) for port in ports])
        found = {name: 0.0 for name, _ in ordered_ops(self.model)}
        names = [""] * own + [port.get_node().get_friendly_name() for port in ports]
        for name, array in zip(itertools.cycle(names), self.outputs(_CPU, SINGLE, watched), strict=False):
            if name and np.isfinite(array):
                found[name] = max(found[name], float(array))
        return list(found.values())

    def outputs(self, device: DeviceSpec, properties: Mapping[str, str], model: ov.Model | None = None) -> list[Any]:
        """Outputs of the model, or a clone with more outputs, one inference of the scenarios after another.

        Raises ModelError where there are no scenarios and shapes are dynamic.
        """
        model = model or self.model
        if not self.setup.scenarios and any(port.get_partial_shape().is_dynamic for port in model.inputs):
            raise ModelError("the model has inputs of dynamic shapes: give --data-shape, or fix them with --shape")
        courses = make_courses(self.model, self.setup.scenarios, self.setup.seed, self.setup.inputs)
        return _outputs(device, model, courses, properties)


_CPU = DeviceSpec("CPU", "CPU")


def _outputs(spec: DeviceSpec, model: ov.Model, courses: Sequence[Course], properties: Mapping[str, str]) -> list[Any]:
    """Outputs of all inferences of courses."""
    compiled = make_core((spec,)).compile_model(model, spec.openvino_name, dict(properties))
    stateful = bool(model.get_variables())
    return CourseRunner(compiled.create_infer_request(), model.inputs, courses, stateful=stateful).outputs(
        model.outputs
    )


def _halved(port: Any, tensor: ov.Tensor) -> ov.Tensor:
    """The first half of a tensor along every axis that is dynamic, as far as its bounds allow."""
    axes = zip(port.get_partial_shape(), tensor.shape, strict=True)
    kept = tuple(slice(size if axis.is_static else max(axis.min_length, (size + 1) // 2)) for axis, size in axes)
    return _tensor(np.asarray(tensor.data)[kept])


def _tensor(array: Any) -> ov.Tensor:
    """A tensor of its own with the values of an array."""
    return ov.Tensor(np.ascontiguousarray(array))


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
    model = probe_model("compute")
    courses = make_courses(model, (), 0, None)
    expected = _outputs(_CPU, model, courses, SINGLE)
    default = output_difference(_outputs(spec, model, courses, {}), expected)
    single = output_difference(_outputs(spec, model, courses, SINGLE), expected)
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


def up_to(model: ov.Model, names: tuple[str, ...]) -> ov.Model:
    """A clone of a model whose results are all outputs of the ops ``names`` alone; inputs and state are the model's.

    Ops bear unique names. Raises ModelError for a name that the model does not have.
    """
    excerpt = model.clone()
    ports = [port for name in names for port in _node(excerpt, name).outputs()]
    for result in excerpt.get_results():
        excerpt.remove_result(result)
    excerpt.add_results([opset13.result(port) for port in ports])
    return excerpt


def inputs_of(model: ov.Model, name: str) -> tuple[str, ...]:
    """The ops that op ``name`` reads and that depend on the model's inputs or state, each once."""
    found: dict[str, None] = {}
    for port in _node(model, name).inputs():
        source = port.get_source_output().get_node()
        if _depends_on_data(source):
            found[source.get_friendly_name()] = None
    return tuple(found)


def _depends_on_data(node: Any) -> bool:
    """Whether an op is computed from an input or a variable."""
    seen, to_do = set[str](), [node]
    while to_do:
        current = to_do.pop()
        if current.get_type_name() in ("Parameter", "ReadValue"):
            return True
        if current.get_name() not in seen:
            seen.add(current.get_name())
            to_do += [value.get_node() for value in current.input_values()]
    return False


def _node(model: ov.Model, name: str) -> Any:
    found = next((node for node in model.get_ordered_ops() if node.get_friendly_name() == name), None)
    if found is None:
        raise ModelError(f"the model has no op {name!r}")
    return found


if __name__ == "__main__":
    main(lambda setup, _: Examiner(setup))
