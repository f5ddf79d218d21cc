"""OpenVINO models as torch graphs: every op by the torch op library, constants computed once."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import openvino as ov
import torch

from hsdag.ir.build import ordered_ops
from hsdag.ir.reader import input_name
from hsdag.runtime.torch_backend.graph import Feed, Ref, TorchGraph, TorchNode
from hsdag.runtime.torch_ops import build_op
from hsdag.runtime.torch_ops.base import Op


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
        reads = tuple((index[s.get_node().get_name()], s.get_index()) for s in node.input_values())
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
        shape = node.get_output_partial_shape(0)
        feed = Feed(inputs[node.get_name()], Op(node).output_type(), tuple(shape.to_shape()) if shape.is_static else ())
        return TorchNode(name, op_type, feed=feed, output_bytes=sizes)
    run = build_op(node)
    is_known = op_type != "Result" and all(before[u].constants for u, _ in reads)
    if not is_known and op_type != "ShapeOf":
        return TorchNode(name, op_type, reads, run, output_bytes=sizes)
    values = [before[u].constants[port] for u, port in reads if before[u].constants]
    with torch.no_grad():
        return TorchNode(name, op_type, constants=tuple(run(values or [torch.empty(0)])), output_bytes=sizes)


def _size_bytes(port: ov.Output) -> float:
    shape = port.get_partial_shape()
    return prod(shape.to_shape() if shape.is_static else ()) * float(port.get_element_type().bitwidth) / 8
