"""OpenVINO models as torch graphs: every op by the torch op library, constants computed once."""

from __future__ import annotations

from collections.abc import Sequence

import openvino as ov
import torch

from hsdag.ir.build import ordered_ops
from hsdag.ir.reader import input_name
from hsdag.runtime.torch_backend.graph import Feed, Ref, Tensor, TorchGraph, TorchNode
from hsdag.runtime.torch_ops import build_op, constant_tensor, torch_type

_SHAPES_ONLY = frozenset({"ShapeOf"})
_NEVER_FIXED = frozenset({"Parameter", "Result", "ReadValue", "Assign"})


def openvino_graph(model: ov.Model) -> TorchGraph:
    """The torch graph of a model; node v is op v of its ComputationGraph (hsdag.ir.graph_of), inputs by tensor name.

    Ops that depend on constants and fixed shapes alone are computed here and stay as constants.

    Raises UnsupportedOpError for an op the torch op library does not run.
    """
    named = ordered_ops(model)
    index = {node.get_name(): v for v, (_, node) in enumerate(named)}
    inputs = {port.get_node().get_name(): input_name(port) for port in model.inputs}
    nodes: list[TorchNode] = []
    for name, node in named:
        reads = tuple((index[s.get_node().get_name()], s.get_index()) for s in _sources(node))
        nodes.append(_node(name, node, reads, nodes, inputs))
    outputs: dict[str, Ref] = {}
    for i, port in enumerate(model.outputs):
        name = input_name(port)
        outputs[f"{name}#{i}" if name in outputs else name] = (index[port.get_node().get_name()], 0)
    return TorchGraph(model.get_friendly_name(), tuple(nodes), outputs)


def _node(
    name: str, node: ov.Node, reads: tuple[Ref, ...], before: Sequence[TorchNode], inputs: dict[str, str]
) -> TorchNode:
    op_type = str(node.get_type_name())
    sizes = tuple(_size_bytes(port) for port in node.outputs())
    if op_type == "Parameter":
        port = node.output(0)
        shape = tuple(port.get_partial_shape().to_shape()) if port.get_partial_shape().is_static else ()
        feed = Feed(inputs[node.get_name()], torch_type(node, port.get_element_type()), shape)
        return TorchNode(name, op_type, feed=feed, output_bytes=sizes)
    if op_type == "Constant":
        return TorchNode(name, op_type, constants=(constant_tensor(node),), output_bytes=sizes)
    run = build_op(node)
    if op_type in _SHAPES_ONLY:
        return TorchNode(name, op_type, constants=tuple(run((torch.empty(0),))), output_bytes=sizes)
    if op_type not in _NEVER_FIXED and all(before[u].constants for u, _ in reads):
        values: list[Tensor] = [before[u].constants[port] for u, port in reads] or [torch.empty(0)]
        with torch.no_grad():
            return TorchNode(name, op_type, constants=tuple(run(values)), output_bytes=sizes)
    return TorchNode(name, op_type, reads, run, output_bytes=sizes)


def _sources(node: ov.Node) -> list[ov.Output]:
    return [port.get_source_output() for port in node.inputs()]


def _size_bytes(port: ov.Output) -> float:
    shape = port.get_partial_shape()
    count = 1
    for size in shape.to_shape() if shape.is_static else ():
        count *= int(size)
    return count * float(port.get_element_type().bitwidth) / 8
