"""Nodes that are added to a divided model, with their names and devices, and the ranges of tensors among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.ir.graph.readers import read_instead
from hsdag.ir.shards.regions import OpShapes
from hsdag.ir.shards.rules import RULES, NodeView, Span, elementwise, shape_of

MARK = "@"
"""Separator between an op's name and the device of its shard."""


class AddedNodes:
    """Nodes that are added to a model, each for an op of the model and on one of the devices with these ``names``."""

    def __init__(self, shapes: OpShapes, names: Sequence[str]) -> None:
        self._shapes = shapes
        self._names = names
        self.device: dict[str, int] = {}  # of each node, by OpenVINO's unique name of it
        self._slices: dict[str, tuple[int, int, Span]] = {}  # by OpenVINO's name, too: op, device and range

    def name(self, of: str, device: int) -> str:
        """Return the name of what stands for an op or a variable on a device."""
        return f"{of}{MARK}{self._names[device]}"

    def named(self, node: ov.Node, v: int, device: int, suffix: str = "") -> ov.Node:
        """Give a node, and constants that OpenVINO adds for it, names after an op and a device; return the node."""
        for value in node.input_values():  # OpenVINO adds constants for inputs that are left out
            added = value.get_node()
            if added.get_type_name() == "Constant" and not _has_name(added) and added.get_name() not in self.device:
                self.named(added, v, device, "/default")
        node.set_friendly_name(self.name(self._shapes.graph.op_names[v], device) + suffix)
        self.device[node.get_name()] = device
        return node

    def sliced(self, value: Any, v: int, device: int, span: Span | None) -> Any:
        """Return a range of a tensor, sliced on a device; the tensor itself if the range is all of it."""
        if span is None or (span.first, span.last) == (0, shape_of(value)[span.axis]):
            return value
        bounds = (
            self.named(opset13.constant(np.array([bound])), v, device, "/slice")
            for bound in (span.first, span.last, 1, span.axis)
        )
        made = self.named(opset13.slice(value, *bounds), v, device, "/slice")
        self._slices[made.get_name()] = v, device, span
        return made.output(0)

    def with_number(self, value: Any, place: int, number: int, v: int, device: int) -> ov.Node:
        """Return a list of numbers with one replaced; OpenVINO still infers the others as far as it did."""
        kind = value.get_element_type().to_dtype()
        replacement = self.named(opset13.constant(np.array([number], kind)), v, device, "/size").output(0)
        ends = (Span(0, 0, place), Span(0, place + 1, shape_of(value)[0]))
        before, behind = ([] if end.first == end.last else [self.sliced(value, v, device, end)] for end in ends)
        return opset13.concat([*before, replacement, *behind], 0)

    def past_split(self, value: Any, v: int, device: int) -> Any:
        """Return a part of a split as a slice of the split's input; any other tensor as it is.

        OpenVINO would mistake joined convolutions that all read one part for convolutions of groups that read a part
        each.
        """
        split = value.get_node()
        if split.get_type_name() not in ("Split", "VariadicSplit"):
            return value
        axis = NodeView(split).axes(1)
        sizes = [-1 if axis is None else shape_of(port)[min(axis)] for port in split.outputs()]
        if axis is None or min(sizes) < 0:
            return value
        first = sum(sizes[: value.get_index()])
        span = Span(min(axis), first, first + sizes[value.get_index()])
        return self.sliced(split.input_value(0), v, device, span)

    def gather_where_slices_fail(self, nodes: Iterable[ov.Node]) -> None:
        """Replace slices by gathers where strided convolutions of single numbers read them, or Converts to booleans.

        These are among ``nodes``. OpenVINO moves such strides up through element-wise ops to a slice, makes a split of
        it, and fails. It fails in the same way where it makes a split of slices that are converted to booleans.
        """
        pending = [node for node in nodes if _is_strided_point(node) or _is_boolean(node)]
        seen: set[str] = set()
        while pending:
            for node in [value.get_node() for value in pending.pop().input_values()]:
                if node.get_name() in self._slices:
                    v, device, span = self._slices[node.get_name()]
                    constants = opset13.constant(np.arange(span.first, span.last)), opset13.constant(span.axis)
                    indices = (self.named(constant, v, device, "/slice") for constant in constants)
                    made = self.named(opset13.gather(node.input_value(0), *indices), v, device, "/slice")
                    read_instead(node.output(0), made.output(0))
                elif RULES.get(node.get_type_name()) is elementwise and node.get_name() not in seen:
                    seen.add(node.get_name())
                    pending.append(node)


def _has_name(node: ov.Node) -> bool:
    """Return whether a node has the number of an op, or a name that was given to it."""
    return str(node.get_friendly_name()) != str(node.get_name())


def _is_strided_point(node: ov.Node) -> bool:
    """Return whether an op is a convolution with windows of one number and a stride above 1."""
    if node.get_type_name() not in ("Convolution", "GroupConvolution"):
        return False
    strides = node.get_attributes()["strides"]
    return max(strides) > 1 and set(shape_of(node.input_value(1))[-len(strides) :]) == {1}


def _is_boolean(node: ov.Node) -> bool:
    """Return whether an op converts to booleans."""
    return node.get_type_name() == "Convert" and bool(node.get_output_element_type(0) == ov.Type.boolean)
