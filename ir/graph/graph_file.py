"""Graph files: a computation graph as a JSON document, so that a model can be shown without its weights.

Legend: N ops, E edges.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hsdag.ir.errors import FileFormatError
from hsdag.ir.files import first_problem, parse_document, read_text, write_atomically
from hsdag.ir.graph.computation_graph import ComputationGraph

FORMAT_NAME: Literal["hsdag-graph"] = "hsdag-graph"
FORMAT_VERSION: Literal[1] = 1

_Count = Annotated[int, Field(ge=0, lt=2**62)]
_EDGES = ("edge_src", "edge_dst", "edge_src_port", "edge_dst_port", "edge_bytes")
_INTEGERS = ("output_bytes", "weight_bytes", *_EDGES, "topological_order")
_NAMES = ("op_names", "op_types", "element_types", "variables", "canonical_names")


class GraphRecord(BaseModel):
    """The columns of a ``ComputationGraph``: one entry for each op [N], or for each edge [E]."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal["hsdag-graph"] = FORMAT_NAME
    version: Literal[1] = FORMAT_VERSION
    name: str
    op_names: list[str]
    op_types: list[str]
    element_types: list[str]
    variables: list[str]
    canonical_names: list[str]
    shapes: list[list[_Count]]
    output_bytes: list[_Count]
    weight_bytes: list[_Count]
    flops: list[float]
    edge_src: list[_Count]
    edge_dst: list[_Count]
    edge_src_port: list[_Count]
    edge_dst_port: list[_Count]
    edge_bytes: list[_Count]
    topological_order: list[_Count]
    is_dynamic: list[bool] | None = None

    @staticmethod
    def of(graph: ComputationGraph) -> GraphRecord:
        """The record of a graph."""
        columns: dict[str, Any] = {name: list(getattr(graph, name)) for name in _NAMES}
        columns |= {name: getattr(graph, name).tolist() for name in _INTEGERS}
        return GraphRecord(
            name=graph.name,
            shapes=[list(graph.shape_of(v)) for v in range(graph.num_ops)],
            flops=graph.flops.tolist(),
            is_dynamic=None if graph.is_dynamic is None else graph.is_dynamic.tolist(),
            **columns,
        )

    def graph(self) -> ComputationGraph:
        """The graph. Raises ValueError where the columns do not fit together."""
        ranks = np.array([len(shape) for shape in self.shapes], dtype=np.int64)
        shapes = np.zeros((len(ranks), int(ranks.max(initial=0))), dtype=np.int64)
        for v, shape in enumerate(self.shapes):
            shapes[v, : len(shape)] = shape
        columns: dict[str, Any] = {name: tuple(getattr(self, name)) for name in _NAMES}
        columns |= {name: np.array(getattr(self, name), dtype=np.int64) for name in _INTEGERS}
        return ComputationGraph(
            name=self.name,
            shapes=shapes,
            ranks=ranks,
            flops=np.array(self.flops, dtype=np.float64),
            is_dynamic=None if self.is_dynamic is None else np.array(self.is_dynamic, dtype=np.bool_),
            **columns,
        )


def write_graph_file(graph: ComputationGraph, path: Path) -> None:
    """Write a graph file atomically. Raises OutputError."""
    write_atomically(path, (GraphRecord.of(graph).model_dump_json(exclude_none=True) + "\n").encode())


def read_graph_file(path: Path) -> ComputationGraph:
    """Read a graph file. Raises FileFormatError when it is missing, or is no graph."""
    document = parse_document(read_text(path), str(path), FORMAT_NAME, (FORMAT_VERSION,))
    try:
        return GraphRecord.model_validate(document).graph()
    except ValidationError as error:
        raise FileFormatError(f"{path}: {first_problem(error)}") from error
    except ValueError as error:
        raise FileFormatError(f"{path}: {error}") from error
