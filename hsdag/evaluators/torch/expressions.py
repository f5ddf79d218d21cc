"""Expressions of workloads in torch: from the text in a problem file to a function of tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import NamedTuple

import torch

from hsdag.ir.errors import FileFormatError
from hsdag.models.expression import Expression, parse_expression, parse_ranges, parse_settings
from hsdag.runtime.torch_ops.base import DeviceCopies

Tensor = torch.Tensor
TorchExpression = Callable[[Sequence[Tensor]], Tensor]
"""From the tensors of an op's inputs, in the order of its edges, to its result, which may share their memory."""

TORCH_ELEMENTS = {"f16": torch.float16, "f32": torch.float32, "c64": torch.complex64}
"""Torch's element type for each name in an expression, narrow to wide."""

_INPUT = re.compile(r"input:([^\[\]]+)\[([\d:,]*)\]")
_WIDTHS = tuple(TORCH_ELEMENTS.values())


class InputPart(NamedTuple):
    """The part of a workload's input that an op holds; half-open ranges, one for each axis."""

    tensor: str
    ranges: tuple[tuple[int, int], ...]


def input_part(text: str) -> InputPart | None:
    """What part of which input the expression ``input:NAME[ranges]`` holds; None for any other expression."""
    found = _INPUT.fullmatch(text)
    if found is None:
        return None
    return InputPart(found[1], parse_ranges(found[2]) if found[2] else ())


def build_expression(text: str, num_inputs: int, device: torch.device | str = "cpu") -> TorchExpression:
    """What computes an expression on tensors of the device of its inputs.

    Everything in the text is resolved here; running neither reads values on the host nor branches on data.
    What has no operands (a causal mask) is made here and is the same tensor at every call, on the device of the inputs,
    or on ``device`` where there are none.

    Raises FileFormatError where the text breaks the grammar, and for an input's part, which is fed
    (``input_part``) and not computed.
    """
    try:
        return _built(parse_expression(text, num_inputs), torch.device(device))
    except (ValueError, KeyError, IndexError) as error:
        reason = error.args[0] if isinstance(error, ValueError) else f"{error} is missing in it"
        raise FileFormatError(
            f"cannot run the expression {text!r}: {reason}; see docs/models.md for the names"
        ) from error


def _built(expression: Expression | int, device: torch.device) -> TorchExpression:
    if isinstance(expression, int):
        port = expression
        return lambda xs: xs[port]
    if expression.name == "causal":
        masks = DeviceCopies(_causal(expression.argument))
        return lambda xs: masks.on(xs[0].device if xs else device)
    function = _function(expression.name, expression.argument)
    operands = [_built(x, device) for x in expression.operands]
    return lambda xs: function(*(operand(xs) for operand in operands))


def _function(name: str, argument: str) -> Callable[..., Tensor]:
    if name in _PLAIN:
        return _PLAIN[name]
    if name not in _WITH_ARGUMENT:
        raise ValueError(f"{name!r} is an input, not computed")
    return _WITH_ARGUMENT[name](argument)


def _einsum(argument: str) -> Callable[..., Tensor]:
    return lambda *xs: torch.einsum(argument, *_widened(xs))


def _affine(argument: str) -> Callable[..., Tensor]:
    settings = parse_settings(argument)
    factor, offset = float(settings["factor"]), float(settings["offset"])
    return lambda x: x * factor + offset


def _concat(argument: str) -> Callable[..., Tensor]:
    axis = int(parse_settings(argument)["axis"])
    return lambda *xs: torch.cat(_widened(xs), axis)


def _slice(argument: str) -> Callable[..., Tensor]:
    index = tuple(slice(first, last) for first, last in parse_ranges(argument))
    return lambda x: x[index]


def _reshape(argument: str) -> Callable[..., Tensor]:
    shape = tuple(int(size) for size in argument.split("x"))
    return lambda x: x.reshape(shape)


def _convert(argument: str) -> Callable[..., Tensor]:
    dtype = TORCH_ELEMENTS[argument]
    return lambda x: x.to(dtype)


def _reduction(function: Callable[..., Tensor], argument: str) -> Callable[..., Tensor]:
    axis = int(parse_settings(argument)["axis"])
    return lambda x: function(x, axis, keepdim=True)


def _causal(argument: str) -> Tensor:
    """[rows, columns] of f32: 0 where column j <= row i + first_row, else minus infinity."""
    settings = {key: int(value) for key, value in parse_settings(argument).items()}
    hidden = torch.ones(settings["rows"], settings["columns"], dtype=torch.bool).triu(settings["first_row"] + 1)
    return torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)


def _widened(xs: Sequence[Tensor]) -> list[Tensor]:
    """All operands in the widest of their element types."""
    wide = max((x.dtype for x in xs), key=_WIDTHS.index)
    return [x.to(wide) for x in xs]


def _complex(x: Tensor) -> Tensor:
    """[..., 2 n] of f32 -> [..., n] of c64: real and imaginary parts in turn."""
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


def _real(x: Tensor) -> Tensor:
    return torch.view_as_real(x).flatten(-2)


_PLAIN: dict[str, Callable[..., Tensor]] = {
    "add": lambda *xs: reduce(torch.add, xs),
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": lambda *xs: reduce(torch.maximum, xs),
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "exp": torch.exp,
    "square": torch.square,
    "rsqrt": torch.rsqrt,
    "identity": lambda x: x,
    "complex": _complex,
    "real": _real,
}
_WITH_ARGUMENT: dict[str, Callable[[str], Callable[..., Tensor]]] = {
    "einsum": _einsum,
    "affine": _affine,
    "concat": _concat,
    "slice": _slice,
    "reshape": _reshape,
    "convert": _convert,
    "max": partial(_reduction, torch.amax),
    "sum": partial(_reduction, torch.sum),
}
