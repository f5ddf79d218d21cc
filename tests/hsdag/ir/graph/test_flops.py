"""FLOP estimates against closed forms."""

from __future__ import annotations

import pytest

from hsdag.ir.graph.flops import Shape, op_flops

PIXELS = 112 * 112
CASES: list[tuple[str, list[Shape], Shape, dict[str, object], float]] = [
    ("Convolution", [(1, 3, 224, 224), (64, 3, 7, 7)], (1, 64, 112, 112), {}, 2 * (64 * 3 * 7 * 7) * PIXELS),
    ("GroupConvolution", [(1, 48, 14, 14), (16, 2, 3, 5, 5)], (1, 32, 14, 14), {}, 2 * (3 * 25) * 32 * 14 * 14),
    ("ConvolutionBackpropData", [(1, 4, 5, 5), (4, 8, 2, 2)], (1, 8, 10, 10), {}, 2 * (8 * 2 * 2) * 4 * 5 * 5),
    ("MatMul", [(5, 7), (7, 11)], (5, 11), {}, 2 * 5 * 7 * 11),
    ("MatMul", [(7, 5), (7, 11)], (5, 11), {"transpose_a": True}, 2 * 5 * 7 * 11),
    ("MatMul", [(5, 7), (11, 7)], (5, 11), {"transpose_b": True}, 2 * 5 * 7 * 11),
    ("MatMul", [(3, 4, 5, 7), (7, 11)], (3, 4, 5, 11), {}, 12 * 2 * 5 * 7 * 11),
    ("MatMul", [(7,), (7, 11)], (11,), {"transpose_a": True}, 2 * 7 * 11),
    ("MatMul", [(), (7, 11)], (7, 11), {}, 0),
    ("MaxPool", [(1, 8, 8, 8)], (1, 8, 4, 4), {"kernel": [3, 2]}, 8 * 16 * 6),
    ("AvgPool", [(1, 8, 8, 8)], (1, 8, 4, 4), {}, 8 * 16),
    ("TopK", [(4, 5)], (4, 2), {}, 20),
    ("ReduceMean", [(4, 5, 6), (1,)], (4,), {}, 120),
    ("Add", [(4, 5), (5,)], (4, 5), {}, 20),
    ("Exp", [(4, 5)], (4, 5), {}, 4 * 20),
    ("GRUSequence", [(2, 4, 3), (2, 1, 5)], (2, 1, 4, 5), {}, 2 * 2 * 4 * 3 * 5 * (3 + 5)),
    ("LSTMCell", [(2, 3), (2, 5)], (2, 5), {"hidden_size": 5}, 2 * 2 * 4 * 5 * (3 + 5)),
    ("ScaledDotProductAttention", [(2, 6, 16), (2, 10, 16)], (2, 6, 16), {}, 2 * (4 * 6 * 10 * 16 + 5 * 6 * 10)),
]
"""Type, inputs, output, attributes, operations: two for a multiply-add, 5 for an element of a softmax."""


@pytest.mark.parametrize(("op_type", "inputs", "output", "attributes", "flops"), CASES)
def test_operations_are_those_of_the_closed_form(
    op_type: str, inputs: list[Shape], output: Shape, attributes: dict[str, object], flops: float
) -> None:
    assert op_flops(op_type, inputs, output, attributes) == flops


@pytest.mark.parametrize("op_type", ["Reshape", "Concat", "Constant", "Parameter", "Result", "Transpose", "Split"])
def test_moving_data_counts_nothing(op_type: str) -> None:
    assert op_flops(op_type, [(4, 5)], (20,), {}) == 0
