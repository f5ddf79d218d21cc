"""Shape features: the output shape of every op, padded with zeros to the largest rank.

Legend: N ops, R largest rank.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph import ComputationGraph, FloatArray


def output_shape(graph: ComputationGraph, *, raw: bool = False) -> FloatArray:
    """[N, R] log(1 + size) of each axis of the op's first output, zero beyond its rank (HSDAG §2.3).

    The paper takes the sizes themselves. They run from 1 to 1e5 in one graph and would swamp the columns
    beside them, hence the logarithm, which keeps the padding at 0; ``raw`` gives the paper's sizes.
    """
    sizes: FloatArray = graph.shapes.astype(np.float64)
    return sizes if raw else np.log1p(sizes)
