"""Executes workloads with NumPy, op by op, in double precision: conversions of element types change nothing."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hsdag.models import Expression, parse_expression

Array = NDArray[np.float64]


def values_of(
    expressions: Sequence[str],
    sources: Sequence[Sequence[int]],
    order: Sequence[int],
    inputs: Mapping[str, Array],
    wanted: Collection[int] | None = None,
) -> list[Array]:
    """The results of ops, each of which sees nothing but those of its ``sources``; they come in topological ``order``.

    Where only those of ``wanted`` count, the others are dropped after their last use. Raises ValueError for an
    expression that breaks the grammar.
    """
    nothing = np.zeros(())
    values: list[Array] = [nothing] * len(expressions)
    last = {u: v for v in order for u in sources[v]}
    for v in order:
        text = expressions[v]
        if text.startswith("input:"):
            name, ranges = input_part(text)
            values[v] = inputs[name][ranges]
        else:
            values[v] = evaluate(parse_expression(text, len(sources[v])), [values[u] for u in sources[v]])
        for u in sources[v]:
            if wanted is not None and last[u] == v and u not in wanted:
                values[u] = nothing
    return values


def evaluate(expression: Expression | int, values: list[Array]) -> Array:
    """The value of an expression whose numbers are indices of ``values``, or of a number."""
    if isinstance(expression, int):
        return values[expression]
    operands = [evaluate(x, values) for x in expression.operands]
    name, argument = expression.name, expression.argument
    settings = dict(item.split("=") for item in argument.split(",") if "=" in item)
    if name in _PLAIN:
        return np.asarray(_PLAIN[name](*operands))
    if name == "einsum":
        return np.asarray(_einsum(argument, *operands))
    if name == "affine":
        return float(settings["factor"]) * operands[0] + float(settings["offset"])
    if name in ("max", "sum"):
        return np.asarray(getattr(np, name)(operands[0], axis=int(settings["axis"]), keepdims=True))
    if name == "concat":
        return np.concatenate(operands, axis=int(settings["axis"]))
    if name == "slice":
        return operands[0][_slices(argument)]
    if name == "reshape":
        return operands[0].reshape([int(size) for size in argument.split("x")])
    assert name == "causal"
    rows = np.arange(int(settings["rows"]))[:, None] + int(settings["first_row"])
    return np.where(np.arange(int(settings["columns"])) <= rows, 0.0, -np.inf)


def _einsum(argument: str, *operands: Array) -> Array:
    """``np.einsum``; of two operands as products of matrices, which BLAS computes, where none of their axes is lost."""
    ends, _, out = argument.partition("->")
    a, _, b = ends.partition(",")
    batch, summed = ([c for c in a if c in b and (c in out) is kept] for kept in (True, False))
    left, right = [c for c in a if c not in b], [c for c in b if c not in a]
    if len(operands) != 2 or set(out) != {*batch, *left, *right} or len({*a}) < len(a) or len({*b}) < len(b):
        return np.asarray(np.einsum(argument, *operands))
    size = dict(zip(a + b, operands[0].shape + operands[1].shape, strict=True))
    sizes = [math.prod(size[c] for c in axes) for axes in (batch, left, summed, right)]
    first = np.einsum(f"{a}->{''.join(batch + left + summed)}", operands[0]).reshape(sizes[0], sizes[1], sizes[2])
    second = np.einsum(f"{b}->{''.join(batch + summed + right)}", operands[1]).reshape(sizes[0], sizes[2], sizes[3])
    made = [*batch, *left, *right]
    product = (first @ second).reshape([size[c] for c in made])
    return np.asarray(np.einsum(f"{''.join(made)}->{out}", product))


_PLAIN: dict[str, Callable[..., Array]] = {
    "add": lambda *xs: functools.reduce(np.add, xs),
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": lambda *xs: np.max(xs, axis=0),
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "exp": np.exp,
    "square": np.square,
    "rsqrt": lambda x: x**-0.5,
    "identity": lambda x: x,
    "convert": lambda x: x,
    "complex": lambda x: x[..., 0::2] + 1j * x[..., 1::2],
    "real": lambda x: np.stack([x.real, x.imag], axis=-1).reshape(*x.shape[:-1], -1),
}


def input_part(text: str) -> tuple[str, tuple[slice, ...]]:
    """The input that ``input:NAME[RANGES]`` names, and the part of it."""
    match = re.fullmatch(r"input:(.+)\[(.+)\]", text)
    assert match is not None, text
    return match[1], _slices(match[2])


def _slices(text: str) -> tuple[slice, ...]:
    return tuple(slice(*map(int, part.split(":"))) for part in text.split(","))
