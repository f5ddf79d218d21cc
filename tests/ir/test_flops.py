"""FLOP estimates against closed forms."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hsdag.ir.flops import Shape, op_flops


def test_a_convolution_counts_two_per_weight_and_output_pixel() -> None:
    weights, pixels = 64 * 3 * 7 * 7, 112 * 112
    assert op_flops("Convolution", [(1, 3, 224, 224), (64, 3, 7, 7)], (1, 64, 112, 112), {}) == 2 * weights * pixels


def test_a_group_convolution_counts_a_groups_channels_only() -> None:
    grouped = op_flops("GroupConvolution", [(1, 48, 14, 14), (16, 2, 3, 5, 5)], (1, 32, 14, 14), {})
    assert grouped == 2 * (3 * 25) * 32 * 14 * 14


def test_a_transposed_convolution_counts_as_the_convolution_it_inverts() -> None:
    forward = op_flops("Convolution", [(1, 8, 10, 10), (4, 8, 2, 2)], (1, 4, 5, 5), {})
    backward = op_flops("ConvolutionBackpropData", [(1, 4, 5, 5), (4, 8, 2, 2)], (1, 8, 10, 10), {})
    assert backward == forward


@pytest.mark.parametrize(
    ("left", "right", "flags"),
    [
        ((5, 7), (7, 11), {}),
        ((7, 5), (7, 11), {"transpose_a": True}),
        ((5, 7), (11, 7), {"transpose_b": True}),
    ],
)
def test_a_matrix_product_counts_two_m_n_k(left: Shape, right: Shape, flags: Mapping[str, object]) -> None:
    assert op_flops("MatMul", [left, right], (5, 11), flags) == 2 * 5 * 7 * 11


def test_a_batch_of_products_counts_each() -> None:
    assert op_flops("MatMul", [(3, 4, 5, 7), (7, 11)], (3, 4, 5, 11), {}) == 12 * 2 * 5 * 7 * 11


@pytest.mark.parametrize("op_type", ["MaxPool", "AvgPool"])
def test_pooling_counts_the_kernel_per_output(op_type: str) -> None:
    assert op_flops(op_type, [(1, 8, 8, 8)], (1, 8, 4, 4), {"kernel": [3, 2]}) == 8 * 16 * 6


def test_a_reduction_counts_its_input() -> None:
    assert op_flops("ReduceMean", [(4, 5, 6), (1,)], (4,), {}) == 120


@pytest.mark.parametrize("op_type", ["Reshape", "Concat", "Constant", "Parameter", "Result", "Transpose", "Split"])
def test_moving_data_counts_nothing(op_type: str) -> None:
    assert op_flops(op_type, [(4, 5)], (20,), {}) == 0


def test_elementwise_ops_count_their_outputs_and_transcendental_ones_more() -> None:
    assert op_flops("Add", [(4, 5), (5,)], (4, 5), {}) == 20
    assert op_flops("Exp", [(4, 5)], (4, 5), {}) > 20


def test_an_lstm_cell_counts_four_gates() -> None:
    batch, inputs, hidden = 2, 3, 5
    counted = op_flops("LSTMCell", [(batch, inputs), (batch, hidden)], (batch, hidden), {"hidden_size": hidden})
    assert counted == 2 * batch * 4 * hidden * (inputs + hidden)


def test_attention_counts_two_products_and_a_softmax() -> None:
    queries, keys, width = 6, 10, 16
    counted = op_flops("ScaledDotProductAttention", [(2, queries, width), (2, keys, width)], (2, queries, width), {})
    assert counted == 2 * (4 * queries * keys * width + 5 * queries * keys)
