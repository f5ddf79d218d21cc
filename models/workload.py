"""Workloads: graphs to be placed that need no model file, with a description of what each op computes.

Legend: N ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.ir.graph.flops import op_flops
from hsdag.models.expression import ELEMENT_BYTES, Expression, Shape, TensorType, format_ranges


@dataclass(frozen=True, eq=False)
class Workload:
    """A graph with labels; every column is [N], with "" where an op has no label.

    ``meta_ops`` names the op of which an op is a shard, ``roles`` whether it is a shard or aggregates shards (DOPPLER,
    App. B), and ``expressions`` what it computes (hsdag.models.expression). ``outputs`` maps each result to the
    expression that assembles it, whose numbers are op indices.
    """

    graph: ComputationGraph
    meta_ops: tuple[str, ...]
    roles: tuple[str, ...]
    expressions: tuple[str, ...]
    outputs: Mapping[str, Expression | int] = field(default_factory=dict)


class _WorkloadOp(NamedTuple):
    name: str
    op_type: str
    sources: Sequence[int]
    result: TensorType
    flops: float
    weight_bytes: int = 0
    meta_op: str = ""
    role: str = ""
    expression: str = ""


class WorkloadBuilder:
    """Collector of ops in topological order; methods that add an op return its index."""

    def __init__(self, name: str, element_type: str = "f32") -> None:
        self._name = name
        self._element_type = element_type
        self._ops: list[_WorkloadOp] = []

    def type_of(self, op: int) -> TensorType:
        """Return the type of an op's result."""
        return self._ops[op].result

    def add(
        self,
        name: str,
        op_type: str,
        sources: Sequence[int],
        shape: Shape,
        flops: float | None = None,
        num_weights: int = 0,
    ) -> int:
        """Add an op described only by its costs; its result and its weights have the builder's element type.

        ``flops`` are by default computed from the op type and the shapes.
        """
        flops = op_flops(op_type, [self.type_of(op).shape for op in sources], shape, {}) if flops is None else flops
        weight_bytes = ELEMENT_BYTES[self._element_type] * num_weights
        return self._add(
            _WorkloadOp(name, op_type, sources, TensorType(shape, self._element_type), flops, weight_bytes)
        )

    def add_input(self, name: str, tensor: str, ranges: Sequence[tuple[int, int]], element_type: str = "f32") -> int:
        """Add an op that holds the part ``ranges`` of the workload's input ``tensor``."""
        kind = TensorType(tuple(last - first for first, last in ranges), element_type)
        text = f"input:{tensor}[{format_ranges(ranges)}]"
        return self._add(_WorkloadOp(name, "Parameter", (), kind, 0.0, meta_op=tensor, expression=text))

    def add_op(self, name: str, expression: Expression, meta_op: str, role: str) -> int:
        """Add an op that computes ``expression``, whose numbers are op indices; shape, type and FLOPs follow from it.

        Each op that the expression reads becomes one input, however often it is read. Raises ValueError where operands
        do not fit.
        """
        sources = expression.leaves
        x = expression.relabelled({op: port for port, op in enumerate(sources)})
        kinds = [self.type_of(op) for op in sources]
        return self._add(
            _WorkloadOp(name, x.op_type, sources, x.result(kinds), x.flops(kinds), 0, meta_op, role, str(x))
        )

    def build(self, outputs: Mapping[str, Expression | int] | None = None) -> Workload:
        """Return the workload of all ops added so far."""
        names, types, sources, results, flops, weights, meta_ops, roles, texts = zip(*self._ops, strict=True)
        graph = graph_from_edges(
            types,
            [(u, v) for v, read in enumerate(sources) for u in read],
            name=self._name,
            op_names=names,
            shapes=[result.shape for result in results],
            output_bytes=[result.size_bytes for result in results],
            flops=flops,
        )
        graph = replace(
            graph,
            weight_bytes=np.array(weights, dtype=np.int64),
            element_types=tuple(result.element_type for result in results),
            topological_order=np.arange(graph.num_ops),  # ops were added producers first
        )
        return Workload(graph, meta_ops, roles, texts, outputs or {})

    def _add(self, op: _WorkloadOp) -> int:
        self._ops.append(op)
        return len(self._ops) - 1
