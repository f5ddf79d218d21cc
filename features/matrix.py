"""The feature matrix of a graph: columns in named groups, side by side (HSDAG, section 2.3).

Legend: N ops (or groups of a coarse graph), F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hsdag.features.columns import degrees, fractal_dimension, one_hot, op_type_mean, output_shape, positional_encoding
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray

GROUPS = ("op_type", "in_degree", "out_degree", "fractal", "positional", "output_shape")
STRUCTURE_GROUPS = ("in_degree", "out_degree", "fractal")  # 'graph-structural features' of HSDAG Table 3

LARGE_GRAPH_OPS, LARGE_GRAPH_RADIUS = 5_000, 32
"""The exact fractal dimension searches the whole graph from every op, in time quadratic in N. Beyond this many ops the
regression ends at a radius that keeps the searches local; deep networks then take linear time."""


@dataclass(frozen=True, eq=False)
class FeatureMatrix:
    """Node features with their column groups.

    Values are raw: whoever learns from them normalises. The array stays writable, because torch warns of
    one that is not.
    """

    values: NDArray[np.float32]  # [N, F]
    columns: Mapping[str, slice]  # group -> its columns, in the order of GROUPS
    names: tuple[str, ...]  # [F] such as op_type:Add, in_degree:2, fractal
    fractal_radius: int | None  # where the regression of the fractal dimension ends; None where it is exact


def feature_matrix(graph: ComputationGraph | CoarseGraph, groups: Iterable[str] = GROUPS) -> FeatureMatrix:
    """The features of HSDAG §2.3 for every op of the graph, or every group of a coarse graph.

    Of a coarse graph, op types are means over members (App. G); all else describes ``graph.graph``. Columns
    are in the order of ``GROUPS``. Graphs of more than ``LARGE_GRAPH_OPS`` ops end the regression of the
    fractal dimension at ``LARGE_GRAPH_RADIUS``, recorded as ``fractal_radius``. Raises OptionError, with the choices,
    for an unknown group.
    """
    wanted = frozenset(groups)
    if unknown := sorted(wanted - set(GROUPS)):
        raise OptionError(f"unknown feature group {unknown[0]!r}: choose from {', '.join(GROUPS)}")
    units = graph.graph if isinstance(graph, CoarseGraph) else graph
    radius = LARGE_GRAPH_RADIUS if "fractal" in wanted and units.num_ops > LARGE_GRAPH_OPS else None
    blocks: list[FloatArray] = [np.zeros((units.num_ops, 0))]
    columns: dict[str, slice] = {}
    names: list[str] = []
    for group in (group for group in GROUPS if group in wanted):
        block, keys = _block(group, graph, radius)
        columns[group] = slice(len(names), len(names) + block.shape[1])
        names += [group] if keys is None else [f"{group}:{key}" for key in keys]
        blocks.append(block)
    return FeatureMatrix(np.hstack(blocks, dtype=np.float32), columns, tuple(names), radius)


def _block(
    group: str, graph: ComputationGraph | CoarseGraph, radius: int | None
) -> tuple[FloatArray, Iterable[object] | None]:
    """The columns of a group, and what tells them apart in their names; None for a single column."""
    units, fine = (graph.graph, graph.fine) if isinstance(graph, CoarseGraph) else (graph, graph)
    if group == "op_type":
        types = op_type_mean(graph) if isinstance(graph, CoarseGraph) else one_hot(np.array(graph.op_types))
        return types, sorted(set(fine.op_types))
    if group in ("in_degree", "out_degree"):
        found = degrees(units)[group == "out_degree"]
        return one_hot(found), np.unique(found)
    if group == "fractal":
        return fractal_dimension(units, radius)[:, None], None
    block = positional_encoding(units) if group == "positional" else output_shape(units)
    return block, range(block.shape[1])
