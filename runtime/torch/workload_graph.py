"""Build torch graphs from problems whose ops carry expressions, as those of workloads do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, reduce
from math import prod

import numpy as np
import torch

from hsdag.base.errors import FileFormatError, ModelError
from hsdag.ir.graph.computation_graph import Csr
from hsdag.models.expression import (
    ELEMENT_BYTES,
    Expression,
    input_part,
    parse_expression,
    parse_ranges,
    parse_settings,
)
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.torch.graph import Feed, TorchGraph, TorchNode

Tensor = torch.Tensor
TorchExpression = Callable[[Sequence[Tensor]], Tensor]
"""Function from an op's input tensors, in the order of its edges, to its result, which may share their memory."""

TORCH_ELEMENTS = {"f16": torch.float16, "f32": torch.float32, "c64": torch.complex64}
"""Torch's element type by its name in expressions, narrowest first."""


def build_expression(text: str, num_inputs: int, *, wide: bool = False) -> TorchExpression:
    """Return a function that computes an expression on the device of its inputs, without branching on their values.

    An expression without operands (a causal mask) gives the same tensor at every call. Raises FileFormatError if the
    text breaks the grammar, and for a part of an input, which is fed and not computed.

    Args:
        wide: Whether to ignore conversions between element types.
    """
    try:
        return compute(parse_expression(text, num_inputs), wide=wide)
    except (ValueError, KeyError, IndexError) as error:
        reason = error.args[0] if isinstance(error, ValueError) else f"{error} is missing in it"
        raise FileFormatError(
            f"cannot run the expression {text!r}: {reason}; see docs/models.md for the names"
        ) from error


def compute(expression: Expression | int, *, wide: bool = False) -> TorchExpression:
    """Return a function that computes a parsed expression; a number stands for the input of that index.

    Raises ValueError and KeyError as parsing does.
    """
    if isinstance(expression, int):
        port = expression
        return lambda xs: xs[port]
    if expression.name == "causal":
        on = cache(_causal(expression.argument).to)  # copied once to each device
        return lambda xs: on(xs[0].device if xs else torch.device("cpu"))
    operands = [compute(x, wide=wide) for x in expression.operands]
    function = _function(expression.name, expression.argument, wide=wide)
    return lambda xs: function(*(operand(xs) for operand in operands))


def _function(name: str, argument: str, *, wide: bool) -> Callable[..., Tensor]:
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
            return lambda x: x if wide else x.to(dtype)
        case "affine":
            factor, offset = (float(parse_settings(argument)[key]) for key in ("factor", "offset"))
            return lambda x: x * factor + offset
        case "concat" | "max" | "sum":
            axis = int(parse_settings(argument)["axis"])
            if name == "concat":
                return lambda *xs: torch.cat(_widened(xs), axis)
            reduction: Callable[..., Tensor] = torch.amax if name == "max" else torch.sum
            return lambda x: reduction(x, axis, keepdim=True)
        case _:
            raise ValueError(f"{name!r} is an input, not computed")


def _causal(argument: str) -> Tensor:
    """Return [rows, columns] of f32: 0 where column j <= row i + first_row, and minus infinity elsewhere."""
    settings = {key: int(value) for key, value in parse_settings(argument).items()}
    hidden = torch.ones(settings["rows"], settings["columns"], dtype=torch.bool).triu(settings["first_row"] + 1)
    return torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)


def _widened(xs: Sequence[Tensor]) -> list[Tensor]:
    """Return all operands, converted to the widest of their element types."""
    wide = reduce(torch.promote_types, (x.dtype for x in xs))
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


def problem_graph(problem: ScheduleProblem) -> TorchGraph:
    """Return the torch graph of a problem whose ops carry expressions.

    Node v is op v; the results of ops that no other op reads are the outputs. Raises ModelError for an op without an
    expression.
    """
    predecessors = Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
    nodes: list[TorchNode] = []
    for v, (name, text) in enumerate(zip(problem.op_names, problem.labels.expressions, strict=True)):
        if not text:
            raise ModelError(f"op {name!r} of {problem.name!r} has no expression, so it cannot be run")
        size_bytes, op_type = float(problem.output_bytes[v]), problem.labels.types[v]
        reads = tuple((u, 0) for u in predecessors.of(v).tolist())
        if (part := input_part(text)) is not None:
            nodes.append(TorchNode(name, op_type, feed=_feed(name, *part, size_bytes), output_bytes=(size_bytes,)))
            continue
        run = _with_one_result(build_expression(text, len(reads)))
        if reads:
            nodes.append(TorchNode(name, op_type, reads, run, output_bytes=(size_bytes,)))
        else:  # an op without inputs has the same result in every inference
            nodes.append(TorchNode(name, op_type, constants=run(()), output_bytes=(size_bytes,)))
    last = np.setdiff1d(np.arange(problem.num_ops), problem.edge_src).tolist()
    return TorchGraph(problem.name, tuple(nodes), {nodes[v].name: (v, 0) for v in last})


def _with_one_result(compute: TorchExpression) -> Callable[[Sequence[Tensor]], tuple[Tensor]]:
    return lambda xs: (compute(xs),)


def _feed(name: str, tensor: str, ranges: tuple[tuple[int, int], ...], size_bytes: float) -> Feed:
    """Return the feed of an op that holds a part of an input; ``size_bytes`` determines the element type.

    Raises ModelError if no element type has that size.
    """
    shape = tuple(last - first for first, last in ranges)
    width = size_bytes / max(1, prod(shape))
    element_type = next((kind for kind, size in ELEMENT_BYTES.items() if size == width), None)
    if element_type is None:
        sizes = ", ".join(f"{size} ({kind})" for kind, size in ELEMENT_BYTES.items())
        raise ModelError(f"op {name!r}: {width:g} bytes per element match none of {sizes}; correct its output_bytes")
    return Feed(tensor, TORCH_ELEMENTS[element_type], shape, ranges)


def double_values(
    expressions: Sequence[str],
    sources: Sequence[Sequence[int]],
    order: Sequence[int],
    inputs: Mapping[str, Tensor],
    wanted: Collection[int] | None = None,
) -> list[Tensor]:
    """Return the result of each op, computed in double precision. Raises FileFormatError as ``build_expression`` does.

    Args:
        sources: Ops that each op reads.
        order: All ops in topological order.
        wanted: Ops whose results are kept, the others being dropped after their last use; None keeps all.
    """
    doubled = {name: x.to(torch.complex128 if x.is_complex() else torch.float64) for name, x in inputs.items()}
    nothing = torch.zeros(())
    last = {u: v for v in order for u in sources[v]}
    values = [nothing] * len(expressions)
    for v in order:
        read = sources[v]
        if (part := input_part(expressions[v])) is not None:
            values[v] = doubled[part[0]][tuple(slice(*ends) for ends in part[1])]
        else:
            values[v] = build_expression(expressions[v], len(read), wide=True)([values[u] for u in read])
        for u in read:
            if wanted is not None and last[u] == v and u not in wanted:
                values[u] = nothing
    return values


def random_inputs(graph: TorchGraph, seed: int = 0) -> dict[str, Tensor]:
    """Return normally distributed inputs on the CPU by name.

    A tensor of several axes is divided by the square root of the first axis, so that matrix products keep their scale.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    types: dict[str, torch.dtype] = {}
    for feed in (node.feed for node in graph.nodes if node.feed is not None):
        ends = feed.shape if feed.ranges is None else tuple(last for _, last in feed.ranges)
        shapes[feed.tensor] = tuple(map(max, ends, shapes.get(feed.tensor, ends)))
        types[feed.tensor] = feed.dtype
    generator = torch.Generator().manual_seed(seed)
    inputs = {}
    for name, shape in shapes.items():
        scale = shape[0] ** -0.5 if len(shape) > 1 else 1.0
        kind = torch.complex64 if types[name].is_complex else torch.float32
        inputs[name] = (scale * torch.randn(shape, generator=generator, dtype=kind)).to(types[name])
    return inputs
