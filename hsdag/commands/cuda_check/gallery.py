"""The gallery: one small model with an op of every type that the torch op library runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops
from openvino import opset16

SHAPE = (2, 4, 6, 6)

UNARY = ("abs acos asin asinh atan atanh ceiling cosh erf exp floor hsigmoid hswish mish negative sigmoid sign sinh "
         "softplus softsign tan cos relu sin tanh swish").split()  # fmt: skip
BINARY = ("add divide equal floor_mod greater greater_equal less less_equal maximum minimum mod not_equal "
          "squared_difference subtract").split()  # fmt: skip
REDUCTIONS = "l1 l2 max mean min prod sum".split()


def gallery_inputs() -> list[NDArray[Any]]:
    """Numbers between -0.9 and 0.9, between 1.1 and 2, whole numbers below 9, and truth values; each of SHAPE."""
    rng = np.random.default_rng(0)
    small, large = rng.uniform(-0.9, 0.9, SHAPE), rng.uniform(1.1, 2.0, SHAPE)
    whole, truth = rng.integers(0, 9, SHAPE), rng.random(SHAPE) < 0.5
    return [small.astype(np.float32), large.astype(np.float32), whole.astype(np.int32), truth]


def gallery() -> ov.Model:
    """The model; every op reads inputs and constants alone, and all of its results are outputs."""
    x, y, n, b = inputs = [ops.parameter(SHAPE, kind) for kind in (np.float32, np.float32, np.int32, np.bool_)]
    made = [getattr(ops, name)(x) for name in UNARY] + [ops.acosh(y), ops.log(y), ops.sqrt(y), ops.power(y, x)]
    made += [getattr(ops, name)(x, y) for name in BINARY]
    made += [getattr(ops, f"reduce_{name}")(x, [2, 3], True) for name in REDUCTIONS]
    made += [*_functions(x), *_logic(x, n, b), *_shapes(x, n), *_windows(x), *_normalisations(x, y)]
    return ov.Model([ops.result(port) for node in made for port in node.outputs()], inputs, "gallery")


def _constant(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).uniform(0.2, 1.0, shape).astype(np.float32)


def _functions(x: ov.Node) -> list[ov.Node]:
    """Functions with attributes."""
    low, high = np.float32(-0.5), np.float32(0.5)
    return [
        ops.clamp(x, -0.5, 0.8),
        ops.convert_like(x, ops.constant(np.array([1], np.int32))),
        ops.cum_sum(x, 1),
        ops.convert(x, "i32"),
        ops.elu(x, 0.7),
        ops.fake_quantize(x, low, high, low, high, 16),
        ops.gelu(x, "erf"),
        ops.hard_sigmoid(x, np.float32(0.3), np.float32(0.4)),
        ops.prelu(x, _constant(4)),
        ops.round(x, "half_to_even"),
        ops.selu(x, np.array([1.6], np.float32), np.array([1.1], np.float32)),
    ]


def _logic(x: ov.Node, n: ov.Node, b: ov.Node) -> list[ov.Node]:
    """Truth values and bits."""
    odd = ops.constant(np.array([np.inf, -np.inf, np.nan, 1.0], np.float32).reshape(1, 4, 1, 1))
    seven = ops.constant(np.array(7, np.int32))
    bits = [getattr(ops, f"bitwise_{name}")(n, seven) for name in ("and", "or", "xor")]
    truths = [getattr(ops, f"logical_{name}")(b, ops.greater(x, np.float32(0))) for name in ("and", "or", "xor")]
    reduced = [getattr(ops, f"reduce_logical_{name}")(b, [1], False) for name in ("and", "or")]
    odds = [ops.is_inf(ops.multiply(x, odd)), ops.is_nan(ops.multiply(x, odd)), ops.is_finite(ops.multiply(x, odd))]
    return [*bits, ops.bitwise_not(n), *truths, ops.logical_not(b), *reduced, *odds, ops.select(b, x, np.float32(2))]


def _shapes(x: ov.Node, n: ov.Node) -> list[ov.Node]:
    """Parts, copies and orders of elements."""
    found = ops.non_zero(ops.constant(np.array([[0, 3], [2, 0]], np.float32)), "i64")
    return [
        ops.broadcast(x, [3, *SHAPE]),
        ops.concat([x, ops.abs(x)], 1),
        ops.gather(x, ops.constant(np.array([3, 0], np.int32)), 1),
        opset16.identity(x),
        ops.range(np.array(0), ops.gather(ops.shape_of(x), np.array(1), 0), np.array(2), "i64"),
        ops.reshape(x, [0, -1], special_zero=True),
        ops.depth_to_space(x, "blocks_first", 2),
        ops.space_to_depth(x, "blocks_first", 2),
        ops.gather_elements(x, ops.constant(np.zeros((2, 4, 6, 2), np.int32)), 3),
        ops.gather_nd(x, ops.constant(np.array([[0, 1], [1, 3]], np.int32))),
        ops.gather_nd(x, ops.transpose(found, [1, 0])),
        ops.pad(x, [0, 0, 1, 2], [0, 0, 2, 1], "reflect"),
        ops.slice(x, [1, -3], [4, 1000], [1, 2], [2, 3]),
        ops.split(x, 1, 2),
        ops.squeeze(ops.reduce_sum(x, [1], True), [1]),
        ops.strided_slice(n, [0, 1, 0, 0], [2, 4, 6, 6], [1, 2, 1, 3], [0, 0, 0, 0], [0, 0, 0, 0]),
        ops.tile(x, [1, 2, 1, 1]),
        ops.unsqueeze(x, [0]),
        ops.variadic_split(x, 1, [1, 3]),
    ]


def _windows(x: ov.Node) -> list[ov.Node]:
    """Convolutions, pooling and resampling."""
    two, none, one = [2, 2], [0, 0], [1, 1]
    sizes, scales = np.array([9, 12], np.int64), np.array([1.5, 2.0], np.float32)
    return [
        ops.avg_pool(x, two, none, none, [3, 3], True),
        ops.convolution(x, _constant(3, 4, 3, 3), one, one, one, one),
        ops.max_pool(x, two, one, none, none, [3, 3]),
        ops.convolution_backprop_data(x, _constant(4, 3, 3, 3), two, pads_begin=one, pads_end=one, dilations=one),
        ops.group_convolution(x, _constant(2, 3, 2, 3, 3), one, one, one, one),
        ops.group_convolution_backprop_data(x, _constant(2, 2, 3, 3, 3), two, pads_begin=none, pads_end=none),
        ops.interpolate(x, sizes, "linear_onnx", "sizes", axes=np.array([2, 3], np.int64)),
        ops.interpolate(x, scales, "nearest", "scales", axes=np.array([2, 3], np.int64)),
    ]


def _normalisations(x: ov.Node, y: ov.Node) -> list[ov.Node]:
    """Normalisations and products."""
    four = [_constant(4) for _ in range(4)]
    return [
        ops.batch_norm_inference(x, *four, 1e-3),
        ops.einsum([x, y], "abcd,abed->ace"),
        ops.group_normalization(x, _constant(4), _constant(4), 2, 1e-3),
        ops.log_softmax(x, 1),
        ops.matmul(x, y, False, True),
        ops.mvn(x, [2, 3], True, 1e-5, "inside_sqrt"),
        ops.scaled_dot_product_attention(x, y, x),
        ops.softmax(x, 1),
        ops.lrn(x, [1], 2.0, 0.75, 1.0, 3),
        ops.normalize_l2(x, [1], 1e-2, "add"),
    ]
