"""Expressions of workloads in torch: from the text in a problem file to a function of tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import reduce
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
    return InputPart(found[1], parse_ranges(found[2]) if found[2] else ()) if found is not None else None


def build_expression(text: str, num_inputs: int, device: torch.device | str = "cpu") -> TorchExpression:
    """What computes an expression on tensors of the device of its inputs, neither reading values nor branching on them.

    What has no operands (a causal mask) is the same tensor at every call, on the device of the inputs, or on ``device``
    where there are none. Raises FileFormatError where the text breaks the grammar, and for an input's part, which is
    fed (``input_part``) and not computed.
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
    match name:
        case "einsum":
            return lambda *xs: torch.einsum(argument, *_widened(xs))
        case "slice":
            index = tuple(slice(first, last) for first, last in parse_ranges(argument))
            return lambda x: x[index]
        case "reshape":
            shape = tuple(int(size) for size in argument.split("x"))
            return lambda x: x.reshape(shape)
        case "convert":
            dtype = TORCH_ELEMENTS[argument]
            return lambda x: x.to(dtype)
        case "affine":
            factor, offset = (float(parse_settings(argument)[key]) for key in ("factor", "offset"))
            return lambda x: x * factor + offset
        case "concat":
            axis = int(parse_settings(argument)["axis"])
            return lambda *xs: torch.cat(_widened(xs), axis)
        case "max" | "sum":
            reduction: Callable[..., Tensor] = torch.amax if name == "max" else torch.sum
            axis = int(parse_settings(argument)["axis"])
            return lambda x: reduction(x, axis, keepdim=True)
        case _:
            raise ValueError(f"{name!r} is an input, not computed")


def _causal(argument: str) -> Tensor:
    """[rows, columns] of f32: 0 where column j <= row i + first_row, else minus infinity."""
    settings = {key: int(value) for key, value in parse_settings(argument).items()}
    hidden = torch.ones(settings["rows"], settings["columns"], dtype=torch.bool).triu(settings["first_row"] + 1)
    return torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)


def _widened(xs: Sequence[Tensor]) -> list[Tensor]:
    """All operands in the widest of their element types."""
    wide = max((x.dtype for x in xs), key=_WIDTHS.index)
    return [x.to(wide) for x in xs]


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
    "complex": lambda x: torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)),  # real and imaginary parts in turn
    "real": lambda x: torch.view_as_real(x).flatten(-2),
}
