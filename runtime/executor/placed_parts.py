"""Placed parts: what the work-conserving executor would run, as models with named inputs and outputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import openvino as ov

from hsdag.ir.graph.build import graph_of, name_uniquely, ordered_ops
from hsdag.ir.graph.reader import input_name
from hsdag.ir.placement.placement import DeviceRecord, Placement, Record
from hsdag.ir.shards.placed import divided
from hsdag.runtime.executor.cut import MODEL_INPUT, Cut, Tensor
from hsdag.runtime.executor.merging import plan_cut
from hsdag.runtime.executor.openvino_backend import Submodel, build_submodels


class TensorSource(Record):
    """Where a tensor comes from: output ``name`` of part number ``part``, or the model's input ``name``."""

    part: int | None
    """None where the caller gives it."""
    name: str


@dataclass(frozen=True, eq=False)
class Part:
    """A convex piece of a model that runs on one device.

    Every input and output of ``model`` has one name; ``sources`` says by the name of an input what it reads. ``ops``
    are the ops placed on the device that the part computes, ``copies`` those placed elsewhere and computed here
    too, all by their friendly names. A part that ``has_state`` keeps variables between inferences.
    """

    model: ov.Model
    device: DeviceRecord
    sources: Mapping[str, TensorSource]
    ops: tuple[str, ...]
    copies: tuple[str, ...] = ()
    has_state: bool = False


@dataclass(frozen=True, eq=False)
class PlacedParts:
    """Parts in an order in which they can run; by name, the model's inputs that are read, and all its outputs.

    With every input and output comes its port in the whole model.
    """

    name: str
    parts: tuple[Part, ...]
    inputs: Mapping[str, ov.Output]
    outputs: Mapping[str, tuple[ov.Output, TensorSource]]


def placed_parts(model: ov.Model, placement: Placement, *, by_load: bool = False) -> PlacedParts:
    """The parts of a placed model, cut as ``compile_placed`` cuts it; ``model`` is not changed.

    What goes from an input of the model straight to an output is no part: the input feeds that output. Raises
    PlacementError when the placement is for another model, or has too many parts.
    """
    placement.check_openvino()
    model, placement = divided(placement.fixed(model), placement)
    graph = graph_of(model)
    devices = [device for device in placement.devices if device.name in placement.used_devices]
    index = {device.name: d for d, device in enumerate(devices)}
    home = np.asarray([index[name] for name in placement.devices_of(graph)], dtype=np.int64)
    cut = plan_cut(graph, home, len(devices), by_load=by_load).cut
    names = _Names(model, cut)
    fed = dict(names.inputs)
    parts: list[Part] = []
    for subgraph, submodel in zip(cut.subgraphs, build_submodels(model, cut), strict=True):
        sources = names.give(submodel, fed, len(parts))
        if not submodel.model.outputs and not submodel.has_state:
            continue
        own = {graph.op_names[v]: bool(home[v] == subgraph.device) for v in subgraph.ops}
        names.restore(submodel.model, set(own))
        inside = {node.get_friendly_name() for node in submodel.model.get_ordered_ops()}
        ops, copies = (tuple(op for op in own if own[op] is is_own and op in inside) for is_own in (True, False))
        parts.append(Part(submodel.model, devices[subgraph.device], sources, ops, copies, submodel.has_state))
    outputs = {name: (port, fed[tensor]) for name, (port, tensor) in names.outputs.items()}
    every = (
        *(source for part in parts for source in part.sources.values()),
        *(source for _, source in outputs.values()),
    )
    read = {each.name for each in every if each.part is None}
    ports = zip(names.inputs.values(), model.inputs, strict=True)
    inputs = {origin.name: port for origin, port in ports if origin.name in read}
    return PlacedParts(graph.name, tuple(parts), inputs, outputs)


class _Names:
    """Names of the tensors of a cut: those of the model for its inputs and outputs, ``OP:PORT`` for all others."""

    def __init__(self, model: ov.Model, cut: Cut) -> None:
        self._graph = cut.graph
        op = {node.get_name(): v for v, (_, node) in enumerate(ordered_ops(model))}
        given = _unique(input_name(port) for port in model.inputs)
        nodes = (port.get_node().get_name() for port in model.inputs)
        self.inputs = {
            Tensor(MODEL_INPUT, op[node], 0): TensorSource(part=None, name=name)
            for node, name in zip(nodes, given, strict=True)
        }
        tensor_of = dict(cut.results)
        self.outputs = {
            name: (port, tensor_of[op[port.get_node().get_name()]])
            for port, name in zip(model.outputs, _unique(input_name(port) for port in model.outputs), strict=True)
        }

    def give(self, submodel: Submodel, fed: dict[Tensor, TensorSource], part: int) -> dict[str, TensorSource]:
        """Name the inputs and outputs of a submodel, which is number ``part``; what feeds its inputs, by name.

        Adds what it hands out to ``fed``. Takes away the constant that only the executor needs, and outputs that
        repeat an input or another output.
        """
        model = submodel.model
        model.remove_result(model.get_results()[-1])
        sources: dict[str, TensorSource] = {}
        for parameter, tensor in zip(model.get_parameters(), submodel.inputs, strict=True):
            origin = fed[tensor]
            name = origin.name if origin.part is None else self._between(tensor)
            name = name if name not in sources else f"{name}#{len(sources)}"
            sources[name] = origin
            parameter.output(0).get_tensor().set_names({name})
            parameter.set_friendly_name(name)
        given = {port.get_node().get_name() for port in model.inputs}
        for node in model.get_ordered_ops():
            if node.get_name() not in given:
                for port in node.outputs():  # a plugin may pass the name of a tensor inside on to an output
                    port.get_tensor().set_names(set())
        handed: dict[tuple[str, int], TensorSource] = {}
        for result, tensor in zip(model.get_results(), submodel.outputs, strict=True):
            source, passed = result.input_value(0), _passed_on(result.input_value(0))
            key = (source.get_node().get_name(), source.get_index())
            if passed.get_node().get_type_name() == "Parameter":
                fed[tensor] = sources[passed.get_any_name()]
                model.remove_result(result)
            elif key in handed:
                fed[tensor] = handed[key]
                model.remove_result(result)
            else:
                fed[tensor] = handed[key] = TensorSource(part=part, name=self._between(tensor))
                for port in (source, result.output(0)):  # which share their names unless the source had none
                    port.get_tensor().set_names({fed[tensor].name})
                result.set_friendly_name(f"{fed[tensor].name}/result")
        ports = (port for node in model.get_ordered_ops() for port in node.inputs())
        read = {port.get_source_output().get_node().get_name() for port in ports}
        for parameter in model.get_parameters():
            if parameter.get_name() not in read:
                del sources[parameter.get_friendly_name()]
                model.remove_parameter(parameter)
        return sources

    def restore(self, model: ov.Model, own: set[str]) -> None:
        """Name constants, which bear the numbers of their ops, after the ops; all names are unique then."""
        for node in model.get_ordered_ops():
            number = node.get_friendly_name().partition(".")[0]
            if number.isdecimal() and node.get_friendly_name() not in own:
                node.set_friendly_name(self._graph.op_names[int(number)])
        name_uniquely(model)

    def _between(self, tensor: Tensor) -> str:
        return f"{self._graph.op_names[tensor.op]}:{tensor.port}"


def _passed_on(value: ov.Output) -> ov.Output:
    """A value without Converts to the type that they read: for nothing else the CPU plugin may give zeros."""
    node = value.get_node()
    if node.get_type_name() == "Convert" and node.get_input_element_type(0) == node.get_output_element_type(0):
        return _passed_on(node.input_value(0))
    return value


def _unique(names: Iterable[str]) -> list[str]:
    """Every name, and where one occurs again, ``NAME#1`` and so on."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}#{k}" for k in itertools.count(1))
        found.append(next(free for free in itertools.chain([name], numbered) if free not in found))
    return found
