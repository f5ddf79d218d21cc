"""Workloads and problem files as torch graphs: every op by its expression; workloads placed, run and timed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from hsdag.ir.errors import FileFormatError, ModelError, OptionError
from hsdag.ir.graph import Csr, FloatArray
from hsdag.models import Workload
from hsdag.models.expression import ELEMENT_BYTES, Expression, parse_expression, parse_ranges, parse_settings
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.timeline.timeline import Timeline
from hsdag.runtime.torch import Feed, LogicalDevice, TensorFunction, TorchExecutor, TorchGraph, TorchNode, build_program
from hsdag.runtime.torch.buffers import Inputs

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
        mask = _causal(expression.argument)
        on = cache(mask.to)  # copied once to each device
        return lambda xs: on(xs[0].device if xs else device)
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


def workload_graph(workload: Workload, *, widen: bool = False) -> TorchGraph:
    """The torch graph of a workload: node v is op v, inputs are its tensors by name, results the ops it asks for.

    ``widen`` computes in f32 what the workload computes in f16, for comparisons to more than three digits.

    Raises ModelError for an op without an expression.
    """
    graph = workload.graph
    sizes = graph.output_bytes.astype(np.float64)
    is_widened = np.array([widen and kind == "f16" for kind in graph.element_types])
    wanted = {u for x in workload.outputs.values() for u in ((x,) if isinstance(x, int) else x.leaves)}
    shown = np.where(is_widened, 2 * sizes, sizes)
    columns = zip(graph.op_names, graph.op_types, workload.expressions, sizes, shown, strict=True)
    return _graph(graph.name, columns, graph.predecessors, sorted(wanted), widen)


def problem_graph(problem: ScheduleProblem, *, widen: bool = False) -> TorchGraph:
    """The same of a problem whose ops carry expressions; results are the ops that no other reads."""
    predecessors = Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
    last = np.setdiff1d(np.arange(problem.num_ops), problem.edge_src).tolist()
    sizes = problem.output_bytes
    columns = zip(problem.op_names, problem.labels.types, problem.labels.expressions, sizes, sizes, strict=True)
    return _graph(problem.name, columns, predecessors, last, widen)


def _assembled(workload: Workload, results: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The results of a workload, put together on the CPU from those of its ops by name."""
    names = workload.graph.op_names
    found = {}
    for name, x in workload.outputs.items():
        ops = (x,) if isinstance(x, int) else x.leaves
        parts = [results[names[op]].cpu() for op in ops]
        by_port = None if isinstance(x, int) else x.relabelled({op: port for port, op in enumerate(ops)})
        found[name] = parts[0] if by_port is None else build_expression(str(by_port), len(ops))(parts)
    return found


def random_inputs(graph: TorchGraph, seed: int = 0) -> dict[str, Tensor]:
    """Normal numbers on the CPU, divided by the root of the first of several axes: products keep their size."""
    shapes: dict[str, tuple[int, ...]] = {}
    types: dict[str, torch.dtype] = {}
    for feed in (node.feed for node in graph.nodes if node.feed is not None):
        ends = feed.shape if feed.ranges is None else tuple(last for _, last in feed.ranges)
        shapes[feed.tensor] = tuple(map(max, ends, shapes.get(feed.tensor, ends)))
        types[feed.tensor] = feed.dtype
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes.items():
        scale = shape[0] ** -0.5 if len(shape) > 1 else 1.0
        kind = torch.complex64 if types[name].is_complex else torch.float32
        found[name] = (scale * torch.randn(shape, generator=generator, dtype=kind)).to(types[name])
    return found


@dataclass(frozen=True, eq=False)
class WorkloadRun:
    """Results on the CPU, seconds of every timed run, and the last one's timeline."""

    outputs: Mapping[str, torch.Tensor]
    times_s: tuple[float, ...]
    timeline: Timeline

    @property
    def median_s(self) -> float:
        """The median time."""
        return float(np.median(self.times_s))


def run_workload(
    workload: Workload,
    placement: ArrayLike | Mapping[str, str],
    devices: Sequence[LogicalDevice],
    inputs: Inputs | None = None,
    *,
    runs: int = 1,
    barrier: bool = False,
    widen: bool = False,
    ranks: FloatArray | None = None,
    seed: int = 0,
) -> WorkloadRun:
    """Run a workload with each op on its device: ``placement`` is [N] indices, or device names by op name.

    ``inputs`` are whole tensors by name, by default random ones from ``seed``; they lie on the devices of their ops
    before the clock starts. One run more, to warm up, is not timed. ``barrier`` runs level by level, ``ranks`` [N]
    order ready ops, smallest first; for ``widen`` see ``workload_graph``. Raises OptionError for a placement that does
    not fit and for no runs, ExecutionError for a run that fails (it names op and device).
    """
    if runs < 1:
        raise OptionError(f"at least one run is needed, not {runs}")
    graph, names = workload_graph(workload, widen=widen), [device.name for device in devices]
    if isinstance(placement, Mapping):
        for name in workload.graph.op_names:
            if placement.get(name) not in names:
                raise OptionError(f"op {name!r} must be on one of {', '.join(names)}, not on {placement.get(name)!r}")
        placement = [names.index(placement[name]) for name in workload.graph.op_names]
    with TorchExecutor(build_program(graph, placement, devices), ranks=ranks, barrier=barrier) as executor:
        results = executor.infer(random_inputs(graph, seed) if inputs is None else inputs)
        times_s = []
        for _ in range(runs):
            request = executor.submit()
            results = request.wait()
            times_s.append(request.latency)
        return WorkloadRun(_assembled(workload, results), tuple(times_s), request.timeline)


def _graph(
    name: str,
    columns: Iterable[tuple[str, str, str, float, float]],
    predecessors: Csr,
    wanted: Sequence[int],
    widen: bool,
) -> TorchGraph:
    """``columns`` are name, type, expression, and bytes of the result by the problem and as computed, op by op."""
    nodes: list[TorchNode] = []
    for v, (op_name, op_type, text, declared_bytes, output_bytes) in enumerate(columns):
        if not text:
            raise ModelError(f"op {op_name!r} of {name!r} has no expression, so it cannot be run")
        reads = tuple((u, 0) for u in predecessors.of(v).tolist())
        sizes, part = (float(output_bytes),), input_part(text)
        if part is not None:
            made: dict[str, Any] = {"feed": _feed(op_name, part, float(declared_bytes), widen)}
        else:
            compute = build_expression(text.replace("convert:f16", "convert:f32") if widen else text, len(reads))
            # what is made from nothing is the same in every inference
            made = {"run": _as_function(compute)} if reads else {"constants": (compute(()),)}
        nodes.append(TorchNode(op_name, op_type, reads, output_bytes=sizes, **made))
    return TorchGraph(name, tuple(nodes), {nodes[v].name: (v, 0) for v in wanted})


def _as_function(compute: TorchExpression) -> TensorFunction:
    return lambda xs: (compute(xs),)


def _feed(name: str, part: InputPart, size_bytes: float, widen: bool) -> Feed:
    """The feed of a part of an input; its element type follows from the bytes that it takes."""
    shape = tuple(last - first for first, last in part.ranges)
    width = size_bytes / max(1, prod(shape))
    element_type = next((kind for kind, size in ELEMENT_BYTES.items() if size == width), None)
    if element_type is None:
        known = ", ".join(f"{size} ({kind})" for kind, size in ELEMENT_BYTES.items())
        raise ModelError(f"op {name!r}: {width:g} bytes per element match none of {known}; correct its output_bytes")
    dtype = TORCH_ELEMENTS["f32" if widen and element_type == "f16" else element_type]
    return Feed(part.tensor, dtype, shape, part.ranges)
