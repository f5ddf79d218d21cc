"""Groups of columns that need no search: degrees, op types, places in the topological order, output shapes.

Legend: N ops, G groups, V distinct degrees, T types of the vocabulary, d columns of a place, R largest rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph.coarsen import CoarseGraph
from hsdag.ir.graph.computation_graph import ComputationGraph, FloatArray, IntArray
from hsdag.ir.graph.partition import Partition

WAVELENGTH_BASE = 10_000.0  # HSDAG Eq. 5


def in_degrees(graph: ComputationGraph) -> IntArray:
    """[N] number of distinct producers of each op.

    The paper's adjacency matrix is binary (Definition 2.1), so ports that read the same op count once.
    """
    return np.bincount(_neighbour_pairs(graph)[1], minlength=graph.num_ops).astype(np.int64)


def out_degrees(graph: ComputationGraph) -> IntArray:
    """[N] number of distinct consumers of each op; parallel edges count once, as in ``in_degrees``."""
    return np.bincount(_neighbour_pairs(graph)[0], minlength=graph.num_ops).astype(np.int64)


def degree_one_hot(degrees: IntArray) -> FloatArray:
    """[N, V] one-hot of ``degrees`` over the distinct values that occur, ascending (HSDAG §2.3, after Eq. 3)."""
    return np.equal.outer(degrees, np.unique(degrees)).astype(np.float64)


def _neighbour_pairs(graph: ComputationGraph) -> tuple[IntArray, IntArray]:
    """Source and destination of every distinct connected pair, in O(E log E)."""
    return Partition.identity(graph.num_ops).quotient_edges(graph.edge_src, graph.edge_dst)


def op_type_vocabulary(graph: ComputationGraph) -> tuple[str, ...]:
    """The distinct op types of the graph, sorted."""
    return tuple(sorted(set(graph.op_types)))


def op_type_one_hot(graph: ComputationGraph, vocabulary: Sequence[str] | None = None) -> FloatArray:
    """[N, T] one-hot of each op's type over ``vocabulary``, default the graph's own types (HSDAG Eq. 3).

    A type outside the vocabulary has no column: the op's row is zero. Raises OptionError when the vocabulary
    names a type twice.
    """
    return _counts(graph, np.arange(graph.num_ops), graph.num_ops, vocabulary)


def op_type_mean(coarse: CoarseGraph, vocabulary: Sequence[str] | None = None) -> FloatArray:
    """[G, T] mean of the members' one-hots (HSDAG App. G) over ``vocabulary``, default the members' types.

    A member of a type outside the vocabulary adds a zero row to the mean, so that the sum of a group's row
    is its share of known types. Raises OptionError when the vocabulary names a type twice.
    """
    labels, groups = coarse.partition.labels, coarse.partition.num_groups
    return _counts(coarse.fine, labels, groups, vocabulary) / np.bincount(labels, minlength=groups)[:, None]


def _counts(graph: ComputationGraph, rows: IntArray, num_rows: int, vocabulary: Sequence[str] | None) -> FloatArray:
    """[num_rows, T] how many ops of each type belong to each row, in O(N + num_rows T)."""
    types = op_type_vocabulary(graph) if vocabulary is None else tuple(vocabulary)
    column_of = {op_type: column for column, op_type in enumerate(types)}
    if len(column_of) != len(types):
        twice = next(op_type for column, op_type in enumerate(types) if column_of[op_type] != column)
        raise OptionError(f"the op type vocabulary names {twice!r} twice: each type needs one column")
    columns = np.fromiter((column_of.get(t, -1) for t in graph.op_types), dtype=np.int64, count=graph.num_ops)
    known = columns >= 0
    cells = rows[known] * np.int64(len(types)) + columns[known]
    counts = np.bincount(cells, minlength=num_rows * len(types)).reshape(num_rows, len(types))
    return counts.astype(np.float64)


def positional_encoding(graph: ComputationGraph, d_pos: int = 16) -> FloatArray:
    """[N, d] PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos of the same (HSDAG Eq. 5).

    ``pos`` runs from 1 to N along ``graph.topological_order``. Raises OptionError unless ``d_pos`` is even
    and at least 2, because sines and cosines come in pairs.
    """
    if d_pos < 2 or d_pos % 2:
        raise OptionError(f"the positional encoding needs an even size of at least 2, not {d_pos}")
    pos = (graph.position + 1).astype(np.float64)
    angles = pos[:, None] / WAVELENGTH_BASE ** (np.arange(0, d_pos, 2) / d_pos)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(graph.num_ops, d_pos)


def output_shape(graph: ComputationGraph, *, raw: bool = False) -> FloatArray:
    """[N, R] log(1 + size) of each axis of the op's first output, zero beyond its rank (HSDAG §2.3).

    The paper takes the sizes themselves. They run from 1 to 1e5 in one graph and would swamp the columns
    beside them, hence the logarithm, which keeps the padding at 0; ``raw`` gives the paper's sizes.
    """
    sizes: FloatArray = graph.shapes.astype(np.float64)
    return sizes if raw else np.log1p(sizes)
