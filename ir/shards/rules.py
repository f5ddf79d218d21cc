"""Rules: how an axis passes through an op, so that a device can compute a range of its result.

Given the wanted range of the result, a rule returns the range of every input that it takes, and the changes to the
op. An op of a type without a rule, or whose rule returns None, is computed as a whole.

Sizes that are not known before the data are -1; an axis that is divided has a known size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from hsdag.ir.graph.build import sizes_of
from hsdag.ir.graph.flops import ELEMENTWISE

Shape: TypeAlias = tuple[int, ...]


class Span(NamedTuple):
    """A range of a tensor along an axis: the indices from ``first`` up to, but not including, ``last``."""

    axis: int
    first: int
    last: int

    @property
    def size(self) -> int:
        """Return the number of indices."""
        return self.last - self.first

    def along(self, axis: int) -> Span:
        """Return the same range of another axis."""
        return Span(axis, self.first, self.last)

    def __or__(self, other: Span) -> Span:
        """Return the smallest range that contains both, which lie along one axis."""
        return Span(self.axis, min(self.first, other.first), max(self.last, other.last))


@dataclass(frozen=True)
class Piece:
    """A range of an op as an op of its own: the range of each input (None: all of it), and the changes to the op.

    ``attributes`` replace those of the op; ``constants``, by input, replace what the op reads; ``numbers``, by input,
    are a place in the list that the op reads, and the number to put there.
    """

    inputs: tuple[Span | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)
    numbers: Mapping[int, tuple[int, int]] = field(default_factory=dict)


class NodeView:
    """A node as rules see it."""

    def __init__(self, node: ov.Node) -> None:
        self.node = node
        self.type: str = node.get_type_name()
        self.inputs = tuple(shape_of(value) for value in node.input_values())
        self._constants: dict[int, list[int] | None] = {}
        self.outputs = tuple(shape_of(value) for value in node.outputs())

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return dict(self.node.get_attributes())

    @property
    def rank(self) -> int:
        """Return the number of axes of the first result."""
        return len(self.outputs[0])

    def constant(self, port: int) -> list[int] | None:
        """Return the integers of a constant input, None where it is not constant or missing."""
        if port not in self._constants:
            self._constants[port] = self._constant(port)
        return self._constants[port]

    def _constant(self, port: int) -> list[int] | None:
        if port >= len(self.inputs):
            return None
        source = self.node.input_value(port).get_node()
        kind = source.get_output_element_type(0)
        if source.get_type_name() != "Constant" or kind.is_dynamic() or not kind.is_integral():
            return None  # an optional input that is left out may be a constant of no type
        return [int(value) for value in np.atleast_1d(source.get_data(dtype=np.int64))]

    def axes(self, port: int) -> set[int] | None:
        """Return the axes of input 0 that a constant input names, counted from the front; None if they are unknown."""
        named = self.constant(port)
        return None if named is None else {axis % len(self.inputs[0]) for axis in named}

    def only(self, span: Span, port: int = 0) -> Piece:
        """Return a piece that reads a range of one input and all of the others."""
        return Piece(tuple(span if i == port else None for i in range(len(self.inputs))))


Rule: TypeAlias = Callable[[NodeView, Span], Piece | None]


def shape_of(value: Any) -> Shape:
    """Return the sizes of a tensor, -1 where one is not known; no sizes for a tensor of unknown rank."""
    shape = value.get_partial_shape()
    if shape.is_static or shape.rank.is_dynamic:
        return sizes_of(value)
    return tuple(-1 if size.is_dynamic else size.get_length() for size in shape)


def broadcast(shape: Shape, rank: int, span: Span) -> Span | None:
    """Return the range of an input that NumPy's broadcasting spreads to ``span`` of a result of ``rank`` axes."""
    axis = span.axis - (rank - len(shape))
    return None if axis < 0 or shape[axis] == 1 else span.along(axis)


def elementwise(op: NodeView, span: Span) -> Piece | None:
    """Divide an op that computes each number from the numbers at the same place."""
    if len(op.inputs) > 1 and op.attributes.get("auto_broadcast", "numpy") == "pdpd":
        return None
    return Piece(tuple(broadcast(shape, op.rank, span) for shape in op.inputs))


def of_first(op: NodeView, span: Span) -> Piece | None:
    """Divide an op that reads its first input at the same place, the others in full; variables start with the range."""
    return op.only(span) if op.inputs else None


def prelu(op: NodeView, span: Span) -> Piece | None:
    """Divide a PRelu; a slope of one axis belongs to the channels, axis 1."""
    slope = op.inputs[1]
    if len(slope) != 1 or len(op.inputs[0]) == 1:
        return elementwise(op, span)
    return Piece((span, span.along(0) if span.axis == 1 and slope[0] != 1 else None))


def matmul(op: NodeView, span: Span) -> Piece | None:
    """Divide a product: rows of the result by rows of the first input, columns by columns of the second."""
    a, b = op.inputs
    if min(len(a), len(b)) < 2:
        return None
    if span.axis == op.rank - 1:
        return op.only(span.along(len(b) - (2 if op.attributes["transpose_b"] else 1)), port=1)
    if span.axis == op.rank - 2:
        return op.only(span.along(len(a) - (1 if op.attributes["transpose_a"] else 2)))
    return elementwise(op, span)


def _window(op: NodeView, span: Span) -> tuple[Span, dict[str, Any]] | None:
    """Return the rows that windows over ``span`` reach, and the attributes that pad them.

    Padding stays at the outer edges alone. None where windows lie in the padding, or where ``auto_pad`` depends on a
    size that is not known: where it is known, OpenVINO has filled in the pads.
    """
    axis, (size, rows) = span.axis, (op.inputs[0][span.axis], op.inputs[0][2:])
    if min(rows) < 0 and op.attributes.get("auto_pad", "explicit").startswith("same"):
        return None
    _, stride, _ = _kernel(op, axis)
    begins, ends = list(op.attributes["pads_begin"]), list(op.attributes["pads_end"])
    first = span.first * stride - begins[axis - 2]
    last = (span.last - 1) * stride - begins[axis - 2] + _extent(op, axis)
    if min(last, size) <= max(first, 0):
        return None
    begins[axis - 2], ends[axis - 2] = max(-first, 0), max(last - size, 0)
    attributes = {"pads_begin": begins, "pads_end": ends, "auto_pad": "explicit"}
    return Span(axis, max(first, 0), min(last, size)), attributes


def _kernel(op: NodeView, axis: int) -> tuple[int, int, int]:
    """Return the size, stride and dilation of windows along a spatial axis."""
    k = axis - 2
    size = op.attributes["kernel"][k] if "kernel" in op.attributes else op.inputs[1][axis - op.rank]
    return size, op.attributes["strides"][k], op.attributes.get("dilations", [1] * (k + 1))[k]


def convolution(op: NodeView, span: Span) -> Piece | None:
    """Divide a convolution: rows by the rows that windows reach (the halo), channels by filters, batch by itself."""
    if span.axis == 0:
        return op.only(span)
    if span.axis == 1:
        return op.only(span.along(0), port=1)
    window = _window(op, span)
    return window and Piece((window[0], None), window[1])


def group_convolution(op: NodeView, span: Span) -> Piece | None:
    """Divide a group convolution like a convolution; channels in whole groups, which read channels of their own."""
    if span.axis != 1:
        return convolution(op, span)
    groups, each_out, each_in = op.inputs[1][:3]
    if groups < 0 or span.first % each_out or span.last % each_out:
        return None
    first, last = span.first // each_out, span.last // each_out
    return Piece((Span(1, first * each_in, last * each_in), Span(0, first, last)))


def pool(op: NodeView, span: Span) -> Piece | None:
    """Divide a pooling: rows by the rows that windows reach; channels and the batch by themselves."""
    if len(op.outputs) > 1 and op.node.output(1).get_target_inputs():
        return None  # its second output has indices into a whole tensor
    if span.axis < 2:
        return op.only(span)
    window = _window(op, span)
    if window is None:
        return None
    rows, attributes = window
    if op.attributes.get("rounding_type", "floor") != "floor":
        # windows that a ceiling adds may leave the other axes' padding: their pads grow to hold whole windows
        if min(op.inputs[0][2:]) < 0 or (op.type == "AvgPool" and not op.attributes["exclude-pad"]):
            return None
        for other in range(2, op.rank):
            if other != span.axis:
                attributes["pads_end"][other - 2] = max(_reach(op, other) - op.inputs[0][other], 0)
    if any(attributes["pads_end"][other - 2] >= _extent(op, other) for other in range(2, op.rank)):
        return None  # a window would lie in the padding, which plugins refuse
    return Piece((rows,), {**attributes, "rounding_type": "floor"})


def _extent(op: NodeView, axis: int) -> int:
    """Return the number of rows from the first of a window to its last."""
    kernel, _, dilation = _kernel(op, axis)
    return (kernel - 1) * dilation + 1


def _reach(op: NodeView, axis: int) -> int:
    """Return the row at which the last window along an axis ends."""
    stride, before = _kernel(op, axis)[1], int(op.attributes["pads_begin"][axis - 2])
    return (op.outputs[0][axis] - 1) * stride - before + _extent(op, axis)


def concat(op: NodeView, span: Span) -> Piece | None:
    """Divide along the axes that are not concatenated."""
    return None if op.attributes["axis"] % op.rank == span.axis else Piece((span,) * len(op.inputs))


def transpose(op: NodeView, span: Span) -> Piece | None:
    """Divide along the input's axis that the order puts there."""
    order = op.constant(1)
    return None if order is None else op.only(span.along((order or list(range(op.rank))[::-1])[span.axis]))


def through_reshape(source: Shape, target: Shape, span: Span) -> Span | None:
    """Return the range of a tensor of shape ``source`` that holds ``span`` of the same numbers in shape ``target``.

    The axis has to survive as a factor: the sizes before it agree, and the range ends at a multiple of the other axis.
    Unknown sizes are negative, and equal only where they are the same number.
    """
    for axis, size in enumerate(source):
        before, rest = source[:axis], source[axis + 1 :]
        is_same = before == target[: span.axis] or (
            min((*before, *target[: span.axis]), default=0) >= 0 and prod(before) == prod(target[: span.axis])
        )
        if not is_same or (size == 1 and target[span.axis] != 1):
            continue
        if size == target[span.axis]:
            return span.along(axis)
        behind = target[span.axis + 1 :]
        while rest and behind and rest[-1] == behind[-1]:  # also where the size is not known
            rest, behind = rest[:-1], behind[:-1]
        if min((*rest, *behind), default=0) < 0 or size < 0:
            return None
        block, step = prod(behind), prod(rest)
        first, last = span.first * block, span.last * block
        if first % step or last % step or size * step != target[span.axis] * block:
            return None
        return Span(axis, first // step, last // step)
    return None


def reshape(op: NodeView, span: Span) -> Piece | None:
    """Divide along axes that survive as a factor; the pattern gets the size of the range."""
    constant = op.constant(1)
    copied = constant if constant is not None and op.attributes["special_zero"] else []
    source = through_reshape(*_with_unknown_sizes_named(op, copied), span)
    if source is None or (constant is None and op.outputs[0].count(-1) > 1):
        return None
    pattern = list(op.outputs[0] if constant is None else constant)
    if copied and source.axis < len(pattern) and pattern[source.axis] == 0:
        pattern[source.axis] = op.inputs[0][source.axis]  # a zero would copy the size of what is cut
    if pattern[span.axis] != -1:
        pattern[span.axis] = span.size
    return Piece((source, None), {"special_zero": bool(copied)}, {1: np.array(pattern)})


def _with_unknown_sizes_named(op: NodeView, copied: Sequence[int]) -> tuple[Shape, Shape]:
    """Return the sizes of input and result, with each unknown one a negative number, the same for equal ones.

    They are equal where a zero of the pattern ``copied`` says so, or where only one is left of either.
    """
    source = tuple(-axis - 2 if size < 0 else size for axis, size in enumerate(op.inputs[0]))
    names = {axis: source[axis] for axis, size in enumerate(copied) if size == 0}
    target = [names.get(axis, -1) if size < 0 else size for axis, size in enumerate(op.outputs[0])]
    left = [name for name in source if name < 0 and name not in target]
    products = [prod(size for size in sizes if size > 0) for sizes in (source, target)]
    if len(left) == target.count(-1) == 1 and products[0] == products[1] and 0 not in source:
        target[target.index(-1)] = left[0]
    return source, tuple(target)


def unsqueeze(op: NodeView, span: Span) -> Piece | None:
    """Divide along the axis without the axes that are added before it."""
    added = op.constant(1)
    if added is None:
        return None
    added = [axis % op.rank for axis in added]
    return None if span.axis in added else op.only(span.along(span.axis - sum(axis < span.axis for axis in added)))


def squeeze(op: NodeView, span: Span) -> Piece | None:
    """Divide along the axis counted with the dropped axes; these are named, as a range may have size 1 too."""
    dropped = {axis for axis, size in enumerate(op.inputs[0]) if size == 1} if len(op.inputs) == 1 else op.axes(1)
    kept = _kept(op, span, dropped)
    return kept and Piece((kept.inputs[0], None), {}, {1: np.array(sorted(dropped or ()))})


def _kept(op: NodeView, span: Span, dropped: set[int] | None) -> Piece | None:
    """Return a piece along the input's axis, where the result lacks the axes in ``dropped``."""
    if dropped is None or len(op.inputs[0]) - len(dropped) != op.rank:
        return None
    return op.only(span.along([axis for axis in range(len(op.inputs[0])) if axis not in dropped][span.axis]))


def reduction(op: NodeView, span: Span) -> Piece | None:
    """Divide along the axes that are not reduced."""
    axes = op.axes(1)
    if axes is None:
        return None
    if op.attributes.get("keep_dims"):
        return None if span.axis in axes else op.only(span)
    return _kept(op, span, axes)


def over_other_axes(op: NodeView, span: Span, port: int = 1) -> Piece | None:
    """Divide along the axes that input ``port`` does not name: slices along these are independent of each other."""
    axes = op.axes(port)
    return None if axes is None or span.axis in axes else op.only(span)


def interpolate(op: NodeView, span: Span) -> Piece | None:
    """Divide along the axes that are not resized; versions 4 and 11 name the resized ones in their last input."""
    if any(any(op.attributes.get(name, ())[span.axis : span.axis + 1]) for name in ("pads_begin", "pads_end")):
        return None
    version = op.node.get_type_info().version_id
    return over_other_axes(op, span, {"opset4": 3, "opset11": 2}.get(version, len(op.inputs)))


def softmax(op: NodeView, span: Span) -> Piece | None:
    """Divide along the axes that are not summed over; TopK names its axis in the same attribute."""
    return None if op.attributes["axis"] % op.rank == span.axis else op.only(span)


def batch_norm(op: NodeView, span: Span) -> Piece | None:
    """Divide channels with their statistics; the first version reads the data third and is not divided."""
    if op.node.get_type_info().version_id == "opset1":
        return None
    return Piece((span, *[span.along(0) if span.axis == 1 else None] * (len(op.inputs) - 1)))


def gather(op: NodeView, span: Span) -> Piece | None:
    """Divide along the data's axes other than the indexed one, and along those of the indices."""
    axes = op.axes(2)
    if axes is None or op.attributes.get("batch_dims", 0):
        return None
    (axis,) = axes
    indices = len(op.inputs[1])
    if axis <= span.axis < axis + indices:
        return op.only(span.along(span.axis - axis), port=1)
    return op.only(span if span.axis < axis else span.along(span.axis - indices + 1))


def attention(op: NodeView, span: Span) -> Piece | None:
    """Divide heads and the batch by themselves; queries with their rows of the mask; columns of the values."""
    if span.axis == op.rank - 1:
        return op.only(span.along(len(op.inputs[2]) - 1), port=2)
    ranges = [broadcast(shape, op.rank, span) for shape in op.inputs]
    if span.axis == op.rank - 2:
        return None if op.attributes["causal"] else Piece((span, None, None, *ranges[3:]))
    return Piece(tuple(ranges))


def pad(op: NodeView, span: Span) -> Piece | None:
    """Divide along the axes that get no padding."""
    begins, ends = op.constant(1), op.constant(2)
    return None if begins is None or ends is None or begins[span.axis] or ends[span.axis] else op.only(span)


def strided_slice(op: NodeView, span: Span) -> Piece | None:
    """Divide along the axes that are taken in full, if no axis is added or dropped."""
    masks = ("new_axis_mask", "shrink_axis_mask", "ellipsis_mask")
    steps = [] if len(op.inputs) < 4 else op.constant(3)
    if op.constant(1) is None or steps is None or any(any(op.attributes.get(mask, ())) for mask in masks):
        return None
    steps = [*steps, *[1] * op.rank]
    is_all = op.inputs[0][span.axis] == op.outputs[0][span.axis] and steps[span.axis] == 1
    return op.only(span) if is_all else None


def slice_(op: NodeView, span: Span) -> Piece | None:
    """Divide along the axes that are not sliced."""
    axes = op.axes(4) if len(op.inputs) > 4 else set(range(len(op.constant(1) or op.inputs[0])))
    return None if axes is None or span.axis in axes else op.only(span)


def broadcast_op(op: NodeView, span: Span) -> Piece | None:
    """Divide along axes that are not repeated, or that are new; the target gets the size of the range."""
    if op.attributes["mode"] not in ("numpy", "bidirectional"):
        return None
    source = broadcast(op.inputs[0], op.rank, span)
    target = op.constant(1) or (None if -1 in op.outputs[0] else list(op.outputs[0]))
    count = len(target) if target is not None else op.inputs[1][0]
    axis = span.axis - (op.rank - count)
    if target is None:  # the target is computed
        return None if count < 0 or axis < 0 else Piece((source, None), numbers={1: (axis, span.size)})
    if axis >= 0 and target[axis] != 1:
        target = [span.size if k == axis else size for k, size in enumerate(target)]
    return Piece((source, None), {}, {1: np.array(target)})


def tile(op: NodeView, span: Span) -> Piece | None:
    """Divide along axes that are not repeated."""
    repeats = op.constant(1)
    if repeats is None or op.rank != len(op.inputs[0]):
        return None
    repeats = [1] * (op.rank - len(repeats)) + repeats
    return op.only(span) if repeats[span.axis] == 1 else None


RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE | {"Convert"}, elementwise),
    **dict.fromkeys("ConvertLike HardSigmoid ReadValue Selu Swish".split(), of_first),
    **dict.fromkeys("ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum".split(), reduction),
    **dict.fromkeys("CumSum LRN MVN NormalizeL2 Split VariadicSplit".split(), over_other_axes),
    **dict.fromkeys("LogSoftmax Softmax TopK".split(), softmax),
    **dict.fromkeys("AvgPool MaxPool".split(), pool),
    "BatchNormInference": batch_norm,
    "Broadcast": broadcast_op,
    "Concat": concat,
    "Convolution": convolution,
    "Gather": gather,
    "GroupConvolution": group_convolution,
    "Interpolate": interpolate,
    "MatMul": matmul,
    "PRelu": prelu,
    "Pad": pad,
    "Reshape": reshape,
    "ScaledDotProductAttention": attention,
    "Slice": slice_,
    "Squeeze": squeeze,
    "StridedSlice": strided_slice,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
"""Rule of each op type that can be divided; to divide another type, add an entry."""


def piece_of(op: NodeView, span: Span) -> Piece | None:
    """Return what computes a range of an op's result, None where the op has no rule for it.

    Also None where an input may have one element for all of the range, as an input of unknown size may.
    """
    rule = RULES.get(op.type)
    piece = rule(op, span) if rule is not None else None
    if piece is None:
        return None
    read = ((shape, need) for shape, need in zip(op.inputs, piece.inputs, strict=False) if need is not None)
    return piece if all(need.axis < len(shape) and shape[need.axis] >= need.last for shape, need in read) else None


def gives(made: ov.Node, op: NodeView, span: Span | None) -> bool:
    """Return whether OpenVINO infers for a node the types and sizes of a range of an op, or of all of it (None)."""
    for output, whole in zip(made.outputs(), op.node.outputs(), strict=True):
        wanted = whole.get_partial_shape()
        if span is not None and wanted.rank.is_static:
            wanted[span.axis] = span.size
        same = output.get_element_type() == whole.get_element_type()
        if not same or not wanted.compatible(output.get_partial_shape()):
            return False
    return True


def contraction(op: NodeView) -> tuple[Span, Span] | None:
    """Return the full ranges of the axes of the first two inputs that an op sums over; None where it has none.

    A range of both gives a partial result; the partial results of all ranges add up to the op's.
    """
    if op.type == "Convolution":
        axes = (1, 1)
    elif op.type == "MatMul" and min(map(len, op.inputs)) >= 2:
        a, b = map(len, op.inputs)
        axes = (a - (2 if op.attributes["transpose_a"] else 1), b - (1 if op.attributes["transpose_b"] else 2))
    else:
        return None
    size = op.inputs[0][axes[0]]
    return (Span(axes[0], 0, size), Span(axes[1], 0, size)) if size > 0 else None


def partial_piece(op: NodeView, first: int, last: int) -> Piece | None:
    """Return what computes a partial result of an op from a range of the axes that it sums over."""
    ranges = contraction(op)
    return ranges and Piece((Span(ranges[0].axis, first, last), Span(ranges[1].axis, first, last)))
