"""Rewriting a model with divided regions into a model with an op for every shard, and a device for every op.

Where a tensor is read in another layout, ops are added that bring it together: slices on the device
that has it, concatenations and sums on the device that reads it.

Legend: N ops of the model, M ops of the sharded one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import openvino as ov
from openvino import opset13
from openvino.op.util import Variable, VariableInfo
from openvino.utils.node_factory import NodeFactory

from hsdag.base.errors import PlacementError
from hsdag.ir.graph.build import graph_of, name_uniquely
from hsdag.ir.graph.colocation import colocate, known_ops
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.folding import folded_clone
from hsdag.ir.graph.state import SHAPE_OF_TYPES, STATE_TYPES, computed_once
from hsdag.ir.shards.nodes import AddedNodes
from hsdag.ir.shards.regions import OpShapes, Region
from hsdag.ir.shards.rules import NodeView, Piece, Span, gives, piece_of, shape_of

LARGE_BYTES = 4096
"""Constants of more bytes are weights, on whose values no shape depends."""

NOT_COMPUTED = frozenset({"Parameter", "Result", "Constant"})

_factory = cache(NodeFactory)


@dataclass(frozen=True, eq=False)
class ShardedGraph:
    """The graph of a divided model, and the device of each op [M], as an index.

    ``origin`` [M] is the op of the model that it computes, -1 for ops that bring tensors together, and ``work`` [M] the
    share of that op's time.
    """

    graph: ComputationGraph
    devices: tuple[int, ...]
    origin: tuple[int, ...]
    work: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class ShardedModel(ShardedGraph):
    """A divided model, which has its own memory for the weights that are cut."""

    model: ov.Model

    @property
    def outline(self) -> ShardedGraph:
        """Return the sharded graph without the model."""
        return ShardedGraph(self.graph, self.devices, self.origin, self.work)


@dataclass(frozen=True)
class _Made:
    """The part of an op that a device holds: a range of its results, all of them (None), or a partial result."""

    device: int
    span: Span | None
    is_partial: bool
    node: ov.Node


def shapes_of(model: ov.Model, graph: ComputationGraph) -> OpShapes:
    """Return the ops of a folded clone of a model as rules see them."""
    clone, nodes = folded_clone(model, graph)
    is_known = known_ops(graph)
    runs = [not is_known[v] and graph.op_types[v] not in NOT_COMPUTED for v in range(graph.num_ops)]
    return OpShapes(graph, clone, nodes, runs)


def shard(
    model: ov.Model,
    graph: ComputationGraph,
    regions: Sequence[Region],
    devices: Sequence[int],
    names: Sequence[str],
    *,
    fills: bool = True,
    op_shapes: OpShapes | None = None,
) -> ShardedModel:
    """Divide the regions of a model; it is not changed, and the result depends on nothing but the arguments.

    Args:
        regions: The regions to divide, with a share for each of their devices.
        devices: [N] the device index of every op outside regions.
        fills: Whether weights get values, and not only sizes.
        op_shapes: The model's ops as rules see them, if at hand.

    Raises PlacementError where a region cannot be divided in the way that it says.
    """
    shapes = shapes_of(model, graph) if op_shapes is None else op_shapes.cloned()
    outputs = _types_of_outputs(shapes.model)
    writer = _Writer(shapes, names, fills=fills)
    region_of = {v: region for region in regions for v in region.ops}
    reads = {graph.variables[v]: v for v in range(graph.num_ops) if graph.op_types[v] == "ReadValue"}
    pieces: dict[tuple[int, int], tuple[Span | None, Piece]] = {}
    for region in regions:
        is_complete = shapes.is_complete(region)
        for d in region.shares if region.scheme != "replicated" else ():
            of_device = shapes.pieces(region, d) if is_complete else None
            if of_device is None:
                last = graph.op_names[region.ops[-1]]
                shares = {names[d]: share for d, share in region.shares.items()}
                raise PlacementError(f"the region that ends in {last!r} cannot be divided as {shares}")
            pieces.update({(v, d): piece for v, piece in of_device.items()})
    for v in range(graph.num_ops):
        if not shapes.runs[v] and graph.op_types[v] != "Result":
            continue
        if graph.op_types[v] == "Assign" and (read := reads.get(graph.variables[v])) in region_of:
            for d in region_of[read].shares:
                writer.store(v, read, d, pieces[read, d][0])
        elif v not in region_of:
            writer.keep(v, devices[v])
        elif region_of[v].scheme == "replicated":
            for d in region_of[v].shares:
                writer.copy(v, d)
        else:
            for d in region_of[v].shares:
                writer.shard(v, d, *pieces[v, d])
    writer.nodes.gather_where_slices_fail(part.node for made in writer.made.values() for part in made)
    made = _finished(shapes.model, graph, writer)
    _check_outputs(_types_of_outputs(made.model), outputs)
    return made


_TypesOfOutputs: TypeAlias = list[tuple[ov.Type, ov.PartialShape]]


def _types_of_outputs(model: ov.Model) -> _TypesOfOutputs:
    return [(port.get_element_type(), port.get_partial_shape()) for port in model.outputs]


def _check_outputs(actual: _TypesOfOutputs, wanted: _TypesOfOutputs) -> None:
    """Raise PlacementError where outputs of a divided model have other types or sizes than those of the whole."""
    for k, (made, whole) in enumerate(zip(actual, wanted, strict=True)):
        if made[0] != whole[0] or not made[1].compatible(whole[1]):
            new, old = (f"{kind.get_type_name()} {shape}" for kind, shape in (made, whole))
            raise PlacementError(f"the model cannot be divided so: its output {k} would be {new} in place of {old}")


class _Writer:
    """A writer of nodes for ops in topological order, and of the nodes that bring their inputs together."""

    def __init__(self, shapes: OpShapes, names: Sequence[str], *, fills: bool) -> None:
        self.shapes = shapes
        self.once = computed_once(shapes.graph)
        self.nodes = AddedNodes(shapes, names)
        self.fills = fills
        self.kept: dict[str, int] = {}  # device of ops that are computed as a whole, by OpenVINO's unique name
        self.work: dict[str, tuple[int, float]] = {}  # likewise: op, and share of its time
        self.made: dict[int, list[_Made]] = {}  # parts of each op
        self.stored: dict[int, ov.Node] = {}  # Assigns that are replaced by those of shards
        self.sinks: list[ov.Node] = []
        self._variables: dict[tuple[int, int], Any] = {}
        self._values: dict[tuple[int, int, int, Span | None], Any] = {}

    def keep(self, v: int, device: int) -> None:
        """Compute an op as a whole on a device."""
        node = self.shapes.nodes[v]
        if self._shape_of_divided(v, device):
            return
        for port in range(len(node.inputs())):
            u = self.shapes.producer(v, port)
            if u in self.made:
                node.input(port).replace_source_output(self._value(u, node.input_value(port).get_index(), device, None))
        self.made[v] = [_Made(device, None, is_partial=False, node=node)]
        self.kept[node.get_name()] = device
        self.work[node.get_name()] = v, 1.0

    def copy(self, v: int, device: int) -> None:
        """Compute an op as a whole on one more device."""
        node = self.shapes.nodes[v]
        if node.get_type_name() in STATE_TYPES:
            raise PlacementError(f"{self.shapes.graph.op_names[v]!r} keeps state, which has to be on one device")
        if self.once[v]:
            raise PlacementError(f"{self.shapes.graph.op_names[v]!r} would give every device something else")
        if not self._shape_of_divided(v, device) and not self._added_to_part(v):
            inputs = [self._read(v, port, device, None) for port in range(len(node.inputs()))]
            self._add(v, device, None, _created(node, inputs, {}), 1.0)

    def _added_to_part(self, v: int) -> bool:
        """Return whether an op adds to partial results that only it reads; if so, make one device add it to its own.

        What is added is then part of the sum, and the other devices need not compute it.
        """
        node = self.shapes.nodes[v]
        if v in self.made or node.get_type_name() != "Add":
            return v in self.made and self.made[v][0].is_partial
        for port in (0, 1):
            u, w = (self.shapes.producer(v, k) for k in (port, 1 - port))
            parts = [part for part in self.made.get(u, []) if part.is_partial]
            there = [part.device for part in self.made.get(w, parts) if part.span is None]
            if parts and parts[0].device in there and self.shapes.graph.successors.of(u).tolist() == [v]:
                device = parts[0].device
                inputs = parts[0].node.output(0), self._read(v, 1 - port, device, None)
                self._add(v, device, None, _created(node, inputs, {}), 1.0, is_partial=True)
                self.made[v] += parts[1:]
                return True
        return False

    def _shape_of_divided(self, v: int, device: int) -> bool:
        """Return whether an op is the shape of a divided tensor; if so, write a shard's shape with the whole's size."""
        node = self.shapes.nodes[v]
        made = self.made.get(self.shapes.producer(v, 0), [])
        if node.get_type_name() not in SHAPE_OF_TYPES or not made or made[0].span is None:
            return False
        part = next((part for part in made if part.device == device), made[0])
        tensor = part.node.output(node.input_value(0).get_index())
        shape = self.nodes.named(_created(node, [tensor], {}), v, part.device, "/own").output(0)
        axis = made[0].span.axis
        size = shape_of(node.input_value(0))[axis]
        self._add(v, device, None, self.nodes.with_number(shape, axis, size, v, device), 1.0)
        return True

    def shard(self, v: int, device: int, span: Span | None, piece: Piece) -> None:
        """Compute a range of an op, or a partial result if ``span`` is None."""
        node = self.shapes.nodes[v]
        inputs = [self._input(v, port, device, piece) for port in range(len(piece.inputs))]
        if node.get_type_name() == "ReadValue":
            assert span is not None  # a variable is no sum
            made = opset13.read_value(inputs[0], self._variable(v, device, span))
            self._add(v, device, span, made, span.size / self.shapes.op(v).outputs[0][span.axis])
            return
        share = span or piece.inputs[0]
        assert share is not None  # a partial result is of a range of the first input
        part = share.size / self.shapes.op(v).inputs[0][share.axis] if span is None else 1.0
        work = self.shapes.work_of(v, span, piece, part)
        if node.get_type_name() == "Convolution" and span is not None and span.axis == 1:
            inputs[0] = self.nodes.past_split(inputs[0], v, device)
        made = _created(node, inputs, piece.attributes)
        if not gives(made, self.shapes.op(v), span):
            name = self.shapes.graph.op_names[v]
            raise PlacementError(f"{name!r} cannot be divided: OpenVINO gives its shares other sizes or types")
        self._add(v, device, span, made, work, is_partial=span is None)

    def store(self, v: int, read: int, device: int, span: Span | None) -> None:
        """Assign a range of a stored value to a device's part of the variable."""
        assert span is not None  # a variable is no sum
        read_value = next(part.node for part in self.made[read] if part.device == device)
        made = opset13.assign(read_value, self._variable(read, device, span))
        made.input(0).replace_source_output(self._read(v, 0, device, span))
        self._add(v, device, span, made, span.size / self.shapes.op(v).inputs[0][span.axis])
        self.stored[v] = self.shapes.nodes[v]
        self.sinks.append(made)

    def _variable(self, read: int, device: int, span: Span) -> Any:
        if (read, device) not in self._variables:
            node = self.shapes.nodes[read]
            info = VariableInfo()
            shape = node.get_output_partial_shape(0)
            shape[span.axis] = span.size
            info.data_shape, info.data_type = shape, node.get_output_element_type(0)
            info.variable_id = self.nodes.name(self.shapes.graph.variables[read], device)
            self._variables[read, device] = Variable(info)
        return self._variables[read, device]

    def _add(
        self, v: int, device: int, span: Span | None, node: ov.Node, work: float, *, is_partial: bool = False
    ) -> None:
        self.work[node.get_name()] = v, work
        self.made.setdefault(v, []).append(_Made(device, span, is_partial, self.nodes.named(node, v, device)))

    def _input(self, v: int, port: int, device: int, piece: Piece) -> Any:
        if port in piece.constants:
            return self.nodes.named(opset13.constant(piece.constants[port]), v, device, f"/{port}").output(0)
        value = self._read(v, port, device, piece.inputs[port])
        if port in piece.numbers:
            made = self.nodes.with_number(value, *piece.numbers[port], v, device)
            return self.nodes.named(made, v, device, "/list").output(0)
        return value

    def _read(self, v: int, port: int, device: int, span: Span | None) -> Any:
        """Return the value that an input of an op reads, or a range of it, on a device."""
        source, u = self.shapes.nodes[v].input_value(port), self.shapes.producer(v, port)
        if u in self.made:
            return self._value(u, source.get_index(), device, span)
        return self.nodes.sliced(source, u, device, span) if u >= 0 else self._known(source, v, device, span)

    def _known(self, source: Any, v: int, device: int, span: Span | None) -> Any:
        """Return a range of a known value; cut the weights behind a decompression, not its result."""
        if span is None:
            return source
        node = source.get_node()
        if node.get_type_name() == "Constant":
            values = sliced_constant(node, span, fills=self.fills)
            if values is not None:
                return self.nodes.named(values, v, device, "/weights").output(0)
        piece = piece_of(NodeView(node), span)
        if piece is None:
            return self.nodes.sliced(source, v, device, span)
        inputs = [
            self.nodes.named(opset13.constant(piece.constants[port]), v, device, "/shape").output(0)
            if port in piece.constants
            else self._known(value, v, device, need)
            for port, (value, need) in enumerate(zip(node.input_values(), piece.inputs, strict=True))
        ]
        made = self.nodes.named(_created(node, inputs, piece.attributes), v, device, "/weights")
        return made.output(source.get_index())

    def _value(self, u: int, port: int, device: int, span: Span | None) -> Any:
        """Return a result of an op that has been written, or a range of it, on a device."""
        key = u, port, device, span
        if key not in self._values:
            self._values[key] = self._brought(u, port, device, span)
        return self._values[key]

    def _brought(self, u: int, port: int, device: int, span: Span | None) -> Any:
        made = self.made[u]
        if made[0].is_partial:
            total, *parts = (self.nodes.sliced(part.node.output(port), u, part.device, span) for part in made)
            for part in parts:
                total = self.nodes.named(opset13.add(total, part), u, device, "/sum").output(0)
            return total
        if made[0].span is None:
            origin = next((part for part in made if part.device == device), made[0])
            return self.nodes.sliced(origin.node.output(port), u, origin.device, span)
        axis = made[0].span.axis
        whole = Span(axis, 0, shape_of(self.shapes.nodes[u].output(port))[axis])
        parts = [
            self.nodes.sliced(giver.node.output(port), u, giver.device, part)
            for giver, part in _cover(made, span if span is not None and span.axis == axis else whole, device)
        ]
        joined = parts[0]
        if len(parts) > 1:
            joined = self.nodes.named(opset13.concat(parts, axis), u, device, "/join").output(0)
        return joined if span is None or span.axis == axis else self.nodes.sliced(joined, u, device, span)


def _cover(made: Sequence[_Made], wanted: Span, device: int) -> list[tuple[_Made, Span]]:
    """Return which devices' ranges make up a wanted one, with what each gives, counted from its own start.

    The device itself comes before others that have the same.
    """
    parts = [(giver, giver.span) for giver in made if giver.span is not None]
    local = next((part for part in parts if part[0].device == device), None)
    cover = list[tuple[_Made, Span]]()
    at = wanted.first
    while at < wanted.last:
        having = [part for part in parts if part[1].first <= at < part[1].last]
        if not having:
            raise PlacementError("no device computes all of a tensor that is read outside its region")
        giver, span = local if local is not None and local in having else max(having, key=lambda part: part[1].last)
        begin, at = at, min(span.last, wanted.last)
        if local is not None and begin < local[1].first:
            at = min(at, local[1].first)
        cover.append((giver, Span(wanted.axis, begin - span.first, at - span.first)))
    return cover


def sliced_constant(node: ov.Node, span: Span, *, fills: bool = True) -> ov.Node | None:
    """Return a constant that holds a range of another one, None where its element type cannot be cut.

    Without ``fills`` large ones are left uninitialised, so that no memory is touched.
    """
    element, shape = node.get_output_element_type(0), shape_of(node.output(0))
    bits = element.bitwidth
    data = node.data
    if bits < 8 and 8 % bits == 0:
        flat = np.unpackbits(data.view(np.uint8), bitorder="little").reshape(-1, bits)[: int(np.prod(shape))]
        values = flat.reshape(*shape, bits)
    elif data.shape == shape and data.itemsize * 8 == bits:
        values = data
    else:
        return None
    sizes = [*shape[: span.axis], span.size, *shape[span.axis + 1 :]]
    tensor = ov.Tensor(element, ov.Shape(sizes))  # it has memory of its own, unlike a tensor made of an array
    if not fills and tensor.byte_size > LARGE_BYTES:
        return ov.op.Constant(tensor)
    taken = np.ascontiguousarray(np.take(values, np.arange(span.first, span.last), axis=span.axis))
    if bits < 8:
        taken = np.packbits(taken.reshape(-1), bitorder="little")
    tensor.data.reshape(-1).view(np.uint8)[:] = taken.reshape(-1).view(np.uint8)
    return ov.op.Constant(tensor)


def _created(node: ov.Node, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> ov.Node:
    """Return a copy of a node with other inputs and some other attributes."""
    factory = _factory(node.get_type_info().version_id)
    return factory.create(node.get_type_name(), list(inputs), {**node.get_attributes(), **attributes})


def _finished(model: ov.Model, graph: ComputationGraph, writer: _Writer) -> ShardedModel:
    """Return the model with its ops under their names, and the device of each; others go with their first reader."""
    for v, old in writer.stored.items():
        model.remove_sink(old)
        model.remove_variable(model.get_variable_by_id(graph.variables[v]))
    model.add_sinks(writer.sinks)
    for node in model.get_ordered_ops():
        number, _, rest = node.get_friendly_name().partition(".")
        if node.get_name() not in writer.nodes.device:
            node.set_friendly_name(graph.op_names[int(number)] + rest)
    model.validate_nodes_and_infer_types()
    name_uniquely(model)
    written = writer.nodes.device | writer.kept
    ordered = model.get_ordered_ops()
    device = dict(written)
    for node in ordered:
        if node.get_type_name() == "Result":  # where its input is computed
            device[node.get_name()] = written.get(node.input_value(0).get_node().get_name(), 0)
    for node in reversed(ordered):
        for value in node.input_values():
            name = value.get_node().get_name()
            if name not in written:
                device[name] = device[node.get_name()]
    names = [node.get_name() for node in ordered]
    origin, work = zip(*(writer.work.get(name, (-1, 0.0)) for name in names), strict=True)
    sharded = graph_of(model)
    homes = [device.get(name, 0) for name in names]
    if writer.sinks or sharded.is_dynamic.any():
        follow = NOT_COMPUTED | SHAPE_OF_TYPES  # inputs go with their reader or state, shapes with their tensor
        constraints = colocate(sharded)
        labels, members = constraints.sets.labels, constraints.sets.members
        for v in [v for v, kind in enumerate(sharded.op_types) if kind in ("Parameter", *SHAPE_OF_TYPES)]:
            together = [u for u in members.of(labels[v]).tolist() if not constraints.floating[u]]
            homes[v] = homes[next((u for u in together if sharded.op_types[u] not in follow), together[0])]
    return ShardedModel(sharded, tuple(homes), origin, work, model)
