"""Op type features: one-hot over a vocabulary of types, averaged over the members of a group.

Legend: N ops, G groups, T types of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hsdag.ir.coarsen import CoarseGraph
from hsdag.ir.errors import OptionError
from hsdag.ir.graph import ComputationGraph, FloatArray, IntArray


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
