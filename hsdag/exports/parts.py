"""Cut a placed model into the parts that the work-conserving executor runs, and number the tensors that they read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov

from hsdag.ir.device import DeviceIndex, DeviceSpec
from hsdag.ir.graph.build import graph_of, ordered_ops
from hsdag.ir.graph.gates import has_one_thread
from hsdag.ir.placement.applied import with_shapes
from hsdag.ir.placement.divided import divided
from hsdag.ir.placement.homes import op_devices
from hsdag.ir.placement.placement import Placement
from hsdag.runtime.executor.cut import MODEL_INPUT, Tensor
from hsdag.runtime.executor.merging import plan_cut
from hsdag.runtime.executor.openvino_backend import Submodel, build_submodels
from hsdag.runtime.machine.devices import in_bf16
from hsdag.runtime.objectives import find_objective


@dataclass(frozen=True)
class PortSource:
    """Output ``port`` of part ``part``, or input ``port`` of the model if ``part`` is MODEL_INPUT."""

    part: int
    port: int


@dataclass(frozen=True, eq=False)
class Part:
    """A convex piece of a model that runs on one device, and what each of its inputs reads."""

    model: ov.Model
    device: DeviceSpec
    reads: tuple[PortSource, ...]


@dataclass(frozen=True, eq=False)
class PlacedParts:
    """Parts in an order in which they can run, and the source of each output of the model."""

    parts: tuple[Part, ...]
    outputs: tuple[PortSource, ...]


def placed_parts(model: ov.Model, placement: Placement) -> PlacedParts:
    """Return the parts of a placed model, cut as ``compile_placed`` cuts it; ``model`` is not changed.

    An output that repeats an input of the model is read from that input. Raises PlacementError if the placement is for
    another model or has too many parts.
    """
    model, placement = divided(with_shapes(placement, model), placement)
    graph = graph_of(model)
    devices = placement.used_specs
    home = np.asarray(DeviceIndex.of(devices).positions(op_devices(placement, graph)), dtype=np.int64)
    is_steady = find_objective(placement.objective).is_steady
    cut = plan_cut(graph, home, len(devices), by_load=is_steady).cut
    op = {node.get_name(): v for v, (_, node) in enumerate(ordered_ops(model))}
    input_ops = (op[node.get_name()] for node in model.get_parameters())
    fed = {Tensor(MODEL_INPUT, v, 0): PortSource(MODEL_INPUT, k) for k, v in enumerate(input_ops)}
    parts: list[Part] = []
    single = {d for d, device in enumerate(devices) if has_one_thread(device)}
    submodels = build_submodels(model, cut, in_bf16(devices), single)
    for subgraph, submodel in zip(cut.subgraphs, submodels, strict=True):
        reads = _trimmed(submodel, fed, len(parts))
        if submodel.model.outputs:
            parts.append(Part(submodel.model, devices[subgraph.device], reads))
    results = dict(cut.results)
    return PlacedParts(tuple(parts), tuple(fed[results[op[node.get_name()]]] for node in model.get_results()))


def _trimmed(submodel: Submodel, fed: dict[Tensor, PortSource], part: int) -> tuple[PortSource, ...]:
    """Return what the inputs of submodel number ``part`` read, and add its outputs to ``fed``.

    Removes the constant that only the executor needs, inputs that nothing reads, and outputs that repeat an input or
    another output.
    """
    model = submodel.model
    model.remove_result(model.get_results()[-1])
    pairs = zip(model.get_parameters(), submodel.inputs, strict=True)
    source_of = {parameter.get_name(): fed[tensor] for parameter, tensor in pairs}
    handed: dict[tuple[str, int], PortSource] = {}
    for result, tensor in zip(model.get_results(), submodel.outputs, strict=True):
        source = result.input_value(0)
        passed = _passed_on(source).get_node().get_name()
        key = (source.get_node().get_name(), source.get_index())
        if passed in source_of or key in handed:
            fed[tensor] = source_of[passed] if passed in source_of else handed[key]
            model.remove_result(result)
        else:
            fed[tensor] = handed[key] = PortSource(part, len(handed))
    read = {value.get_node().get_name() for node in model.get_ordered_ops() for value in node.input_values()}
    for parameter in model.get_parameters():
        if parameter.get_name() not in read:
            model.remove_parameter(parameter)
    return tuple(source_of[parameter.get_name()] for parameter in model.get_parameters())


def _passed_on(value: ov.Output) -> ov.Output:
    """Skip Converts to the type that they read; the CPU plugin may return zeros for a model of nothing else."""
    node = value.get_node()
    if node.get_type_name() == "Convert" and node.get_input_element_type(0) == node.get_output_element_type(0):
        return _passed_on(node.input_value(0))
    return value
