"""Sizes of the tensors of a model with dynamic shapes in given scenarios. Legend: N ops, E edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.base.errors import ModelError, last_line, option
from hsdag.ir.graph.build import ATTRIBUTE_TYPES, bytes_of, corresponding_nodes, graph_of, sizes_of
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray
from hsdag.ir.graph.flops import op_flops
from hsdag.ir.graph.reader import Shapes, input_name, load_model
from hsdag.ir.graph.readers import read_instead
from hsdag.ir.graph.scenario import Scenario, shares


def sized(graph: ComputationGraph, model: ov.Model, scenarios: Sequence[Scenario]) -> ComputationGraph:
    """Return the graph of a model with the tensor sizes of scenarios, each of which has all inputs.

    FLOPs and bytes of edges are weighted means over the timed inferences, ``output_bytes`` their maximum; a ReadValue
    has the largest state of its variable as ``weight_bytes``. Shapes, and so the fingerprint, stay the model's. Raises
    ModelError where the model does not take the shapes.
    """
    weights = shares(scenarios)
    sizing = _Sizing(graph, model)
    columns = zip(*(sizing.sizes(scenario) for scenario in scenarios), strict=True)
    flops, output_bytes, edge_bytes, state_bytes = map(np.stack, columns)
    return replace(
        graph,
        flops=weights @ flops,
        output_bytes=output_bytes.max(axis=0).astype(np.int64),
        edge_bytes=np.rint(weights @ edge_bytes).astype(np.int64),
        weight_bytes=graph.weight_bytes + state_bytes.max(axis=0).astype(np.int64),
    )


def read_sized(source: Any, shapes: Shapes | None, scenarios: Sequence[Scenario]) -> ComputationGraph:
    """Read the graph of a model; with scenarios, its inputs may be dynamic, and tensors have the sizes of these.

    Raises ModelError as ``load_model`` and ``sized`` do.
    """
    model = load_model(source, shapes, dynamic=bool(scenarios))
    graph = graph_of(model.clone())
    return sized(graph, model, [scenario.of(model) for scenario in scenarios]) if scenarios else graph


class _Sizing:
    """A clone of a model with variables as inputs and outputs, so that OpenVINO infers shapes after each inference.

    A variable's own shape cannot be fixed: it has to admit the empty state as well.
    """

    def __init__(self, graph: ComputationGraph, model: ov.Model) -> None:
        clone = model.clone()
        self._graph = graph
        self._nodes = corresponding_nodes(model, clone)
        self._inputs = {input_name(port): port.get_node() for port in clone.inputs}
        variables = list(enumerate(graph.variables))
        self._reads = {name: v for v, name in variables if graph.op_types[v] == "ReadValue"}
        self._writes = {name: v for v, name in variables if graph.op_types[v] == "Assign" and name in self._reads}
        self._states = {name: self._parameter_for(self._nodes[v]) for name, v in self._reads.items()}
        self._declared = {name: parameter.get_partial_shape() for name, parameter in self._states.items()}
        kept = [port for v in (*self._reads.values(), *self._writes.values()) for port in self._nodes[v].input_values()]
        results = [*clone.get_results(), *(opset13.result(port) for port in kept)]
        self._model = ov.Model(results, [*clone.get_parameters(), *self._states.values()], "sizes")

    @staticmethod
    def _parameter_for(read: Any) -> Any:
        """Replace the output of a ReadValue by a Parameter, and return that."""
        parameter = opset13.parameter(read.get_output_partial_shape(0), read.get_output_element_type(0))
        read_instead(read.output(0), parameter.output(0))
        return parameter

    def sizes(self, scenario: Scenario) -> tuple[FloatArray, ...]:
        """Return FLOPs [N], output bytes [N] and edge bytes [E] in the timed inference of a scenario.

        The fourth array [N] has, at each ReadValue, the bytes of its variable's largest state.
        """
        state: dict[str, ov.PartialShape] = {}
        state_bytes = np.zeros(self._graph.num_ops)
        for shapes in scenario.inferences:
            inputs = {self._inputs[name]: ov.PartialShape(list(shape)) for name, shape in shapes.items()}
            self._infer(
                inputs | {self._states[name]: state.get(name, self._declared[name]) for name in self._states}, scenario
            )
            if not state:  # the initial value, or the variable's own shape where nothing initialises it
                reads = [(name, self._nodes[v], self._declared[name]) for name, v in self._reads.items()]
                state = {
                    name: read.input(0).get_partial_shape() if read.get_input_size() else declared
                    for name, read, declared in reads
                }
                self._infer({self._states[name]: shape for name, shape in state.items()}, scenario)
            state |= {name: self._nodes[v].input(0).get_partial_shape() for name, v in self._writes.items()}
            for name, v in self._reads.items():
                states = [self._states[name].output(0), *self._nodes[self._writes.get(name, v)].inputs()]
                state_bytes[v] = max(state_bytes[v], *map(_bytes, states))
        outputs = [list(node.outputs()) for node in self._nodes]
        for name, v in self._reads.items():
            outputs[v] = [self._states[name].output(0)]
        edges = zip(self._graph.edge_dst.tolist(), self._graph.edge_dst_port.tolist(), strict=True)
        ports = [self._nodes[dst].input(port) for dst, port in edges]
        flops = np.array([self._flops(node) for node in self._nodes])
        output_bytes = np.array([float(sum(map(_bytes, of_op))) for of_op in outputs])
        return flops, output_bytes, np.array([float(_bytes(port)) for port in ports]), state_bytes

    def _infer(self, shapes: Mapping[Any, ov.PartialShape], scenario: Scenario) -> None:
        for parameter, shape in shapes.items():
            parameter.set_partial_shape(shape)
        try:
            self._model.validate_nodes_and_infer_types()
        except RuntimeError as error:
            raise ModelError(
                f"the model does not take {option('data_shape')} {scenario.text}: {last_line(error)}"
            ) from error

    @staticmethod
    def _flops(node: Any) -> float:
        op_type = node.get_type_name()
        attributes = node.get_attributes() if op_type in ATTRIBUTE_TYPES else {}
        output = sizes_of(node.output(0)) if node.get_output_size() else ()
        return op_flops(op_type, [sizes_of(port) for port in node.inputs()], output, attributes)


def _bytes(port: Any) -> int:
    return bytes_of(port, sizes_of(port))
