"""Submodels: an ov.Model for every part of a cut, made from clones of the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.ir.errors import ModelError
from hsdag.ir.graph.build import ordered_ops
from hsdag.ir.graph.colocation import known_ops
from hsdag.ir.graph.state import repeated_ops
from hsdag.ir.placement.prepared import folded_clone
from hsdag.runtime.executor.cut import Cut, Subgraph, Tensor, incoming_ports


@dataclass(frozen=True, eq=False)
class Submodel:
    """A subgraph as a model: the tensor that each of its inputs reads, and that each of its outputs holds.

    Behind those outputs the model has one more, a constant: a device hands out constants at the end of every
    inference, so it distinguishes a complete inference from one that stopped half-way. A subgraph that ``has_state``
    keeps variables between inferences.
    """

    model: ov.Model
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    has_state: bool = False


class SubmodelBuilder:
    """Builds the submodels of a cut; raises ModelError for a cut of another model. ``model`` is not changed."""

    def __init__(self, model: ov.Model, cut: Cut) -> None:
        named = ordered_ops(model)
        if tuple(name for name, _ in named) != cut.graph.op_names:
            raise ModelError(f"the cut is of another model than {model.get_friendly_name()!r}: their ops differ")
        self._cut = cut
        self._incoming = incoming_ports(cut.graph)
        self._model = model
        self._repeated = np.flatnonzero(repeated_ops(cut.graph, known_ops(cut.graph))).tolist()
        self._ports = [[(port.get_partial_shape(), port.get_element_type()) for port in n.outputs()] for _, n in named]

    def build(self) -> tuple[Submodel, ...]:
        """The submodels, by subgraph.

        Those of one device come from one clone, unless they have copies of repeated ops that read inputs of their own.
        """
        parts = self._cut.subgraphs
        clone_of = [s if self._repeated else part.device for s, part in enumerate(parts)]
        clones = {c: folded_clone(self._model, self._cut.graph)[1] for c in dict.fromkeys(clone_of)}
        return tuple(self._extract(s, part, clones[clone_of[s]]) for s, part in enumerate(parts))

    def _extract(self, index: int, part: Subgraph, nodes: list[ov.Node]) -> Submodel:
        results = [_result(nodes[tensor.op], tensor.port) for tensor in part.outputs]
        parameters: dict[Tensor, ov.Node] = {}
        read = {(tensor.op, tensor.port): tensor for tensor in part.inputs}
        for v in (*part.ops, *self._repeated):
            nodes[v].set_friendly_name(self._cut.graph.op_names[v])  # which OpenVINO's own messages name
            for port, source in enumerate(self._incoming[v]):
                tensor = read.get(source)
                if tensor is None:
                    continue
                if tensor not in parameters:
                    parameters[tensor] = self._parameter(*source)
                nodes[v].input(port).replace_source_output(parameters[tensor].output(0))
        results.append(opset13.result(opset13.constant(np.ones(1, dtype=np.float32))))
        sinks = [nodes[v] for v in part.ops if self._cut.graph.op_types[v] == "Assign"]
        model = ov.Model(results, sinks, list(parameters.values()), f"{self._cut.graph.name}/{index}")
        return Submodel(model, tuple(parameters), part.outputs, bool(sinks))

    def _parameter(self, op: int, port: int) -> ov.Node:
        """An input in place of an output of an op."""
        parameter: ov.Node = opset13.parameter(*self._ports[op][port])
        parameter.set_friendly_name(f"{self._cut.graph.op_names[op]}:{port}")
        return parameter


def _result(node: ov.Node, port: int) -> ov.Node:
    """What hands out an output of an op; a Result does so itself."""
    if node.get_type_name() == "Result":
        return node
    result: ov.Node = opset13.result(node.output(port))
    return result
