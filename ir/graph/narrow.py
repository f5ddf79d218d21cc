"""A rewrite of convolutions that the CPU plugin computes wrongly in bf16.

A strided convolution whose output is one column wide gives wrong numbers on processors with AMX (2026.4.1). With two
columns they are right, so a second one is computed and left out.
"""

from __future__ import annotations

from collections.abc import Iterable

import openvino as ov
from openvino import opset13

from hsdag.ir.graph.readers import replace_op


def widen_columns(nodes: Iterable[ov.Node]) -> None:
    """Make strided convolutions with an output one column wide compute a second column and drop it."""
    for node in nodes:
        shape = node.get_output_partial_shape(0) if node.get_type_name() == "Convolution" else ov.PartialShape([])
        if len(shape) != 4 or shape[3] != 1 or (attributes := node.get_attributes())["strides"][1] == 1:
            continue
        (height, width), strides = attributes["pads_end"], attributes["strides"]
        wide = opset13.convolution(
            *node.input_values(),
            strides,
            attributes["pads_begin"],
            [height, width + strides[1]],
            attributes["dilations"],
        )
        column = [opset13.constant([k]) for k in (0, 1, 1, 3)]
        replace_op(node, opset13.slice(wide, *column))
