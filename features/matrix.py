"""FeatureMatrix: the initial node features X of a graph, column groups side by side.

Legend: N ops (or groups of a coarse graph), F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsdag.features.columns import (
    degree_one_hot,
    in_degrees,
    op_type_mean,
    op_type_one_hot,
    op_type_vocabulary,
    out_degrees,
    output_shape,
    positional_encoding,
)
from hsdag.features.fractal import fractal_dimension
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray

GROUPS = ("op_type", "in_degree", "out_degree", "fractal", "positional", "output_shape")
STRUCTURE_GROUPS = ("in_degree", "out_degree", "fractal")  # 'graph-structural features' of HSDAG Table 3

# The exact fractal dimension searches the whole graph from every op, in time quadratic in N. Beyond this many
# ops the regression ends at a radius that keeps the searches local; deep networks then take linear time.
LARGE_GRAPH_OPS = 20_000
LARGE_GRAPH_RADIUS = 32


_Part = tuple[FloatArray, Iterable[object] | None]
"""Columns of a group, and what tells them apart in names such as ``op_type:Add``; None for a single column."""


@dataclass(frozen=True, eq=False)
class FeatureMatrix:
    """Node features with their column groups.

    Values are raw: whoever learns from them normalises. The array stays writable, because torch warns of
    one that is not. Raises ValueError when columns, names and values disagree.
    """

    values: NDArray[np.float32]  # [N, F]
    columns: Mapping[str, slice]  # group -> its columns, in the order of GROUPS
    names: tuple[str, ...]  # [F]
    fractal_radius: int | None  # where the regression of the fractal dimension ends; None where it is exact

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.shape[1] != len(self.names):
            raise ValueError(f"{len(self.names)} column names for values of shape {self.values.shape}")
        if sum(part.stop - part.start for part in self.columns.values()) != len(self.names):
            raise ValueError("the column groups do not cover the columns")

    def select(self, groups: Iterable[str]) -> FeatureMatrix:
        """Only these groups. Raises OptionError for an unknown one or one that is not here."""
        wanted = _checked(groups)
        absent = [group for group in GROUPS if group in wanted and group not in self.columns]
        if absent:
            here = ", ".join(self.columns) or "none"
            raise OptionError(f"feature group {absent[0]!r} is not in this matrix, which has: {here}")
        parts = {
            group: (self.values[:, part], self.names[part]) for group, part in self.columns.items() if group in wanted
        }
        return _side_by_side(len(self.values), parts, self.fractal_radius if "fractal" in wanted else None)

    def without(self, groups: Iterable[str]) -> FeatureMatrix:
        """All but these groups, as in the ablations of HSDAG Table 3. Raises OptionError for an unknown one."""
        return self.select(self.columns.keys() - _checked(groups))


def feature_matrix(
    graph: ComputationGraph | CoarseGraph,
    groups: Iterable[str] = GROUPS,
    *,
    d_pos: int = 16,
    raw_shapes: bool = False,
) -> FeatureMatrix:
    """The features of HSDAG §2.3 for every op of the graph, or every group of a coarse graph.

    Of a coarse graph, op types are means over members (App. G); all else describes ``graph.graph``. Columns
    are in the order of ``GROUPS``. Graphs of more than ``LARGE_GRAPH_OPS`` ops end the regression of the
    fractal dimension at ``LARGE_GRAPH_RADIUS``, recorded as ``fractal_radius``. Raises OptionError for an
    unknown group or, where positions are requested, an odd ``d_pos`` or one below 2.
    """
    wanted = _checked(groups)
    units = graph.graph if isinstance(graph, CoarseGraph) else graph
    large = "fractal" in wanted and units.num_ops > LARGE_GRAPH_OPS
    radius = LARGE_GRAPH_RADIUS if large else None
    parts: dict[str, _Part] = {}
    if "op_type" in wanted and isinstance(graph, CoarseGraph):
        parts["op_type"] = op_type_mean(graph), op_type_vocabulary(graph.fine)
    elif "op_type" in wanted:
        parts["op_type"] = op_type_one_hot(units), op_type_vocabulary(units)
    for group, degrees_of in (("in_degree", in_degrees), ("out_degree", out_degrees)):
        if group in wanted:
            degrees = degrees_of(units)
            parts[group] = degree_one_hot(degrees), np.unique(degrees)
    if "fractal" in wanted:
        parts["fractal"] = fractal_dimension(units, radius)[:, None], None
    if "positional" in wanted:
        parts["positional"] = positional_encoding(units, d_pos), range(d_pos)
    if "output_shape" in wanted:
        sizes = output_shape(units, raw=raw_shapes)
        parts["output_shape"] = sizes, range(sizes.shape[1])
    named = {
        group: (values, (group,) if keys is None else tuple(f"{group}:{key}" for key in keys))
        for group, (values, keys) in parts.items()
    }
    return _side_by_side(units.num_ops, named, radius)


def _checked(groups: Iterable[str]) -> frozenset[str]:
    """The groups as a set. Raises OptionError, with the choices, for a name that is none of GROUPS."""
    wanted = frozenset((groups,) if isinstance(groups, str) else groups)
    unknown = sorted(wanted - set(GROUPS))
    if unknown:
        raise OptionError(f"unknown feature group {unknown[0]!r}: choose from {', '.join(GROUPS)}")
    return wanted


def _side_by_side(
    num_rows: int,
    parts: Mapping[str, tuple[NDArray[np.floating[Any]], tuple[str, ...]]],
    fractal_radius: int | None,
) -> FeatureMatrix:
    """The groups as neighbouring columns of one float32 array."""
    columns: dict[str, slice] = {}
    names: tuple[str, ...] = ()
    for group, (_, group_names) in parts.items():
        columns[group] = slice(len(names), len(names) + len(group_names))
        names += group_names
    blocks = [np.zeros((num_rows, 0)), *(block for block, _ in parts.values())]
    return FeatureMatrix(np.hstack(blocks, dtype=np.float32), columns, names, fractal_radius)
