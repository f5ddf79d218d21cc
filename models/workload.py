"""Workload: a graph to be placed that needs no model file, with what each of its ops computes.

Legend: N ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hsdag.ir.graph import ComputationGraph, graph_from_edges
from hsdag.models.expression import ELEMENT_BYTES, Expression, Shape, TensorType, format_ranges

ROLES = ("", "shard", "reduce")


@dataclass(frozen=True, eq=False)
class Workload:
    """A graph with labels; every column is [N], with "" where an op has none.

    ``meta_ops`` names the op that an op is a shard of, ``roles`` says whether it is one of its shards or
    aggregates them (DOPPLER, App. B), ``expressions`` what it computes (hsdag.models.expression). ``outputs``
    says for each result how to assemble it: the numbers in these expressions are op indices.

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


class CostedOps:
    """Collects ops in topological order, of which nothing is known but their costs."""

    def __init__(self, element_type: str = "f32") -> None:
        self._element_type = element_type
        self._rows: list[tuple[str, str, float, int]] = []  # name, type, FLOPs, number of weights
        self._edges: list[tuple[int, int]] = []
        self.results: list[TensorType] = []

    def add(
        self, name: str, op_type: str, sources: Sequence[int], shape: Shape, flops: float, num_weights: int = 0
    ) -> int:
        """An op that reads the results of ``sources``; its index."""
        return self.add_typed(name, op_type, sources, TensorType(shape, self._element_type), flops, num_weights)

    def add_typed(
        self, name: str, op_type: str, sources: Sequence[int], result: TensorType, flops: float, num_weights: int = 0
    ) -> int:
        """An op whose result is of an element type of its own; its index."""
        op = len(self._rows)
        self._rows.append((name, op_type, flops, num_weights))
        self.results.append(result)
        self._edges += [(u, op) for u in sources]
        return op

    def build(self, name: str) -> Workload:
        """The workload of all ops so far; weights are of the collection's element type."""
        names, types, flops, num_weights = zip(*self._rows, strict=True)
        graph = graph_from_edges(
            types,
            self._edges,
            name=name,
            op_names=names,
            shapes=[result.shape for result in self.results],
            output_bytes=[result.size_bytes for result in self.results],
            flops=flops,
        )
        weight_bytes = ELEMENT_BYTES[self._element_type] * np.array(num_weights, dtype=np.int64)
        elements = tuple(result.element_type for result in self.results)
        order = np.arange(graph.num_ops)  # ops were added producers first
        return Workload.unlabelled(
            replace(graph, weight_bytes=weight_bytes, element_types=elements, topological_order=order)
        )


class WorkloadBuilder:
    """Collects ops in topological order; shapes, element types, sizes and FLOPs follow from the expressions."""

    def __init__(self, name: str) -> None:
        self._name, self._ops = name, CostedOps()
        self._labels: list[tuple[str, str, str]] = []

    def type_of(self, op: int) -> TensorType:
        """The type of an op's result."""
        return self._ops.results[op]

    def add_input(self, name: str, tensor: str, ranges: Sequence[tuple[int, int]], element_type: str = "f32") -> int:
        """An op that holds the part ``ranges`` of the workload's input called ``tensor``; its index."""
        kind = TensorType(tuple(last - first for first, last in ranges), element_type)
        text = f"input:{tensor}[{format_ranges(ranges)}]"
        self._labels.append((tensor, "", text))
        return self._ops.add_typed(name, "Parameter", (), kind, 0.0)

    def add_op(self, name: str, expression: Expression, meta_op: str, role: str) -> int:
        """An op that computes ``expression``, whose numbers are indices of ops; its own index.

        Each op that it reads gives it one input, however often it is read. Raises ValueError where the
        operands do not fit.
        """
        sources = expression.leaves
        by_port = expression.relabelled({op: port for port, op in enumerate(sources)})
        kinds = [self.type_of(op) for op in sources]
        op = self._ops.add_typed(name, by_port.op_type, sources, by_port.result(kinds), by_port.flops(kinds))
        self._labels.append((meta_op, role, str(by_port)))
        return op

    def build(self, outputs: Mapping[str, Expression | int]) -> Workload:
        """The workload of all ops so far."""
        meta_ops, roles, expressions = (tuple(column) for column in zip(*self._labels, strict=True))
        workload = self._ops.build(self._name)
        return replace(workload, meta_ops=meta_ops, roles=roles, expressions=expressions, outputs=dict(outputs))
