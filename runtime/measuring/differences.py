"""How far outputs of a model on one device are from those on another one: of all of it, or up to an op.

Legend: N ops of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import ExecutionError, ModelError
from hsdag.runtime.machine.devices import make_core
from hsdag.runtime.measuring.inferences import Course, CourseRunner
from hsdag.runtime.measuring.messages import Distance
from hsdag.runtime.measuring.references import alone

CPU_IN_SINGLE = DeviceSpec("CPU", "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
"""What outputs of devices are compared with."""


def outputs_on(spec: DeviceSpec, model: ov.Model, courses: Sequence[Course]) -> list[NDArray[Any]]:
    """Outputs of all inferences of courses on a device, which is loaded for that alone."""
    request = make_core((spec,)).compile_model(model, spec.openvino_name).create_infer_request()
    runner = CourseRunner(request, model.inputs, courses, stateful=bool(model.get_variables()))
    return runner.outputs(model.outputs)


def op_alone(
    model: ov.Model, name: str, device: DeviceSpec, courses: Sequence[Course]
) -> tuple[ov.Model, tuple[Course, ...]]:
    """Op ``name`` as a model of its own, and its inputs as a device computes them in the first inference."""
    read = inputs_of(model, name)
    arrays = outputs_on(device, up_to(model, read), courses) if read else []
    keys = [(source, k) for source in read for k in range(len(_node(model, source).outputs()))]
    tensors = {key: _tensor(array) for key, array in zip(keys, arrays, strict=False)}
    node = _node(model.clone(), name)
    sources = [port.get_source_output() for port in node.inputs()]
    wanted = [(source.get_node().get_friendly_name(), source.get_index()) for source in sources]
    excerpt, given = alone(node, {port: tensors[key] for port, key in enumerate(wanted) if key in tensors})
    return excerpt, (Course((tuple(given),)),)


def largest_results(model: ov.Model, most: float) -> tuple[ov.Model, list[str]]:
    """A clone that gives the largest magnitude of every op behind its own results; the ops' names, "" for those.

    Constants are cut off at ``most``.
    """
    watched = model.clone()
    _cut_off(watched, most)
    own, ports = len(watched.outputs), [port for node in watched.get_ordered_ops() for port in _data_of(node)]
    watched.add_results([opset13.result(_largest(port)) for port in ports])
    return watched, [""] * own + [port.get_node().get_friendly_name() for port in ports]


def halved(port: Any, tensor: ov.Tensor) -> ov.Tensor:
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


def output_difference(found: list[NDArray[Any]], expected: list[NDArray[Any]]) -> Distance:
    """Distance of outputs, the largest over all of them (Table 4 of the HSDAG paper uses the same figures).

    ``max_relative`` is the largest difference over the largest finite magnitude expected. Values that are not
    finite must be the same on both sides; where they are not, ``max_relative`` is None and so are the figures
    that cannot be told. Strings must be the same too. Raises ExecutionError where shapes differ.
    """
    worst: dict[str, Any] = {"max_abs": 0.0, "max_relative": 0.0, "mse": 0.0, "l2": 0.0, "cosine": 1.0}
    for number, (left, right) in enumerate(zip(found, expected, strict=True)):
        if left.shape != right.shape:
            shapes = f"shape {list(left.shape)}, and {list(right.shape)} is expected"
            raise ExecutionError(f"output {number} has {shapes}")
        if right.dtype.kind in "SU":
            if not np.array_equal(left, right):
                return dict.fromkeys(worst)
            continue
        a, b = left.astype(np.float64).ravel(), right.astype(np.float64).ravel()
        finite = np.isfinite(a) & np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return dict.fromkeys(worst)
        a, b = a[finite], b[finite]
        if not a.size:
            continue
        gap = np.abs(a - b)
        scale = float(np.abs(b).max())
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        figures = {
            "max_abs": float(gap.max()),
            "max_relative": float(gap.max() / scale) if scale else float(gap.max()),
            "mse": float((gap**2).mean()),
            "l2": float(np.linalg.norm(gap)),
        }
        worst |= {name: max(worst[name], figure) for name, figure in figures.items()}
        worst["cosine"] = min(worst["cosine"], float(a @ b) / norm if norm else float(not gap.any()))
    return worst
