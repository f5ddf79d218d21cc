"""Expressions: what one op of a workload computes from its inputs, as text that can be parsed and executed.

Grammar (docs/models.md has the meaning of every name)::

    expression = name [":" argument] ["(" operand {"," operand} ")"]
    operand    = "%" port | expression

Without parentheses the operands are all inputs of the op in the order of their ports.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from hsdag.ir.graph.flops import op_flops

Shape = tuple[int, ...]

ELEMENT_BYTES = {"f16": 2, "f32": 4, "c64": 8}
"""Bytes per element of each type, from narrow to wide; c64 is a pair of f32."""

_WIDTHS = tuple(ELEMENT_BYTES)
_HEAD, _PORT = re.compile(r"([a-z]\w*)(?::([^()]*))?"), re.compile(r"%(\d+)")
_INPUT = re.compile(r"input:([^\[\]]+)\[([\d:,]*)\]")


@dataclass(frozen=True)
class TensorType:
    """Shape and element type of a tensor."""

    shape: Shape
    element_type: str

    @property
    def size_bytes(self) -> int:
        """Return the size of the tensor in bytes."""
        return prod(self.shape) * ELEMENT_BYTES[self.element_type]


@dataclass(frozen=True)
class Expression:
    """An operation on operands, each an expression or the number of an input port (of an op, while building)."""

    name: str
    argument: str = ""
    operands: tuple[Expression | int, ...] = ()

    def __str__(self) -> str:
        if self.operands == tuple(range(len(self.operands))):  # all inputs in order
            return f"{self.name}:{self.argument}" if self.argument else self.name
        return self._nested()

    def _nested(self) -> str:
        """Return the text with its operands in parentheses."""
        shown = (f"%{x}" if isinstance(x, int) else x._nested() for x in self.operands)
        return f"{self.name}{':' * bool(self.argument)}{self.argument}({','.join(shown)})"

    @property
    def leaves(self) -> tuple[int, ...]:
        """Return the ports or ops among the operands at any depth, each once, in order of first occurrence."""
        numbers: dict[int, None] = {}
        for x in self.operands:
            numbers.update(dict.fromkeys((x,) if isinstance(x, int) else x.leaves))
        return tuple(numbers)

    def relabelled(self, new: dict[int, int]) -> Expression:
        """Return the expression with every port or op number replaced according to ``new``."""
        operands = tuple(new[x] if isinstance(x, int) else x.relabelled(new) for x in self.operands)
        return Expression(self.name, self.argument, operands)

    @property
    def op_type(self) -> str:
        """Return the OpenVINO op type that determines the cost of this operation."""
        return _OPERATIONS[self.name][0]

    def result(self, inputs: Sequence[TensorType]) -> TensorType:
        """Return the type of the result for inputs given by port. Raises ValueError where the operands do not fit."""
        types = self._operand_types(inputs)
        try:
            return _OPERATIONS[self.name][1](self.argument, types)
        except (ValueError, IndexError, KeyError) as error:
            raise ValueError(f"{self} cannot be applied to {[t.shape for t in types]}: {error}") from error

    def flops(self, inputs: Sequence[TensorType]) -> float:
        """Return the floating-point operations of the outermost operation for inputs given by port.

        Operands that are put together from parts (slices, concatenations) count as free, as in ir/graph/flops.py.
        """
        shapes = [t.shape for t in self._operand_types(inputs)]
        out = self.result(inputs)
        if self.name == "einsum":
            sizes, kept = _letter_sizes(self.argument, shapes)
            return prod(sizes.values()) * (2.0 if set(sizes) - set(kept) else 1.0)
        if self.name in ("add", "maximum"):
            return float(prod(out.shape) * (len(shapes) - 1))
        if self.name == "mul" and out.element_type == "c64":
            return 6.0 * prod(out.shape)
        return 2.0 * prod(out.shape) if self.name == "affine" else op_flops(self.op_type, shapes, out.shape, {})

    def _operand_types(self, inputs: Sequence[TensorType]) -> list[TensorType]:
        """Return the type of each operand for inputs given by port."""
        return [inputs[x] if isinstance(x, int) else x.result(inputs) for x in self.operands]


def parse_expression(text: str, num_inputs: int) -> Expression:
    """Parse the expression of an op with ``num_inputs`` inputs.

    Raises ValueError, with the position, if ``text`` breaks the grammar, and ValueError for a port that does not exist.
    """
    expression, end = _parse(text, 0)
    if end != len(text):
        raise ValueError(f"expression {text!r}: nothing is expected after character {end}")
    if not expression.operands:
        expression = Expression(expression.name, expression.argument, tuple(range(num_inputs)))
    if any(x >= num_inputs for x in expression.leaves):
        raise ValueError(f"expression {text!r} reads port {max(expression.leaves)}, but there are {num_inputs} inputs")
    return expression


def input_part(text: str) -> tuple[str, tuple[tuple[int, int], ...]] | None:
    """Return the input's name and ranges from ``input:NAME[RANGES]``, or None for any other expression."""
    match = _INPUT.fullmatch(text)
    return None if match is None else (match[1], parse_ranges(match[2]) if match[2] else ())


def parse_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Parse half-open ranges such as ``0:4,2:6``. Raises ValueError for another form."""
    pairs = [part.split(":") for part in text.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"ranges are written first:last+1, separated by commas, not {text!r}")
    return tuple((int(first), int(last)) for first, last in pairs)


def format_ranges(ranges: Sequence[tuple[int, int]]) -> str:
    """Format half-open ranges as ``0:4,2:6``."""
    return ",".join(f"{first}:{last}" for first, last in ranges)


def parse_settings(text: str) -> dict[str, str]:
    """Parse ``axis=1`` into ``{"axis": "1"}``; several settings are separated by commas."""
    return dict(item.split("=", 1) for item in text.split(",") if "=" in item)


def _parse(text: str, start: int) -> tuple[Expression, int]:
    """Parse the expression that starts at character ``start``; return it with the position after its end."""
    head = _HEAD.match(text, start)
    if head is None or head[1] not in _OPERATIONS:
        raise ValueError(f"expression {text!r}: the name of an operation is expected at character {start}")
    end = head.end()
    operands = list[Expression | int]()
    if end == len(text) or text[end] != "(":
        return Expression(head[1], head[2] or ""), end
    while text[end] != ")":
        port = _PORT.match(text, end + 1)
        x, end = (int(port[1]), port.end()) if port else _parse(text, end + 1)
        operands.append(x)
        if end == len(text) or text[end] not in ",)":
            raise ValueError(f"expression {text!r}: ',' or ')' is expected at character {end}")
    return Expression(head[1], head[2] or "", tuple(operands)), end + 1


def _letter_sizes(argument: str, shapes: Sequence[Shape]) -> tuple[dict[str, int], str]:
    """Return the size of each letter of an einsum and the letters of its result.

    Raises ValueError if the argument does not name every axis or a letter has two sizes.
    """
    left, arrow, kept = argument.partition("->")
    terms = left.split(",")
    if not arrow or [len(term) for term in terms] != [len(shape) for shape in shapes]:
        raise ValueError(f"{argument!r} does not name every axis")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for letter, size in zip(term, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(f"axis {letter} has sizes {sizes[letter]} and {size}")
    return sizes, kept


def _widest(types: Sequence[TensorType]) -> str:
    return max((t.element_type for t in types), key=_WIDTHS.index)


def _einsum(argument: str, types: Sequence[TensorType]) -> TensorType:
    sizes, kept = _letter_sizes(argument, [t.shape for t in types])
    return TensorType(tuple(sizes[letter] for letter in kept), _widest(types))


def _elementwise(_: str, types: Sequence[TensorType]) -> TensorType:
    return TensorType(np.broadcast_shapes(*(t.shape for t in types)), _widest(types))


def _reduction(argument: str, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    shape = list(x.shape)
    shape[int(parse_settings(argument)["axis"])] = 1
    return TensorType(tuple(shape), x.element_type)


def _convert(argument: str, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    if argument not in ("f16", "f32"):
        raise ValueError(f"{argument!r} is neither f16 nor f32")
    return TensorType(x.shape, argument)


def _complex(_: str, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    if x.element_type != "f32" or x.shape[-1] % 2:
        raise ValueError("pairs of f32 are expected along the last axis")
    return TensorType((*x.shape[:-1], x.shape[-1] // 2), "c64")


def _concat(argument: str, types: Sequence[TensorType]) -> TensorType:
    axis = int(parse_settings(argument)["axis"])
    shape = list(types[0].shape)
    if any((*t.shape[:axis], *t.shape[axis + 1 :]) != (*shape[:axis], *shape[axis + 1 :]) for t in types):
        raise ValueError(f"parts differ in axes other than {axis}")
    shape[axis] = sum(t.shape[axis] for t in types)
    return TensorType(tuple(shape), _widest(types))


def _slice(argument: str, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    ranges = parse_ranges(argument)
    if any(not 0 <= a < b <= size for (a, b), size in zip(ranges, x.shape, strict=True)):
        raise ValueError(f"{argument} exceeds the tensor")
    return TensorType(tuple(b - a for a, b in ranges), x.element_type)


def _reshape(argument: str, types: Sequence[TensorType]) -> TensorType:
    (x,) = types
    shape = tuple(int(size) for size in argument.split("x"))
    if prod(shape) != prod(x.shape):
        raise ValueError(f"{argument} has a different number of elements")
    return TensorType(shape, x.element_type)


def _causal(argument: str, _: Sequence[TensorType]) -> TensorType:
    settings = parse_settings(argument)
    return TensorType((int(settings["rows"]), int(settings["columns"])), "f32")


def _input(_: str, __: Sequence[TensorType]) -> TensorType:
    raise ValueError("the type of an input is given, not inferred")


# Operation -> the op type that determines its cost, and a function that infers the type of its result.
_OPERATIONS: dict[str, tuple[str, Callable[[str, Sequence[TensorType]], TensorType]]] = {
    "input": ("Parameter", _input),
    "causal": ("Broadcast", _causal),
    "einsum": ("MatMul", _einsum),
    "add": ("Add", _elementwise),
    "sub": ("Subtract", _elementwise),
    "mul": ("Multiply", _elementwise),
    "div": ("Divide", _elementwise),
    "maximum": ("Maximum", _elementwise),
    "relu": ("ReLU", _elementwise),
    "silu": ("Swish", _elementwise),
    "exp": ("Exp", _elementwise),
    "square": ("Power", _elementwise),
    "rsqrt": ("Power", _elementwise),
    "affine": ("Multiply", _elementwise),
    "identity": ("Identity", _elementwise),
    "max": ("ReduceMax", _reduction),
    "sum": ("ReduceSum", _reduction),
    "convert": ("Convert", _convert),
    "complex": ("Convert", _complex),
    "real": ("Convert", lambda _, types: TensorType((*types[0].shape[:-1], types[0].shape[-1] * 2), "f32")),
    "concat": ("Concat", _concat),
    "slice": ("Slice", _slice),
    "reshape": ("Reshape", _reshape),
}
