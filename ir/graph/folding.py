"""Folding: a clone of a model in which every value known before any data is a constant.

Legend: N ops of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import openvino as ov
from openvino import opset13
from openvino.passes import ConstantFolding, Manager

from hsdag.ir.graph.build import corresponding_nodes
from hsdag.ir.graph.colocation import kept_compressed, known_ops
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.readers import read_instead
from hsdag.ir.graph.state import SHAPE_OF_TYPES


def folded_clone(model: ov.Model, graph: ComputationGraph) -> tuple[ov.Model, list[ov.Node]]:
    """Return a clone with known values folded, and its nodes for the ops [N], named by op index.

    An op that reads folded values reads one constant for each. Decompressions of weights are kept. Nodes of folded
    ops are returned too, but are no longer part of the clone.
    """
    clone = model.clone()
    nodes = corresponding_nodes(model, clone)
    for v, node in enumerate(nodes):
        node.set_friendly_name(str(v))
        for added in node.input_values()[len(graph.predecessors.of(v)) :]:
            added.get_node().set_friendly_name(str(v))
    is_known, kept = known_ops(graph), kept_compressed(graph)
    for v in np.flatnonzero(is_known).tolist():
        if graph.op_types[v] in SHAPE_OF_TYPES:
            shape = np.asarray(tuple(nodes[v].input_value(0).get_shape()))
            constant = opset13.constant(shape.astype(nodes[v].get_output_element_type(0).to_dtype()))
            constant.set_friendly_name(str(v))
            read_instead(nodes[v].output(0), constant.output(0))
    ports = [
        port
        for v in np.flatnonzero(~is_known).tolist()
        for port in nodes[v].inputs()
        if (source := port.get_source_output().get_node()).get_type_name() != "Constant"
        and is_known[op_of_clone(source)]
        and not kept[op_of_clone(source)]
    ]
    sources = {(s.get_node().get_name(), s.get_index()): s for s in (port.get_source_output() for port in ports)}
    donor = copied_constants(list(sources.values()))  # a value that OpenVINO cannot fold stays a copy of its ops
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(donor)
    values = dict(zip(sources, (result.input_value(0) for result in donor.get_results()), strict=True))
    for port in ports:
        source = port.get_source_output()
        port.replace_source_output(values[source.get_node().get_name(), source.get_index()])
    return clone, nodes


def op_of_clone(node: ov.Node) -> int:
    """Return the op of a node named by ``folded_clone``; the constant of an op's output k is named ``op.k``."""
    return int(node.get_friendly_name().partition(".")[0])


def copied_constants(values: Sequence[ov.Output]) -> ov.Model:
    """Return a model of results for values that depend on constants alone; it shares the constants' memory."""
    return ov.Model([opset13.result(value) for value in values], [], "constants").clone()
