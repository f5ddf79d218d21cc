"""Workloads and problem files as torch graphs: every op by its expression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import torch

from hsdag.evaluators.torch.expressions import TORCH_ELEMENTS, InputPart, build_expression, input_part
from hsdag.ir.errors import ModelError
from hsdag.ir.graph import Csr, FloatArray
from hsdag.models import Expression, Workload
from hsdag.models.expression import ELEMENT_BYTES
from hsdag.runtime.problems.schedule_problem import ScheduleProblem
from hsdag.runtime.torch_backend import Feed, TorchGraph, TorchNode
from hsdag.runtime.torch_backend.graph import Ref, Tensor


def workload_graph(workload: Workload, *, widen: bool = False) -> TorchGraph:
    """The torch graph of a workload: node v is op v, inputs are its tensors by name, results the ops it asks for.

    ``widen`` computes in f32 what the workload computes in f16, for comparisons to more than three digits.

    Raises ModelError for an op without an expression.
    """
    graph = workload.graph
    sizes = graph.output_bytes.astype(np.float64)
    is_widened = np.array([widen and kind == "f16" for kind in graph.element_types])
    wanted = {u for x in workload.outputs.values() for u in ((x,) if isinstance(x, int) else x.leaves)}
    return _graph(
        graph.name,
        graph.op_names,
        graph.op_types,
        workload.expressions,
        graph.predecessors,
        sizes,
        np.where(is_widened, 2 * sizes, sizes),
        sorted(wanted),
        widen,
    )


def problem_graph(problem: ScheduleProblem, *, widen: bool = False) -> TorchGraph:
    """The torch graph of a problem whose ops carry expressions; results are the ops that no other reads.

    Raises ModelError for an op without an expression.
    """
    predecessors = Csr.build(problem.num_ops, problem.edge_dst, problem.edge_src)
    last = np.setdiff1d(np.arange(problem.num_ops), problem.edge_src).tolist()
    return _graph(
        problem.name,
        problem.op_names,
        problem.labels.types,
        problem.labels.expressions,
        predecessors,
        problem.output_bytes,
        problem.output_bytes,
        last,
        widen,
    )


def assemble(workload: Workload, results: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The results of a workload, put together on the CPU from those of its ops by name."""
    names = workload.graph.op_names
    return {name: _put_together(x, results, names) for name, x in workload.outputs.items()}


def random_inputs(graph: TorchGraph, seed: int = 0) -> dict[str, Tensor]:
    """Normal numbers on the CPU for every input, divided by the root of the first of several axes.

    So products of them neither grow nor vanish, whatever the size.
    """
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
    op_names: Sequence[str],
    op_types: Sequence[str],
    expressions: Sequence[str],
    predecessors: Csr,
    declared_bytes: FloatArray,
    output_bytes: FloatArray,
    wanted: Sequence[int],
    widen: bool,
) -> TorchGraph:
    nodes = []
    for v, text in enumerate(expressions):
        if not text:
            raise ModelError(f"op {op_names[v]!r} of {name!r} has no expression, so that nothing can be run")
        reads = tuple((u, 0) for u in predecessors.of(v).tolist())
        part = input_part(text)
        feed = None if part is None else _feed(op_names[v], part, float(declared_bytes[v]), widen)
        sizes = (float(output_bytes[v]),)
        computed = text.replace("convert:f16", "convert:f32") if widen else text
        nodes.append(_node(op_names[v], op_types[v], computed, reads, feed, sizes))
    return TorchGraph(name, tuple(nodes), {op_names[v]: (v, 0) for v in wanted})


def _node(
    name: str, op_type: str, text: str, reads: tuple[Ref, ...], feed: Feed | None, sizes: tuple[float, ...]
) -> TorchNode:
    if feed is not None:
        return TorchNode(name, op_type, feed=feed, output_bytes=sizes)
    compute = build_expression(text, len(reads))
    if not reads:  # made from nothing, so the same in every inference
        return TorchNode(name, op_type, constants=(compute(()),), output_bytes=sizes)
    return TorchNode(name, op_type, reads, lambda xs: (compute(xs),), output_bytes=sizes)


def _feed(name: str, part: InputPart, size_bytes: float, widen: bool) -> Feed:
    """The feed of a part of an input; its element type follows from the bytes that it takes."""
    width = size_bytes / max(1, prod(part.shape))
    element_type = next((kind for kind, size in ELEMENT_BYTES.items() if size == width), None)
    if element_type is None:
        known = ", ".join(f"{size} ({kind})" for kind, size in ELEMENT_BYTES.items())
        raise ModelError(f"op {name!r}: {width:g} bytes per element are none of {known}; correct its output_bytes")
    dtype = TORCH_ELEMENTS["f32" if widen and element_type == "f16" else element_type]
    return Feed(part.tensor, dtype, part.shape, part.ranges)


def _put_together(x: Expression | int, results: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    if isinstance(x, int):
        return results[names[x]].cpu()
    leaves = x.leaves
    by_port = x.relabelled({op: port for port, op in enumerate(leaves)})
    return build_expression(str(by_port), len(leaves))([results[names[op]].cpu() for op in leaves])
