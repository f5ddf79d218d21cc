"""Build a torch function for an OpenVINO op, from a table of builders by type of op.

OpenVINO evaluates on the CPU what the table lacks: other types of ops, and other forms of them (integers where torch
takes floating-point numbers only, limits that are not constant, shapes that are not fixed).

Legend: N batch, C channels, G groups, O output channels, S spatial axes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import openvino as ov
import torch
from torch.nn import functional

from hsdag.runtime.torch.op import (
    NotInTorch,
    Shape,
    SourceOp,
    Tensor,
    TensorFunction,
    by_openvino,
    constant_tensor,
)

Builder = Callable[[SourceOp], TensorFunction]
"""Function from an op to the torch function that runs it. Raises NotInTorch for forms that torch does not run."""

SAME_NAMES = (
    "Relu Abs Sign Floor LogicalNot BitwiseNot Maximum Minimum LogicalAnd LogicalOr LogicalXor BitwiseAnd BitwiseOr "
    "BitwiseXor"
)
ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, re.sub(r"\B[A-Z]", r"_\g<0>", name).lower()) for name in SAME_NAMES.split()},
    "Result": lambda x: x,
    "Identity": lambda x: x,
    "Negative": torch.neg,
    "Ceiling": torch.ceil,
    "Add": torch.add,
    "Subtract": torch.sub,
    "Multiply": torch.mul,
    "Mod": torch.fmod,
    "FloorMod": torch.remainder,
    "SquaredDifference": lambda a, b: torch.square(a - b),
    "Equal": torch.eq,
    "NotEqual": torch.ne,
    "Greater": torch.gt,
    "GreaterEqual": torch.ge,
    "Less": torch.lt,
    "LessEqual": torch.le,
    "Select": torch.where,
}
"""Torch's functions of all operands, by type of op, for operands of any element type."""

SAME_NAMES_REALS = "Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf Exp IsFinite IsNaN Log Sigmoid Sin Sinh Sqrt Tan Tanh"
ELEMENTWISE_REALS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name.lower()) for name in SAME_NAMES_REALS.split()},
    "Power": torch.pow,
    "HSwish": functional.hardswish,
    "HSigmoid": functional.hardsigmoid,
    "Mish": functional.mish,
    "SoftPlus": functional.softplus,
    "Swish": lambda x, *beta: x * torch.sigmoid(x * beta[0]) if beta else functional.silu(x),
}
"""Torch's functions of all operands, by type of op, if the first operand has a floating-point type."""


def _each(function: Callable[..., Tensor]) -> Builder:
    """Return the builder of an op that is a function of all its operands."""
    return lambda _: lambda xs: (function(*xs),)


def _with(function: Callable[..., Tensor], **named: Callable[[SourceOp], Any]) -> Builder:
    """Return the builder of an op that is a function of its first operand and of settings.

    Args:
        named: Function that reads a setting of the op when it is built, by the name of the argument.
    """

    def build(op: SourceOp) -> TensorFunction:
        read = {name: of(op) for name, of in named.items()}
        return lambda xs: (function(xs[0], **read),)

    return build


def _gelu(op: SourceOp) -> str:
    """Return the name of torch's approximation for a Gelu; opset 2 has only the exact one."""
    return "none" if op.opset == "opset2" or op.choice("approximation_mode", "erf", "tanh") == "erf" else "tanh"


def _broadcast(op: SourceOp) -> Shape:
    op.choice("mode", "numpy", "bidirectional")
    return op.out_shape()


def _axis(op: SourceOp) -> int:
    return int(op.attribute("axis"))


def _divide(op: SourceOp) -> TensorFunction:
    """Build a division; of integers it rounds down if the op asks for Python's division, else towards zero."""
    rounding = None if op.takes_reals else "floor" if op.attribute("m_pythondiv") else "trunc"
    return lambda xs: (torch.div(xs[0], xs[1], rounding_mode=rounding),)


def _matmul(op: SourceOp) -> TensorFunction:
    turn_a, turn_b = (
        bool(op.attribute(name)) and len(op.shape(port)) > 1  # a vector has nothing to transpose
        for port, name in enumerate(("transpose_a", "transpose_b"))
    )
    return lambda xs: (torch.matmul(xs[0].mT if turn_a else xs[0], xs[1].mT if turn_b else xs[1]),)


def _attention(op: SourceOp) -> TensorFunction:
    """Build scaled dot-product attention.

    The inputs are queries [B..., L, E], keys [B..., S, E], values [B..., S, Ev], a mask that broadcasts to
    [B..., L, S], and a scale, with batch axes B, L queries, S keys and sizes E and Ev of their vectors. A causal op
    ignores its mask, and a mask of one element, which OpenVINO writes for none, is ignored, too.
    """
    op.require(op.num_inputs <= 5)
    causal = bool(op.attribute("causal"))
    batch = op.out_shape()[:-2]
    masked = not causal and op.num_inputs > 3 and (len(op.shape(3)) > 0 or prod(op.shape(3)) > 1)
    scale = float(np.asarray(op.value(4)).item()) if op.num_inputs > 4 else None

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        query, key, value = (x.expand(*batch, *x.shape[-2:]) for x in xs[:3])
        mask = xs[3] if masked else None
        if mask is not None and mask.dtype is not torch.bool:
            mask = mask.to(query.dtype)
        return (functional.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale),)

    return run


def _reduction(function: Callable[[Tensor, Shape, bool], Tensor]) -> Builder:
    def build(op: SourceOp) -> TensorFunction:
        axes, keep = op.axes(), bool(op.attribute("keep_dims"))
        if not axes:  # torch would reduce all
            return lambda xs: (xs[0],)
        return lambda xs: (function(xs[0], axes, keep),)

    return build


def _sum(op: SourceOp) -> TensorFunction:
    """Build a sum; OpenVINO evaluates those of small integers, which it limits to their range."""
    op.require(op.takes_reals or op.dtype().itemsize > 2)
    return _reduction(lambda x, axes, keep: torch.sum(x, axes, keep, dtype=x.dtype))(op)


def _mvn(op: SourceOp) -> TensorFunction:
    """Build a normalization by mean and standard deviation along trailing axes."""
    port_1 = op.num_inputs > 1
    axes = op.axes() if port_1 else tuple(op.attribute("reduction_axes"))  # opset 2 has an attribute
    op.require(op.attribute("normalize_variance"), not port_1 or op.choice("eps_mode", "inside_sqrt"))
    shape = op.shape()
    eps = float(op.attribute("eps"))
    op.require(sorted(axes) == list(range(len(shape) - len(axes), len(shape))))
    tail = shape[len(shape) - len(axes) :]
    return lambda xs: (functional.layer_norm(xs[0], tail, eps=eps),)


def _always(tensor: Tensor) -> TensorFunction:
    return lambda _: (tensor,)


def _concat(op: SourceOp) -> TensorFunction:
    axis = _axis(op)
    return lambda xs: (torch.cat(tuple(xs), axis),)


def _split(op: SourceOp) -> TensorFunction:
    """Build a Split, or a VariadicSplit, into parts as long as the outputs."""
    (axis,) = op.axes()
    lengths = [op.out_shape(port)[axis] for port in range(op.node.get_output_size())]
    return lambda xs: torch.split(xs[0], lengths, axis)


def _slice(op: SourceOp) -> TensorFunction:
    starts, stops, steps = (op.value(port) for port in (1, 2, 3))
    op.require(min(steps, default=1) > 0)  # torch has no other steps
    index = [slice(None)] * len(op.shape())
    for axis, *cut in zip(op.axes(4) if op.num_inputs > 4 else range(len(starts)), starts, stops, steps, strict=True):
        index[axis] = slice(*cut)
    return lambda xs: (xs[0][tuple(index)],)


def _strided_slice(op: SourceOp) -> TensorFunction:
    """Build a StridedSlice as a Python index, with ``None`` for a new axis and a number for an axis that is removed."""
    begin, end, steps = (op.value(port) for port in (1, 2, 3))  # OpenVINO adds steps where a file has none
    op.require(min(steps, default=1) > 0)
    kinds = ("begin", "end", "new_axis", "shrink_axis", "ellipsis")
    masks = ([*op.attribute(f"{kind}_mask"), *[0] * len(begin)] for kind in kinds)  # masks may be shorter than the axes
    index: list[Any] = []
    for first, last, step, from_start, to_end, is_new, is_lost, is_rest in zip(begin, end, steps, *masks, strict=False):
        cut = slice(None if from_start else first, None if to_end else last, step)
        index.append(... if is_rest else None if is_new else first if is_lost else cut)
    return lambda xs: (xs[0][tuple(index)],)


def _pad(op: SourceOp) -> TensorFunction:
    """Build padding by a constant; negative widths crop."""
    op.choice("pad_mode", "constant")
    begin, end = (op.value(port) for port in (1, 2))
    value = np.asarray(op.value(3)).item() if op.num_inputs > 3 else 0
    widths = _sides(begin, end)
    return lambda xs: (functional.pad(xs[0], widths, value=value),)


def _sides(begin: Sequence[int], end: Sequence[int]) -> list[int]:
    """Return widths of padding as ``torch.nn.functional.pad`` takes them, the last axis first."""
    return [side for pair in zip(begin[::-1], end[::-1], strict=True) for side in pair]


def _gather(op: SourceOp) -> TensorFunction:
    """Build a Gather of slices along one axis; negative indices count from the end, except in opsets 1 and 7.

    An index out of range gives zeros, as in OpenVINO. It never reaches a kernel, which on CUDA would end the process.
    """
    shape, result = op.shape(), op.out_shape()
    op.require(not op.node.get_attributes().get("batch_dims", 0))
    (axis,) = op.axes(2)
    from_end = op.opset not in ("opset1", "opset7")
    size, last = shape[axis], shape[axis] - 1
    along = (1,) * axis + (prod(op.shape(1)),) + (1,) * (len(shape) - axis - 1)

    def run(xs: Sequence[Tensor]) -> tuple[Tensor]:
        where = xs[1].reshape(-1).to(torch.int64)
        where = torch.where(where < 0, where + size, where) if from_end else where
        slices = xs[0].index_select(axis, where.clamp(0, last))
        return (slices.masked_fill_(((where < 0) | (where > last)).reshape(along), 0).reshape(result),)

    return run


@dataclass(frozen=True)
class Windows:
    """The positions of windows along each spatial axis; every tuple is [S].

    Attributes:
        padding: Width by which torch pads both sides of an axis.
        sides: Widths by which the values are padded or cropped before, if torch's own padding does not fit; otherwise
            empty.
    """

    kernel: Shape
    strides: Shape
    dilations: Shape
    padding: Shape
    sides: list[int]

    @staticmethod
    def of(op: SourceOp, kernel: Shape, most: Shape | None = None) -> Windows:
        """Return the windows of an op along one to three axes.

        Args:
            kernel: Size of a window [S].
            most: Widest padding that torch takes [S]; None for no limit.
        """
        op.require(1 <= len(kernel) <= 3)
        strides = tuple(op.attribute("strides"))
        dilations = tuple(op.node.get_attributes().get("dilations", (1,) * len(kernel)))
        begin = tuple(op.attribute("pads_begin"))  # OpenVINO has filled in what auto_pad asks for
        sizes = zip(op.shape()[2:], op.out_shape()[2:], kernel, strides, dilations, begin, strict=True)
        end = [(out - 1) * stride + (k - 1) * step + 1 - size - pad for size, out, k, stride, step, pad in sizes]
        limits = zip(begin, end, strides, most or begin, strict=True)
        if all(e <= b <= limit and b - e < stride for b, e, stride, limit in limits):
            return Windows(kernel, strides, dilations, begin, [])
        return Windows(kernel, strides, dilations, (0,) * len(kernel), _sides(begin, end))

    def padded(self, x: Tensor, value: float = 0.0) -> Tensor:
        """Return the tensor padded with ``value``, or cropped where windows end before it does."""
        return functional.pad(x, self.sides, value=value) if self.sides else x


def _along(name: str, axes: Shape) -> Callable[..., Tensor]:
    """Return torch's function of windows of this name for one, two or three axes."""
    function: Callable[..., Tensor] = getattr(functional, f"{name}{len(axes)}d")
    return function


def _convolution(op: SourceOp) -> TensorFunction:
    """Build a convolution of data [N, C, S...] with weights [O, C, S...].

    The weights of a GroupConvolution are [G, O / G, C / G, S...].
    """
    shape = op.shape(1)
    groups, weight_shape = (shape[0], (shape[0] * shape[1], *shape[2:])) if op.type.startswith("Group") else (1, shape)
    windows = Windows.of(op, weight_shape[2:])
    convolve: Callable[..., Tensor] = partial(
        _along("conv", windows.kernel),
        stride=windows.strides,
        padding=windows.padding,
        dilation=windows.dilations,
        groups=groups,
    )
    return lambda xs: (convolve(windows.padded(xs[0]), xs[1].reshape(weight_shape)),)


def _pool_windows(op: SourceOp) -> Windows:
    """Return the windows of a pool, which torch pads by at most half a window."""
    kernel = tuple(op.attribute("kernel"))
    return Windows.of(op, kernel, tuple(k // 2 for k in kernel))


def _max_pool(op: SourceOp) -> TensorFunction:
    """Build the maximum over windows of data [N, C, S...]; OpenVINO evaluates an op whose indices are read."""
    op.require(op.node.get_output_size() == 1 or not op.node.output(1).get_target_inputs())
    windows = _pool_windows(op)
    pool = _along("max_pool", windows.kernel)
    settings = (windows.strides, windows.padding, windows.dilations)
    return lambda xs: (pool(windows.padded(xs[0], -torch.inf), windows.kernel, *settings),)


def _avg_pool(op: SourceOp) -> TensorFunction:
    """Build the mean over windows of data [N, C, S...]; padding counts as zeros, or with exclude-pad not at all."""
    windows = _pool_windows(op)
    is_same = str(op.attribute("auto_pad")).lower().startswith("same")
    is_padded = any((*op.attribute("pads_begin"), *op.attribute("pads_end"), is_same))
    exclude = bool(op.attribute("exclude-pad")) or not is_padded  # as in OpenVINO: what lies beyond is no padding
    op.require(set(windows.dilations) == {1}, not (exclude and windows.sides))  # there torch divides by other counts
    pool = _along("avg_pool", windows.kernel)
    settings = (windows.strides, windows.padding, False, not exclude)
    return lambda xs: (pool(windows.padded(xs[0]), windows.kernel, *settings),)


BUILDERS: dict[str, Builder] = {
    **{name: _each(function) for name, function in ELEMENTWISE.items()},
    **{name: _with(Tensor.to, dtype=SourceOp.dtype) for name in ("Convert", "ConvertLike")},
    "Divide": _divide,
    "ReduceSum": _sum,
    "ReduceMax": _reduction(torch.amax),
    "ReduceMin": _reduction(torch.amin),
    "ReduceLogicalAnd": _reduction(torch.all),
    "ReduceLogicalOr": _reduction(torch.any),
    "Constant": lambda op: _always(constant_tensor(op.node)),
    "ShapeOf": lambda op: _always(torch.tensor(op.shape(), dtype=op.dtype())),
    # OpenVINO has worked out shapes already: zeros and -1 of a Reshape, the axes of a Squeeze
    **{name: _with(torch.reshape, shape=SourceOp.out_shape) for name in ("Reshape", "Squeeze", "Unsqueeze")},
    "Transpose": _with(torch.permute, dims=lambda op: op.value(1) or tuple(range(len(op.shape())))[::-1]),
    "Concat": _concat,
    "Split": _split,
    "VariadicSplit": _split,
    "Broadcast": _with(torch.broadcast_to, size=_broadcast),
    "Tile": _with(torch.tile, dims=lambda op: op.value(1)),
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "Pad": _pad,
    "Gather": _gather,
}
"""Builders by type of op, for operands of any element type."""

BUILDERS_OF_REALS: dict[str, Builder] = {
    **{name: _each(function) for name, function in ELEMENTWISE_REALS.items()},
    "Clamp": _with(torch.clamp, min=lambda op: float(op.attribute("min")), max=lambda op: float(op.attribute("max"))),
    "Gelu": _with(functional.gelu, approximate=_gelu),
    "Softmax": _with(torch.softmax, dim=_axis),
    "LogSoftmax": _with(torch.log_softmax, dim=_axis),
    "MatMul": _matmul,
    "ScaledDotProductAttention": _attention,
    "ReduceMean": _reduction(torch.mean),
    "ReduceL1": _reduction(lambda x, axes, keep: torch.sum(torch.abs(x), axes, keep)),
    "ReduceL2": _reduction(lambda x, axes, keep: torch.sqrt(torch.sum(x * x, axes, keep))),
    "MVN": _mvn,
    "Convolution": _convolution,
    "GroupConvolution": _convolution,
    "MaxPool": _max_pool,
    "AvgPool": _avg_pool,
}
"""Builders by type of op, for ops that torch runs only if the first operand has a floating-point type."""


def build_op(node: ov.Node, constants: Mapping[int, Tensor] | None = None) -> tuple[TensorFunction, bool]:
    """Return a function that runs the op on torch tensors, and whether torch itself runs it.

    Raises UnsupportedOpError, which names the op, for ops with state and ops that OpenVINO does not run either.

    Args:
        constants: Values, by input port, of the inputs that depend on no input of the model.
    """
    op = SourceOp(node, constants or {})
    for port in range(node.get_output_size()):
        op.dtype(port)
    broadcast = str(node.get_attributes().get("auto_broadcast", "numpy")).lower()
    build = BUILDERS.get(op.type) or (BUILDERS_OF_REALS.get(op.type) if op.takes_reals else None)
    try:
        if build is not None and broadcast in ("numpy", "none"):
            return build(op), True
    except NotInTorch:
        pass
    return by_openvino(op), False
