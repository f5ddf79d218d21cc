"""Outputs of models on a device or op by op, and distances between outputs.

Legend: N ops of the model, I inputs, R results.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13

from hsdag.base.errors import ExecutionError, ModelError
from hsdag.ir.device import DeviceSpec
from hsdag.ir.elements import array_of, tensor_of
from hsdag.runtime.machine.devices import PRECISION, infer_checked, make_core
from hsdag.runtime.measuring.inferences import CourseRunner, InferenceSequence
from hsdag.runtime.measuring.messages import Distance

CPU_IN_SINGLE = DeviceSpec("CPU", "CPU", {PRECISION: "f32"})
"""Device with whose outputs those of other devices are compared."""


def outputs_on(spec: DeviceSpec, model: ov.Model, courses: Sequence[InferenceSequence]) -> list[NDArray[Any]]:
    """Return the outputs of all inferences of courses on a device, which is loaded for this call alone."""
    request = make_core((spec,)).compile_model(model, spec.openvino_name).create_infer_request()
    return CourseRunner(request, courses, stateful=bool(model.get_variables())).outputs(len(model.outputs))


def op_alone(
    model: ov.Model, name: str, device: DeviceSpec, courses: Sequence[InferenceSequence]
) -> tuple[ov.Model, tuple[InferenceSequence, ...]]:
    """Return op ``name`` as a model of its own, and its inputs as a device computes them in the first inference."""
    read = dependent_inputs(model, name)
    arrays = outputs_on(device, up_to(model, read), courses) if read else []
    ports = {(source, k): port for source in read for k, port in enumerate(_node(model, source).outputs())}
    pairs = zip(ports.items(), arrays, strict=False)
    tensors = {key: tensor_of(port.get_element_type(), array) for (key, port), array in pairs}
    node = _node(model, name)
    wanted = [(source.get_node().get_friendly_name(), source.get_index()) for source in node.input_values()]
    excerpt, inputs = _alone_with(node, {port: tensors[key] for port, key in enumerate(wanted) if key in tensors})
    return excerpt, (InferenceSequence((tuple(inputs),)),)


def halved(port: Any, tensor: ov.Tensor) -> ov.Tensor:
    """Return the first half of a tensor along every dynamic axis, as far as its bounds allow."""
    axes = zip(port.get_partial_shape(), tensor.shape, strict=True)
    kept = tuple(slice(size if axis.is_static else max(axis.min_length, (size + 1) // 2)) for axis, size in axes)
    return tensor_of(tensor.element_type, array_of(tensor)[kept])


def up_to(model: ov.Model, names: tuple[str, ...]) -> ov.Model:
    """Return a clone of a model whose results are the outputs of the ops ``names`` alone; inputs and state stay.

    Ops have unique names. Raises ModelError for a name that the model does not have.
    """
    excerpt = model.clone()
    ports = [port for name in names for port in _node(excerpt, name).outputs()]
    for result in excerpt.get_results():
        excerpt.remove_result(result)
    excerpt.add_results([opset13.result(port) for port in ports])
    return excerpt


def dependent_inputs(model: ov.Model, name: str) -> tuple[str, ...]:
    """Return the ops that op ``name`` reads and that depend on the model's inputs or state, each once."""
    depend: set[ov.Node] = set()
    for node in model.get_ordered_ops():
        if node.get_type_name() in ("Parameter", "ReadValue") or depend.intersection(_sources(node)):
            depend.add(node)
    return tuple(dict.fromkeys(x.get_friendly_name() for x in _sources(_node(model, name)) if x in depend))


def _sources(node: ov.Node) -> list[ov.Node]:
    return [value.get_node() for value in node.input_values()]


def _node(model: ov.Model, name: str) -> Any:
    node = next((node for node in model.get_ordered_ops() if node.get_friendly_name() == name), None)
    if node is None:
        raise ModelError(f"the model has no op {name!r}")
    return node


def output_difference(outputs: list[NDArray[Any]], expected: list[NDArray[Any]]) -> Distance:
    """Return the distance of outputs, the largest over all of them (Table 4 of the HSDAG paper uses the same figures).

    ``max_relative`` is the largest difference over the largest finite magnitude expected. Values that are not
    finite must be the same on both sides; where they are not, ``max_relative`` is None, as are the figures
    that are not defined. Strings must be the same too. Raises ExecutionError where shapes differ.
    """
    worst: dict[str, Any] = {"max_abs": 0.0, "max_relative": 0.0, "mse": 0.0, "l2": 0.0, "cosine": 1.0}
    for number, (left, right) in enumerate(zip(outputs, expected, strict=True)):
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


LARGE_PRODUCT = 10**7
"""Multiplications beyond which a matrix product is compiled: OpenVINO's own evaluation of it is a plain loop."""


def op_by_op(
    core: Any,
    model: ov.Model,
    inferences: Sequence[Sequence[ov.Tensor]],
    limit_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[NDArray[Any]]:
    """Compute outputs [R] of a model for each of ``inferences``, inputs [I], every op by itself in its own precision.

    OpenVINO evaluates an op where it has code for that; others are compiled alone for the CPU in single precision. No
    op is fused with another, and constants are read as they stand. The first inference finds an empty state. Raises
    RuntimeError where an op runs neither way, or after ``limit_s`` seconds.
    """
    state: dict[str, ov.Tensor] = {}
    arrays = list[NDArray[Any]]()
    end_s = clock() + limit_s
    for inputs in inferences:
        excerpt = model.clone()  # an op compiled alone forgets that its shape is dynamic
        nodes = excerpt.get_ordered_ops()
        reads = [[_key(source) for source in node.input_values()] for node in nodes]
        values = {(node, 0): tensor for node, tensor in zip(excerpt.get_parameters(), inputs, strict=True)}
        readers = Counter(key for keys in reads for key in keys)
        left = dict(state)
        for done, (node, keys) in enumerate(zip(nodes, reads, strict=True)):
            if clock() > end_s:
                raise RuntimeError(f"op by op, {done} of {len(nodes)} ops took {limit_s:.0f} s, which is the limit")
            kind = node.get_type_name()
            if kind == "Assign":
                left[node.get_variable_id()] = values[keys[0]]
            elif kind == "ReadValue" and node.get_variable_id() in state:
                values[node, 0] = state[node.get_variable_id()]
            elif kind not in ("Parameter", "Result"):
                outputs = _outputs_of(core, node, [values[key] for key in keys])
                values |= {(node, k): tensor for k, tensor in enumerate(outputs)}
                readers.subtract(keys)
                for key in keys:
                    if not readers[key]:
                        values.pop(key, None)
        state = left
        arrays += [array_of(values[_key(result.input_value(0))]) for result in excerpt.get_results()]
    return arrays


def _key(output: Any) -> tuple[ov.Node, int]:
    return output.get_node(), output.get_index()


def _outputs_of(core: Any, node: ov.Node, inputs: Sequence[ov.Tensor]) -> list[ov.Tensor]:
    if node.get_type_name() == "Constant":
        return [node.get_tensor_view()]
    if node.get_type_name() == "ReadValue":
        return list(inputs)
    static = all(not port.get_partial_shape().is_dynamic for port in node.outputs())
    is_product = static and node.get_type_name() == "MatMul"
    multiplications = math.prod(node.get_output_shape(0)) * node.get_input_shape(0)[-1] if is_product else 0
    if static and multiplications <= LARGE_PRODUCT:
        outputs = [ov.Tensor(port.get_element_type(), port.get_shape()) for port in node.outputs()]
        if node.evaluate(outputs, list(inputs)):
            return outputs
    sources = zip(_sources(node), enumerate(inputs), strict=True)
    model, tensors = _alone_with(node, {k: x for source, (k, x) in sources if source.get_type_name() != "Constant"})
    compiled = core.compile_model(model, "CPU", CPU_IN_SINGLE.properties)
    request = compiled.create_infer_request()
    for port, tensor in zip(compiled.inputs, tensors, strict=True):
        request.set_tensor(port, tensor)
    infer_checked(request)
    return [request.get_output_tensor(k) for k in range(len(compiled.outputs))]


def _alone_with(node: ov.Node, tensors: Mapping[int, ov.Tensor]) -> tuple[ov.Model, list[ov.Tensor]]:
    """Return an op that reads ``tensors``, by input port, as a model, and the tensors of the model's inputs.

    Real numbers become inputs, others constants, as plugins may have to know a shape or an axis.
    """
    real = {k: tensor for k, tensor in tensors.items() if tensor.element_type.is_real()}
    return alone(node, {**tensors, **{k: ov.PartialShape(list(x.shape)) for k, x in real.items()}}), [*real.values()]


def alone(node: ov.Node, reads: Mapping[int, ov.Tensor | ov.PartialShape]) -> ov.Model:
    """Return a copy of an op as a model.

    By input port, it reads a constant where ``reads`` has a tensor, an input where it has a shape, else what it read.
    """
    sources = node.input_values()
    parameters = []
    try:
        for k, what in reads.items():
            source = opset13.constant(what) if isinstance(what, ov.Tensor) else None
            if source is None:
                source = opset13.parameter(what, sources[k].get_element_type())
                parameters.append(source)
            node.input(k).replace_source_output(source.output(0))
        return ov.Model([opset13.result(port) for port in node.outputs()], parameters, node.get_friendly_name()).clone()
    finally:
        for k, source in enumerate(sources):
            node.input(k).replace_source_output(source)
