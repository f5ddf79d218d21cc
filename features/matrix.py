"""Compute the feature matrix of a graph: columns in named groups, side by side (HSDAG, section 2.3).

Legend: N ops (or groups of a coarse graph), F features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hsdag.base.errors import OptionError
from hsdag.features.columns import degrees, fractal_dimension, one_hot, op_type_mean, output_shape, positional_encoding
from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray

GROUPS = ("op_type", "in_degree", "out_degree", "fractal", "positional", "output_shape")
STRUCTURE_GROUPS = ("in_degree", "out_degree", "fractal")  # 'graph-structural features' of HSDAG Table 3

LARGE_GRAPH_OPS, LARGE_GRAPH_RADIUS = 5_000, 32
"""Above this number of ops, limit the fractal dimension to this radius, in hops.

The exact computation searches the whole graph from every op, in time quadratic in N. With the limit searches stay
local, and deep networks take linear time.
"""


@dataclass(frozen=True, eq=False)
class FeatureMatrix:
    """Node features and their groups of columns.

    Values are not normalised; the learner does that. The array is writable because torch warns of arrays that are not.
    """

    values: NDArray[np.float32]  # [N, F]
    columns: Mapping[str, slice]  # group -> its columns, in the order of GROUPS
    names: tuple[str, ...]  # [F], for example op_type:Add, in_degree:2, fractal
    fractal_radius: int | None  # largest radius of the fractal dimension, in hops; None if it is exact


def feature_matrix(graph: ComputationGraph | CoarseGraph, groups: Iterable[str] = GROUPS) -> FeatureMatrix:
    """Return the features of HSDAG §2.3 for every op of the graph, or every group of a coarse graph.

    Columns are in the order of ``GROUPS``. The op types of a coarse graph are means over members (App. G); its other
    features describe ``graph.graph``. In graphs of more than ``LARGE_GRAPH_OPS`` ops, ``LARGE_GRAPH_RADIUS`` limits the
    fractal dimension. Raises OptionError, with the choices, for an unknown group.
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
    """Return the columns of a group and their keys, used in column names; the keys of a single column are None."""
    units, fine = (graph.graph, graph.fine) if isinstance(graph, CoarseGraph) else (graph, graph)
    if group == "op_type":
        types = op_type_mean(graph) if isinstance(graph, CoarseGraph) else one_hot(np.array(graph.op_types))
        return types, sorted(set(fine.op_types))
    if group in ("in_degree", "out_degree"):
        counts = degrees(units)[group == "out_degree"]
        return one_hot(counts), np.unique(counts)
    if group == "fractal":
        return fractal_dimension(units, radius)[:, None], None
    block = positional_encoding(units) if group == "positional" else output_shape(units)
    return block, range(block.shape[1])
