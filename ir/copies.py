"""Private instances of floating ops: constants and shape arithmetic read by several ops are copied per reader.

HETERO hands a result from one submodel to another as an input. A weight that arrives as an input is no
longer a constant to the plugin, which then loses its fusions, and a shape that arrives as an input makes
the reshaped tensor dynamic, which the next submodel refuses. One instance per reader avoids both, also
between two submodels on the same device.

HETERO puts a ShapeOf into the earliest submodel of its device, also where its reader lies in a later one, so
that the shape crosses a boundary after all. Therefore even a ShapeOf with one reader becomes a constant; the
model's rt_info remembers how to make it again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import openvino as ov
from openvino import opset13
from openvino.utils.node_factory import NodeFactory

from hsdag.ir.build import ordered_ops
from hsdag.ir.colocation import SHAPE_OF_TYPES, floating_ops
from hsdag.ir.graph import ComputationGraph, Csr

COPY_MARK = "/hsdag-copy@"
"""Between an op's name and its reader's: the name of a copy."""

_SHAPES_PATH = ["hsdag", "shapes"]
"""Where a model remembers its replaced ShapeOf ops: name -> [producer, port, opset, attributes]."""


@dataclass(frozen=True, eq=False)
class PrivateInstances:
    """What ``make_private`` did.

    ``homes[v]`` is the reader that keeps the original of a floating op v, and v itself for any other op;
    ``copies`` are the new nodes, each with its reader.
    """

    homes: list[int]
    copies: list[tuple[int, ov.Node]]


def make_private(model: ov.Model, graph: ComputationGraph) -> PrivateInstances:
    """Give every reader of a floating op an instance of its own, in place.

    ``graph`` is the graph of ``model``, which has no copies yet. A reader is an op that does not float and
    that a floating op leads to; the first in topological order keeps the originals. Ops that share a name get
    the unique ones of the graph: copies change the order in which repetitions would be counted.
    """
    nodes = name_uniquely(model)
    readers = _readers(graph)
    homes = [rs[0] if rs else v for v, rs in enumerate(readers)]
    copies = _copy_constants(graph, nodes, readers)
    replaced = _replaced_shapes(graph, nodes)
    if replaced:
        model.set_rt_info(json.dumps({graph.op_names[v]: _recipe(graph, nodes, v) for v in replaced}), _SHAPES_PATH)
    for v in graph.topological_order.tolist():
        for reader in readers[v][0 if v in replaced else 1 :]:
            if (v, reader) not in copies:
                copies[v, reader] = _copy_op(v, reader, graph, nodes, copies)
            copies[v, reader].set_friendly_name(f"{graph.op_names[v]}{COPY_MARK}{graph.op_names[reader]}")
    for w, node in enumerate(nodes):
        for e in _edges(graph.predecessors, w):
            copy = copies.get((int(graph.edge_src[e]), homes[w]))
            if copy is not None:
                port = node.input(int(graph.edge_dst_port[e]))
                port.replace_source_output(copy.output(int(graph.edge_src_port[e])))
    return PrivateInstances(homes, [(reader, copy) for (_, reader), copy in copies.items()])


def name_uniquely(model: ov.Model) -> list[ov.Node]:
    """All ops in topological order, each of them renamed to its unique name where another bears the same."""
    named = ordered_ops(model)
    for name, node in named:
        if node.get_friendly_name() != name:
            node.set_friendly_name(name)
    return [node for _, node in named]


def merge_copies(model: ov.Model) -> None:
    """Undo ``make_private``: every reader of a copy reads the original again."""
    ops = model.get_ordered_ops()
    if not any(COPY_MARK in node.get_friendly_name() for node in ops):
        return
    originals = {name: node for name, node in ordered_ops(model) if COPY_MARK not in name}
    recipes = json.loads(model.get_rt_info(_SHAPES_PATH).astype(str)) if model.has_rt_info(_SHAPES_PATH) else {}
    for name, (producer, port_idx, opset, attributes) in recipes.items():
        source = originals[producer].output(port_idx)
        originals[name] = NodeFactory(opset).create("ShapeOf", [source], attributes)
        originals[name].set_friendly_name(name)
    for node in originals.values():
        for port in node.inputs():
            source = port.get_source_output()
            name, mark, _ = source.get_node().get_friendly_name().partition(COPY_MARK)
            if mark:
                port.replace_source_output(originals[name].output(source.get_index()))


def _replaced_shapes(graph: ComputationGraph, nodes: list[ov.Node]) -> set[int]:
    """ShapeOf ops to replace by constants: all of a static shape, but for those that alone keep their input alive."""
    replaced = {
        v
        for v, op_type in enumerate(graph.op_types)
        if op_type in SHAPE_OF_TYPES and nodes[v].input_value(0).get_partial_shape().is_static
    }
    producers = {int(graph.predecessors.of(v)[0]) for v in replaced}
    for u in producers:
        consumers = set(graph.successors.of(u).tolist())
        if consumers <= replaced:
            replaced -= consumers
    return replaced


def _recipe(graph: ComputationGraph, nodes: list[ov.Node], v: int) -> list[object]:
    """How to make ShapeOf v again: producer, port, opset, attributes."""
    edge = _edges(graph.predecessors, v)[0]
    producer, port_idx = graph.op_names[int(graph.edge_src[edge])], int(graph.edge_src_port[edge])
    return [producer, port_idx, nodes[v].get_type_info().version_id, nodes[v].get_attributes()]


def _readers(graph: ComputationGraph) -> list[list[int]]:
    """[N] ops that do not float and that each floating op leads to, first come first; empty for others."""
    floating = floating_ops(graph).tolist()
    position = graph.position
    readers: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for v in graph.topological_order[::-1].tolist():
        if floating[v]:
            found: set[int] = set()
            for u in graph.successors.of(v).tolist():
                found.update(readers[u] if floating[u] else (u,))
            readers[v] = sorted(found, key=position.__getitem__)
    return readers


def _copy_constants(
    graph: ComputationGraph, nodes: list[ov.Node], readers: list[list[int]]
) -> dict[tuple[int, int], ov.Node]:
    """Copies of shared constants, by (constant, reader). Cloning a model of constants shares their memory."""
    copies: dict[tuple[int, int], ov.Node] = {}
    shared = [v for v, t in enumerate(graph.op_types) if t == "Constant" and len(readers[v]) > 1]
    nth = 1
    while shared:
        donor = ov.Model([opset13.result(nodes[v].output(0)) for v in shared], [], "constants").clone()
        for v, result in zip(shared, donor.get_results(), strict=True):
            copies[v, readers[v][nth]] = result.input_value(0).get_node()
        nth += 1
        shared = [v for v in shared if len(readers[v]) > nth]
    return copies


def _copy_op(
    v: int, reader: int, graph: ComputationGraph, nodes: list[ov.Node], copies: dict[tuple[int, int], ov.Node]
) -> ov.Node:
    """A copy of a floating op that is no constant, fed by the reader's instances.

    A ShapeOf becomes the constant that its static input shape makes it; where the shape depends on the data,
    it is a ShapeOf again.
    """
    node = nodes[v]
    if graph.op_types[v] in SHAPE_OF_TYPES and node.input_value(0).get_partial_shape().is_static:
        shape = tuple(node.input_value(0).get_shape())
        return opset13.constant(np.asarray(shape, dtype=node.get_output_element_type(0).to_dtype()))
    arguments = []
    for e in _edges(graph.predecessors, v):
        u = int(graph.edge_src[e])
        arguments.append(copies.get((u, reader), nodes[u]).output(int(graph.edge_src_port[e])))
    factory = NodeFactory(node.get_type_info().version_id)
    return factory.create(node.get_type_name(), arguments, node.get_attributes())


def _edges(neighbours: Csr, v: int) -> list[int]:
    """Indices of the edges at op v."""
    edges: list[int] = neighbours.edges[neighbours.indptr[v] : neighbours.indptr[v + 1]].tolist()
    return edges
