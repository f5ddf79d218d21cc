"""Workloads and problem files as torch graphs: every op by its expression."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch

from hsdag.evaluators.torch.expressions import (
    TORCH_ELEMENTS,
    InputPart,
    TorchExpression,
    build_expression,
    input_part,
)
from hsdag.ir.errors import ModelError
from hsdag.ir.graph import Csr
from hsdag.models import Workload
from hsdag.models.expression import ELEMENT_BYTES
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.torch_backend import Feed, TorchGraph, TorchNode
from hsdag.runtime.torch_backend.graph import Tensor


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


def assemble(workload: Workload, results: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
            made = {"run": partial(_computed, compute)} if reads else {"constants": (compute(()),)}
        nodes.append(TorchNode(op_name, op_type, reads, output_bytes=sizes, **made))
    return TorchGraph(name, tuple(nodes), {nodes[v].name: (v, 0) for v in wanted})


def _computed(compute: TorchExpression, xs: Sequence[Tensor]) -> tuple[Tensor]:
    return (compute(xs),)


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
