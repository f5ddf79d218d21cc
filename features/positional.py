"""Positional features: sine and cosine encoding of an op's place in the topological order.

Legend: N ops, d columns.
"""

from __future__ import annotations

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.graph import ComputationGraph, FloatArray

WAVELENGTH_BASE = 10_000.0  # HSDAG Eq. 5


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
