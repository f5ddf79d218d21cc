"""Building a ComputationGraph from an ov.Model in O(V + E)."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import openvino as ov

from hsdag.base.errors import ModelError
from hsdag.ir.graph.computation_graph import ComputationGraph, Csr, fact_of_graph, padded
from hsdag.ir.graph.flops import Shape, op_flops
from hsdag.ir.graph.reader import load_model
from hsdag.ir.graph.state import DRAWING_TYPES

ATTRIBUTE_TYPES = frozenset(
    "MatMul MaxPool AvgPool LSTMCell LSTMSequence GRUCell GRUSequence RNNCell RNNSequence ReadValue Assign".split()
)
"""Op types whose attributes are read; reading the attributes of every op would be slow."""


def read_graph(source: Any) -> ComputationGraph:
    """Read the computation graph of a model: a path, or whatever else ``load_model`` takes. Raises ModelError."""
    return graph_of(load_model(source).clone())


def corresponding_nodes(model: ov.Model, clone: ov.Model) -> list[ov.Node]:
    """Return [N] the nodes in OpenVINO's clone of a model that correspond to its ops, in topological order.

    The clone has one more constant for every Pad that comes without its optional value.
    """
    computing = [[n for n in both.get_ordered_ops() if n.get_type_name() != "Constant"] for both in (model, clone)]
    counterparts = {node.get_name(): counterpart for node, counterpart in zip(*computing, strict=True)}
    for node, counterpart in zip(*computing, strict=True):
        for value, copy in zip(node.input_values(), counterpart.input_values(), strict=False):
            counterparts[value.get_node().get_name()] = copy.get_node()
    return [counterparts[node.get_name()] for node in model.get_ordered_ops()]


def name_uniquely(model: ov.Model) -> None:
    """Rename every op to its unique name, which differs from its name where another op has the same."""
    for name, node in ordered_ops(model):
        node.set_friendly_name(name)


NUMBERED_NAME = re.compile(r"(.*/Constant_|[A-Za-z]+_)?\d+")
"""Name numbered by a counter of OpenVINO or torch, which differs at every build of a model."""


def name_by_consumer(model: ov.Model) -> None:
    """Rename ops that have only a numbered name after their first consumer and its input port."""
    for op in reversed(model.get_ordered_ops()):  # consumers before producers
        targets = op.output(0).get_target_inputs() if op.get_output_size() else set()
        if targets and NUMBERED_NAME.fullmatch(op.get_friendly_name()):
            first = min(targets, key=lambda target: (target.get_node().get_friendly_name(), target.get_index()))
            op.set_friendly_name(f"{first.get_node().get_friendly_name()}/input{first.get_index()}")


def ordered_ops(model: ov.Model) -> list[tuple[str, ov.Node]]:
    """Return all ops in topological order with unique names: the k-th repetition of a name gets ``#k``."""
    seen: Counter[str] = Counter()
    nodes = model.get_ordered_ops()
    taken = {node.get_friendly_name() for node in nodes}
    result = []
    for node in nodes:
        base = node.get_friendly_name()
        name = base
        while seen[base] and (name == base or name in taken):
            seen[base] += 1
            name = f"{base}#{seen[base]}"
        seen[base] += not seen[base]
        taken.add(name)
        result.append((name, node))
    return result


def graph_of(model: ov.Model) -> ComputationGraph:
    """Build the computation graph of an ``ov.Model``: every op is a node, every connected input port an edge.

    A dimension that depends on the data counts with its upper bound, or as 1 where it has none. Raises ModelError for
    tensors of more than 2^63 bytes and for names that are not text.
    """
    try:
        return _graph_of(model)
    except OverflowError as error:
        raise ModelError("the model has tensors of more than 2^63 bytes, which no device can hold") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"the model has a name that is no text ({error}); export it again") from error


def _graph_of(model: ov.Model) -> ComputationGraph:
    named = ordered_ops(model)
    index = {node.get_name(): v for v, (_, node) in enumerate(named)}
    outputs = [node.outputs() for _, node in named]
    output_shapes = [[sizes_of(port) for port in ports] for ports in outputs]
    output_bytes = [list(map(bytes_of, *pair)) for pair in zip(outputs, output_shapes, strict=True)]
    edges: list[tuple[int, int, int, int, int]] = []
    flops = np.zeros(len(named))
    variables = []
    for v, (_, node) in enumerate(named):
        input_shapes: list[Shape] = []
        for port_idx, source in enumerate(node.input_values()):
            u, out = index[source.get_node().get_name()], source.get_index()
            edges.append((u, v, out, port_idx, output_bytes[u][out]))
            input_shapes.append(output_shapes[u][out])
        op_type = node.get_type_name()
        attributes = node.get_attributes() if op_type in ATTRIBUTE_TYPES else {}
        flops[v] = op_flops(op_type, input_shapes, output_shapes[v][0] if output_shapes[v] else (), attributes)
        variables.append(str(attributes.get("variable_id", "")))
    sinks = sorted((index[node.get_name()] for node in model.get_sinks()), key=variables.__getitem__)
    roots = [*(index[node.get_name()] for node in model.get_results()), *sinks]
    nodes = [node for _, node in named]
    shapes, ranks = padded([shapes[0] if shapes else () for shapes in output_shapes])
    src, dst, src_port, dst_port, edge_bytes = np.asarray(edges, dtype=np.int64).reshape(-1, 5).T.copy()
    total = np.asarray([sum(sizes) for sizes in output_bytes], dtype=np.int64)
    types = tuple(node.get_type_name() for node in nodes)
    return ComputationGraph(
        name=model.get_friendly_name(),
        op_names=tuple(name for name, _ in named),
        op_types=types,
        element_types=tuple(
            node.get_output_element_type(0).get_type_name() if node.get_output_size() else "" for node in nodes
        ),
        shapes=shapes,
        ranks=ranks,
        output_bytes=total,
        weight_bytes=np.where(np.isin(types, "Constant"), total, 0),
        flops=flops,
        edge_src=src,
        edge_dst=dst,
        edge_src_port=src_port,
        edge_dst_port=dst_port,
        edge_bytes=edge_bytes,
        topological_order=np.arange(len(nodes), dtype=np.int64),
        variables=tuple(variables),
        is_function=np.asarray([is_function(node) for node in nodes]),
        is_dynamic=np.asarray([any(port.get_partial_shape().is_dynamic for port in ports) for ports in outputs]),
        canonical_names=canonical_names(types, Csr.build(len(nodes), dst, src), roots),
    )


def is_function(node: ov.Node) -> bool:
    """Return whether an op's outputs are determined by its inputs, as far as known.

    Random numbers are drawn anew at every inference, in bodies too. What ops outside OpenVINO's opsets do is unknown.
    State does not count here: ReadValue and Assign are recognised by their variable.
    """
    return all(str(op.get_type_info().version_id).startswith("opset") for op in _all_in(node)) and not draws(node)


def draws(node: ov.Node) -> list[ov.Node]:
    """Return the ops that draw random numbers: the op itself, or those in its bodies."""
    return [op for op in _all_in(node) if op.get_type_name() in DRAWING_TYPES]


def _all_in(node: Any) -> Iterator[Any]:
    """Yield an op and all ops in its bodies."""
    yield node
    kind = node.get_type_name()
    bodies = [node.get_function(0), node.get_function(1)] if kind == "If" else []
    for body in [node.get_function()] if kind in ("Loop", "TensorIterator") else bodies:
        for inner in body.get_ops():
            yield from _all_in(inner)


@fact_of_graph
def fingerprint(graph: ComputationGraph) -> str:
    """Return the SHA-256 over types, shapes, element types and edges under canonical names; weights are left out."""
    lines = [
        f"op\t{name}\t{graph.op_types[v]}\t{graph.shape_of(v)}\t{graph.element_types[v]}"
        for v, name in enumerate(graph.canonical_names)
    ]
    columns = (graph.edge_src, graph.edge_src_port, graph.edge_dst, graph.edge_dst_port)
    for s, sp, d, dp in zip(*(column.tolist() for column in columns), strict=True):
        lines.append(f"edge\t{graph.canonical_names[s]}\t{sp}\t{graph.canonical_names[d]}\t{dp}")
    return "sha256:" + hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def canonical_names(op_types: Sequence[str], predecessors: Csr, roots: Sequence[int]) -> tuple[str, ...]:
    """Return [N] ``TYPE:k`` for the k-th op of its type on a walk that visits inputs before the ops that read them.

    ``predecessors`` lists the producers of an op in the order of its input ports. The walk starts at the ``roots`` in
    order and continues with ops that no root depends on. It uses only types, ports and roots, so that models of the
    same structure get the same names, whatever their nodes are called. O(V + E).
    """
    indptr, indices = predecessors.indptr.tolist(), predecessors.indices.tolist()
    names = [""] * len(op_types)
    counts: Counter[str] = Counter()
    met: set[int] = set()
    pending = [*range(len(op_types) - 1, -1, -1), *reversed(roots)]
    while pending:
        v = pending.pop()
        if v < 0:  # all its inputs have names
            names[~v] = f"{op_types[~v]}:{counts[op_types[~v]]}"
            counts[op_types[~v]] += 1
        elif v not in met:
            met.add(v)
            pending.append(~v)
            pending.extend(reversed(indices[indptr[v] : indptr[v + 1]]))
    return tuple(names)


def sizes_of(port: Any) -> Shape:
    """Return the shape of a port; a dynamic dimension counts with its upper bound, or as 1 where it has none."""
    shape = port.get_partial_shape()
    if shape.is_static:
        sizes = shape.to_shape()
        return tuple([sizes[axis] for axis in range(len(sizes))])  # iterating over it is ten times as slow
    return () if shape.rank.is_dynamic else tuple(d.get_max_length() if d.get_max_length() > 0 else 1 for d in shape)


def bytes_of(port: Any, sizes: Shape) -> int:
    """Return the bytes of a tensor of these sizes at a port."""
    element_type = port.get_element_type()
    return 0 if element_type.is_dynamic() else (prod(sizes) * int(element_type.bitwidth) + 7) // 8
