"""A rewrite of attention masks that the CPU plugin would misread when it computes in bf16.

An f32 input or constant that is added on the right of the scores, and that varies only along the keys, is read there
as bf16 (2026.4.1, its pass FuseBinaryEltwise). On the left it is read correctly, at the same speed.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import openvino as ov
from openvino import opset13

from hsdag.ir.graph.flops import ELEMENTWISE
from hsdag.ir.graph.readers import replace_op

COMMUTES = frozenset(("Add", "Maximum", "Minimum", "Multiply"))


def put_masks_first(nodes: Iterable[ov.Node]) -> None:
    """Make the ops between a product of two tensors and a softmax read masks along the keys as their first input.

    An attention op with such a mask is first decomposed into these ops. The numbers stay the same.
    """
    for node in nodes:
        kind = node.get_type_name()
        if kind == "ScaledDotProductAttention" and node.get_input_size() > 3 and not node.get_attributes()["causal"]:
            if _is_along_keys(node.input_value(3)):
                _write_out(node)
        elif kind == "Softmax":
            _swap_above(node)


def _is_along_keys(value: ov.Output) -> bool:
    shape = value.get_partial_shape()
    return shape.rank.is_static and all(size == 1 for size in list(shape)[:-1])


def _swap_above(softmax: ov.Node) -> None:
    """Follow the scores up to their product, and swap the inputs of each op on the way whose second is a mask."""
    node, read_second = softmax.input_value(0).get_node(), []
    while node.get_type_name() in ELEMENTWISE:
        values = node.input_values()
        nth = next((k for k, value in enumerate(values) if not _is_along_keys(value)), 0)
        if nth == 0 and len(values) == 2 and _is_along_keys(values[1]):
            read_second.append(node)
        node = values[nth].get_node()
    if node.get_type_name() == "MatMul" and len(node.get_input_partial_shape(1)) > 2:  # weights have two axes
        for reader in read_second:
            scores, mask = reader.input_values()
            if reader.get_type_name() in COMMUTES:
                reader.input(0).replace_source_output(mask)
                reader.input(1).replace_source_output(scores)
            elif reader.get_type_name() == "Subtract":
                replace_op(reader, opset13.add(opset13.negative(mask), scores))


def _write_out(attention: ov.Node) -> None:
    query, key, value, mask = attention.input_values()[:4]
    width = query.get_partial_shape()[-1]
    if attention.get_input_size() == 4 and width.is_dynamic:
        return
    if mask.get_element_type() == ov.Type.boolean:
        zero, least = (opset13.constant(np.float32(number)) for number in (0.0, -np.inf))
        mask = opset13.select(mask, zero, least).output(0)
    scale = (
        attention.input_value(4)
        if attention.get_input_size() > 4
        else opset13.constant(np.float32(width.get_length() ** -0.5))
    )
    scores = opset13.matmul(opset13.multiply(query, scale), key, False, True)
    seen = opset13.matmul(opset13.softmax(opset13.add(mask, scores), -1), value, False, False)
    replace_op(attention, seen)
