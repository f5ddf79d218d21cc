"""A rewrite of transposes of attention heads that the CPU plugin would lose in a part of a model.

The plugin computes attention with the transposes around it in one kernel. If there are as many rows as heads, and the
part has the transpose before the attention but not the one behind it, the kernel computes something else in f32
(2026.4.1). With one more axis, of size 1, a transpose stays an op of its own, and the numbers are right.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.ir.graph.readers import replace_op

SWAPPED = (0, 2, 1, 3)
"""Order of the axes of a transpose between [batch, rows, heads, width] and [batch, heads, rows, width]."""


def keep_heads_apart(nodes: Iterable[ov.Node]) -> None:
    """Give each transpose that swaps axes of one size among rows and heads a fifth axis. The numbers stay the same."""
    for node in nodes:
        if node.get_type_name() == "Transpose" and _swaps_equal_axes(node):
            wider = opset13.unsqueeze(node.input_value(0), opset13.constant(np.array([3])))
            swapped = opset13.transpose(wider, opset13.constant(np.array([0, 2, 3, 1, 4])))
            replace_op(node, opset13.squeeze(swapped, opset13.constant(np.array([2]))))


def _swaps_equal_axes(transpose: ov.Node) -> bool:
    """Return whether a transpose swaps rows and heads of which there are as many, more than one."""
    shape, order = transpose.get_input_partial_shape(0), transpose.input_value(1).get_node()
    if order.get_type_name() != "Constant" or tuple(np.ravel(order.data).tolist()) != SWAPPED:
        return False
    rows, heads = list(shape)[1:3]
    return bool(rows.is_static and rows == heads and rows.get_length() > 1)
