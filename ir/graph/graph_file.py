"""Graph files: a computation graph as a JSON document, so that a model can be shared without its weights.

Legend: N ops, E edges.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from hsdag.base.errors import FileFormatError
from hsdag.base.files import parse_record, read_text, write_atomically
from hsdag.ir.graph.computation_graph import ComputationGraph, padded

_Count = Annotated[int, Field(ge=0, lt=2**62)]


class GraphRecord(BaseModel):
    """The columns of a ``ComputationGraph``: one entry for each op [N], or for each edge [E]."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal["hsdag-graph"] = "hsdag-graph"
    version: Literal[1] = 1
    name: str
    op_names: tuple[str, ...]
    op_types: tuple[str, ...]
    element_types: tuple[str, ...]
    variables: tuple[str, ...]
    canonical_names: tuple[str, ...]
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
    is_function: list[bool] | None = None


def write_graph_file(graph: ComputationGraph, path: Path) -> None:
    """Write a graph file atomically. Raises OutputError."""
    columns = {field.name: getattr(graph, field.name) for field in fields(graph) if field.name != "ranks"}
    columns["shapes"] = [graph.shape_of(v) for v in range(graph.num_ops)]
    plain = {name: column.tolist() if isinstance(column, np.ndarray) else column for name, column in columns.items()}
    write_atomically(path, (GraphRecord(**plain).model_dump_json() + "\n").encode())


def read_graph_file(path: Path) -> ComputationGraph:
    """Read a graph file. Raises FileFormatError when it is missing or not a graph."""
    record = parse_record(GraphRecord, read_text(path), str(path))
    columns: dict[str, Any] = record.model_dump(exclude={"format", "version"}, exclude_none=True)
    columns["shapes"], columns["ranks"] = padded(record.shapes)
    types = {"flops": np.float64, "is_dynamic": np.bool_, "is_function": np.bool_}
    arrays: dict[str, Any] = {k: np.array(v, types.get(k, np.int64)) for k, v in columns.items() if type(v) is list}
    try:
        return ComputationGraph(**columns | arrays)
    except ValueError as error:
        raise FileFormatError(f"{path}: {error}") from error
