"""Degree features: in-degree and out-degree of every op, one-hot over the distinct values.

Legend: N ops, V distinct degree values.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import ComputationGraph, FloatArray, IntArray
from hsdag.ir.partition import Partition


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
    one_hot: FloatArray = (degrees[:, None] == np.unique(degrees)[None, :]).astype(np.float64)
    return one_hot


def _neighbour_pairs(graph: ComputationGraph) -> tuple[IntArray, IntArray]:
    """Source and destination of every distinct connected pair, in O(E log E)."""
    return Partition.identity(graph.num_ops).quotient_edges(graph.edge_src, graph.edge_dst)
