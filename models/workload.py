"""Workload: a graph to be placed that needs no model file, with what each of its ops computes.

Legend: N ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hsdag.ir.graph import ComputationGraph, graph_from_edges
from hsdag.models.expression import Expression, TensorType, format_ranges

ROLES = ("", "shard", "reduce")


@dataclass(frozen=True, eq=False)
class Workload:
    """A graph with labels; every column is [N], with "" where an op has none.

    ``meta_ops`` names the op that an op is a shard of, ``roles`` says whether it is one of its shards or
    aggregates them (DOPPLER, App. B), ``expressions`` what it computes (hsdag.models.expression). ``outputs``
    tells for each result how to put it together: the numbers in these expressions are op indices.

    Raises ValueError when a column has another length or a role is unknown.
    """

    graph: ComputationGraph
    meta_ops: tuple[str, ...]
    roles: tuple[str, ...]
    expressions: tuple[str, ...]
    outputs: Mapping[str, Expression | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(len(column) != self.graph.num_ops for column in (self.meta_ops, self.roles, self.expressions)):
            raise ValueError(f"every label column of workload {self.graph.name!r} needs {self.graph.num_ops} entries")
        if not set(self.roles) <= set(ROLES):
            raise ValueError(f"the roles of workload {self.graph.name!r} must be among {ROLES}")

    @staticmethod
    def unlabelled(graph: ComputationGraph) -> Workload:
        """A workload of whose ops nothing is known but their costs."""
        nothing = ("",) * graph.num_ops
        return Workload(graph, nothing, nothing, nothing)


class WorkloadBuilder:
    """Collects ops in topological order; shapes, element types, sizes and FLOPs follow from the expressions."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._op_names: list[str] = []
        self._types: list[TensorType] = []
        self._op_types: list[str] = []
        self._flops: list[float] = []
        self._edges: list[tuple[int, int]] = []
        self._labels: list[tuple[str, str, str]] = []

    def type_of(self, op: int) -> TensorType:
        """The type of an op's result."""
        return self._types[op]

    def add_input(self, name: str, tensor: str, ranges: Sequence[tuple[int, int]], element_type: str = "f32") -> int:
        """An op that holds the part ``ranges`` of the workload's input called ``tensor``; its index."""
        kind = TensorType(tuple(last - first for first, last in ranges), element_type)
        text = f"input:{tensor}[{format_ranges(ranges)}]"
        return self._add(name, "Parameter", kind, 0.0, (tensor, "", text))

    def add_op(self, name: str, expression: Expression, meta_op: str, role: str) -> int:
        """An op that computes ``expression``, whose numbers are indices of ops; its own index.

        Each op that it reads gives it one input, however often it is read. Raises ValueError where the
        operands do not fit.
        """
        sources = expression.leaves
        by_port = expression.relabelled({op: port for port, op in enumerate(sources)})
        kinds = [self._types[op] for op in sources]
        labels = (meta_op, role, str(by_port))
        op = self._add(name, by_port.op_type, by_port.result(kinds), by_port.flops(kinds), labels)
        self._edges += [(source, op) for source in sources]
        return op

    def build(self, outputs: Mapping[str, Expression | int]) -> Workload:
        """The workload of all ops so far."""
        graph = graph_from_edges(
            self._op_types,
            self._edges,
            name=self._name,
            op_names=self._op_names,
            shapes=[kind.shape for kind in self._types],
            output_bytes=[kind.size_bytes for kind in self._types],
            flops=self._flops,
        )
        meta_ops, roles, expressions = (tuple(column) for column in zip(*self._labels, strict=True))
        elements = tuple(kind.element_type for kind in self._types)
        order = np.arange(graph.num_ops)  # ops were added producers first
        graph = replace(graph, element_types=elements, topological_order=order)
        return Workload(graph, meta_ops, roles, expressions, dict(outputs))

    def _add(self, name: str, op_type: str, kind: TensorType, flops: float, labels: tuple[str, str, str]) -> int:
        self._op_names.append(name)
        self._op_types.append(op_type)
        self._types.append(kind)
        self._flops.append(flops)
        self._labels.append(labels)
        return len(self._op_names) - 1
