"""Floating-point operations of one op, estimated from its type and shapes.

A multiply-add counts as two operations. Ops that only move data count as none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

Shape = tuple[int, ...]
Rule = Callable[[list[Shape], Shape, Mapping[str, object]], float]

MOVES_DATA = frozenset(
    "Assign Broadcast Concat Constant Convert DepthToSpace Gather GatherElements GatherND Identity Pad "
    "Parameter ReadValue Reshape Result ReverseSequence ScatterElementsUpdate ScatterNDUpdate ScatterUpdate "
    "ShapeOf Slice SpaceToDepth Split Squeeze StridedSlice Tile Transpose Unsqueeze VariadicSplit".split()
)
"""Op types that only move data and count as no operations."""

ELEMENTWISE = frozenset(
    "Abs Acos Acosh Add Asin Asinh Atan Atanh Ceiling Clamp Cos Cosh Divide Elu Equal Erf Exp FakeQuantize Floor "
    "FloorMod Gelu Greater GreaterEqual HSigmoid HSwish HardSigmoid IsFinite IsInf IsNaN Less LessEqual Log LogicalAnd "
    "LogicalNot LogicalOr LogicalXor Maximum Minimum Mish Mod Multiply Negative NotEqual PRelu Power Relu Round Select "
    "Selu Sigmoid Sign Sin Sinh SoftPlus SoftSign Sqrt SquaredDifference Subtract Swish Tan Tanh".split()
)
"""Op types with one result per element."""

TRANSCENDENTAL_COST = {
    "Softmax": 5,
    "LogSoftmax": 6,
    "Gelu": 10,
    "MVN": 8,
    "Erf": 8,
    "Swish": 6,
    "Tanh": 6,
    "Exp": 4,
}
"""Operations per output element, for op types where one is too few."""


def op_flops(op_type: str, inputs: list[Shape], output: Shape, attributes: Mapping[str, object]) -> float:
    """Estimate the operations of an op from the shapes of its inputs and of its first output."""
    if op_type in MOVES_DATA:
        return 0.0
    rule = _RULES.get(op_type)
    if rule is not None and len(inputs) >= 2:
        return rule(inputs, output, attributes)
    if op_type.startswith("Reduce") or op_type in {"NormalizeL2", "LRN", "TopK"}:
        return float(prod(inputs[0])) if inputs else 0.0
    if op_type in {"MaxPool", "AvgPool"}:
        kernel = attributes.get("kernel")
        return float(prod(output) * (prod(map(int, kernel)) if isinstance(kernel, list | tuple) else 1))
    return float(prod(output) * TRANSCENDENTAL_COST.get(op_type, 1))


def _matmul(inputs: list[Shape], output: Shape, attributes: Mapping[str, object]) -> float:
    """Count a multiply-add per output element and position on the contracted axis."""
    left = inputs[0]
    if not left:
        return 0.0
    transposed = bool(attributes.get("transpose_a")) and len(left) > 1
    return 2.0 * prod(output) * (left[-2] if transposed else left[-1])


def _recurrent(gates: int) -> Rule:
    def rule(inputs: list[Shape], _output: Shape, attributes: Mapping[str, object]) -> float:
        hidden = int(str(attributes.get("hidden_size", inputs[1][-1] if inputs[1] else 1)))
        return 2.0 * prod(inputs[0][:-1]) * gates * hidden * (inputs[0][-1] + hidden)

    return rule


def _attention(inputs: list[Shape], output: Shape, _: Mapping[str, object]) -> float:
    """Count two products of L x S x D and a softmax over L x S, for query [..., L, D] and key [..., S, D]."""
    keys = inputs[1][-2] if len(inputs[1]) > 1 else 1
    return float(prod(output[:-1]) * keys * (4 * output[-1] + 5)) if output else 0.0


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_RULES: dict[str, Rule] = {
    "Convolution": lambda inputs, output, _: 2.0 * prod(output) * prod(inputs[1][1:]),  # weights [O, I, kernel...]
    "GroupConvolution": lambda inputs, output, _: 2.0 * prod(output) * prod(inputs[1][2:]),  # [G, O, I, kernel...]
    "ConvolutionBackpropData": lambda inputs, _, __: 2.0 * prod(inputs[0]) * prod(inputs[1][1:]),  # [I, O, kernel...]
    "MatMul": _matmul,
    **{kind + form: _recurrent(gates) for kind, gates in _GATES.items() for form in ("Cell", "Sequence")},
    "ScaledDotProductAttention": _attention,
}

COMPUTES_PRODUCTS = frozenset(_RULES)
"""Op types that do most of a network's arithmetic: each starts a piece of work worth placing by itself."""
