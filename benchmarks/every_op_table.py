"""Every op of OpenVINO's opsets 1 to 16 that its Python API makes, with every enumerated value of its attributes.

A row names a function of the opsets, its inputs and its attributes. It stands for every version of the function, with
the attributes that this one has; a range of values stands for each of them (all combinations where they are few).
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from openvino import opset13

NUM_OPSETS = 16
MOST_COMBINATIONS = 6
"""Of the values of a row's attributes that are all tried; where there are more, one attribute at a time changes."""


class Given(NamedTuple):
    """An input of the model: its shape, element type, and least and largest number."""

    shape: tuple[int, ...]
    kind: str = "f32"
    low: float = -2.0
    high: float = 2.0


class Each(tuple[Any, ...]):
    """Values of an attribute, each of which is tried."""


def x(*shape: int, low: float = -2.0, high: float = 2.0) -> Given:
    """Real numbers."""
    return Given(shape, "f32", low, high)


def i(*shape: int, low: int = 0, high: int = 3, kind: str = "i32") -> Given:
    """Integers from ``low`` to ``high``."""
    return Given(shape, kind, low, high)


def c(*values: Any, kind: Any = np.int64) -> Any:
    """A constant list."""
    return np.array(values, dtype=kind)


def n(value: Any, kind: Any = np.int64) -> Any:
    """A constant number."""
    return np.array(value, dtype=kind)


def f(*shape: int) -> Any:
    """A constant of real numbers."""
    return np.random.default_rng(shape).uniform(-1, 1, shape).astype(np.float32)


def each(*values: Any) -> Each:
    """Values of an attribute, each of which is tried."""
    return Each(values)


BOTH = each(False, True)
BROADCAST = each("NUMPY", "PDPD")
AUTO_PAD = each("explicit", "same_upper", "same_lower", "valid")
IMAGE, ROWS, REAL = x(2, 4, 9, 7), x(2, 6, 8), np.float32
BOXES = np.array([[[0, 0, 2, 2], [0, 0, 2, 1.9], [3, 3, 5, 5], [3, 3, 5, 4.5], [7, 7, 9, 9], [1, 1, 2, 2]]], np.float32)
PRIOR = {"min_size": [8.0], "aspect_ratio": [2.0], "flip": True, "step": 4.0, "variance": [0.1], "offset": 0.0}
PROPOSAL = {"base_size": 8, "pre_nms_topn": 10, "post_nms_topn": 4, "feat_stride": 16, "min_size": 2}
DETECTION = {"top_k": 4, "keep_top_k": [3], "nms_threshold": 0.5, "confidence_threshold": 0.1, "background_label_id": 0}
CELL = {"hidden_size": 8, "clip": each(0.0, 0.3)}
SEQUENCE = {**CELL, "direction": each("forward", "reverse", "bidirectional")}
NMS = {"box_encoding": each("corner", "center"), "sort_result_descending": BOTH, "output_type": each("i32", "i64")}
MATRIX_NMS = {
    "sort_result_type": each("none", "score", "classid"), "sort_result_across_batch": BOTH, "normalized": BOTH,
    "output_type": each("i32", "i64"), "decay_function": each("linear", "gaussian"), "nms_eta": 1.0,
}  # fmt: skip
CUBES = {
    "mode": each("nearest", "linear", "linear_onnx", "cubic"), "antialias": BOTH,
    "coordinate_transformation_mode": each("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn",
                                           "align_corners"),
    "nearest_mode": each("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple"), "cube_coeff": -0.5,
}  # fmt: skip

Row = tuple[str, list[Any], dict[str, Any]]
UNARY: dict[str, Given] = {
    **dict.fromkeys("abs absolute ceiling asinh atan ceil cos erf floor hsigmoid hswish identity is_finite is_inf"
                    " is_nan mish negative relu sigmoid sign sin softplus softsign swish tanh exp".split(), IMAGE),
    **dict.fromkeys("acos asin atanh cosh sinh tan".split(), x(2, 6, 8, low=-0.9, high=0.9)),
    **dict.fromkeys("acosh log sqrt".split(), x(2, 6, 8, low=1.1, high=3.0)),
}  # fmt: skip
BINARY = (
    "add divide equal floor_mod greater greater_equal less less_equal maximum minimum mod multiply not_equal power"
    " squared_difference subtract"
).split()
POSITIVE = x(2, 6, 8, low=0.5, high=2.0)
REDUCTIONS = "max mean min prod sum l1 l2".split()

TABLE: list[Row] = [
    *((name, [given], {}) for name, given in UNARY.items()),
    *((name, [POSITIVE, other], {"auto_broadcast": how}) for name in BINARY for other, how in (
        (POSITIVE, each("NONE", "PDPD")), (x(6, 1, low=0.5), "NUMPY"), (f(8) ** 2 + 0.5, "NUMPY"),
        (x(2, 6, low=0.5), "PDPD"), (x(2, low=0.5), "PDPD"))),
    *((f"logical_{name}", [i(2, 6, 8, high=1, kind="boolean"), other], {"auto_broadcast": how})
      for name in ("and", "or", "xor")
      for other, how in ((i(6, 8, high=1, kind="boolean"), "NUMPY"), (i(2, 6, high=1, kind="boolean"), "PDPD"))),
    ("logical_not", [i(2, 6, 8, high=1, kind="boolean")], {}),
    *((f"bitwise_{name}", [i(2, 6, 8, high=7), other], {"auto_broadcast": how})
      for name in "and or xor left_shift right_shift".split()
      for other, how in ((i(6, 8, high=3), "NUMPY"), (i(2, 6, high=3), "PDPD"))),
    ("bitwise_not", [i(2, 6, 8, high=7)], {}),
    *((f"reduce_{name}", [IMAGE, axes], {"keep_dims": BOTH}) for name in REDUCTIONS
      for axes in (c(1), c(-1, 0), c(2, 3), n(2), c())),
    *((f"reduce_logical_{name}", [i(2, 6, 8, high=1, kind="boolean"), axes], {"keep_dims": BOTH})
      for name in ("and", "or") for axes in (c(1), c(-1, 0))),
    ("round", [IMAGE], {"mode": each("half_to_even", "half_away_from_zero")}),
    ("gelu", [IMAGE], {"approximation_mode": each("erf", "tanh")}),
    ("is_inf", [IMAGE], {"attributes": each({"detect_negative": False}, {"detect_positive": False})}),
    ("elu", [IMAGE], {"alpha": 0.7}),
    ("clamp", [IMAGE], {"min_value": -0.5, "max_value": 0.8}),
    ("swish", [IMAGE, n(1.5, REAL)], {}),
    ("hard_sigmoid", [IMAGE, n(0.3, REAL), n(0.4, REAL)], {}),
    ("selu", [IMAGE, n(1.6, REAL), n(1.05, REAL)], {}),
    *(("prelu", [IMAGE, slope], {}) for slope in (f(4), f(1), f(4, 1, 1), f(1, 4, 9, 7))),
    ("convert", [IMAGE], {"destination_type": each("f16", "i32", "u8", "boolean", "f64", "bf16")}),
    ("convert_like", [IMAGE, n(0)], {}),
    ("convert_promote_types", [IMAGE, i(2, 4, 9, 7)], {"promote_unsafe": BOTH, "pytorch_scalar_promotion": BOTH,
                                                      "u64_integer_promotion_target": each("f32", "i32")}),
    ("select", [i(2, 6, 8, high=1, kind="boolean"), ROWS, x(6, 8)], {"auto_broadcast": "numpy"}),
    ("select", [i(2, 6, high=1, kind="boolean"), ROWS, x(2, 6)], {"auto_broadcast": "pdpd"}),
    ("select", [i(2, 6, 8, high=1, kind="boolean"), ROWS, ROWS], {"auto_broadcast": "none"}),
    *(("fake_quantize", [IMAGE, -edge, edge, -edge, edge], {"levels": each(16, 255), "auto_broadcast": BROADCAST})
      for edge in (n(1.5, REAL), np.abs(f(1, 4, 1, 1)) + 1)),
    ("fake_convert", [IMAGE, np.abs(f(4, 1, 1)) + 1, f(4, 1, 1)], {"destination_type": each("f8e4m3", "f8e5m2")}),
    # products, convolutions, pools
    *(("matmul", [a, b], {"transpose_a": ta, "transpose_b": tb}) for a, b, ta, tb in (
        (ROWS, x(8, 4), False, False), (ROWS, f(4, 8), False, True), (x(2, 8, 6), f(8, 4), True, False),
        (x(2, 8, 6), x(2, 4, 8), True, True), (x(8), x(8, 4), False, False), (ROWS, x(8), False, False))),
    *(("convolution", [IMAGE, f(6, 4, 3, 2)], {"strides": [stride, 1], "pads_begin": [1, 0], "pads_end": [0, 1],
                                             "dilations": [dilation, 1], "auto_pad": AUTO_PAD})
      for stride, dilation in ((1, 1), (2, 2))),
    ("group_convolution", [IMAGE, f(2, 3, 2, 3, 2)], {"strides": [2, 1], "pads_begin": [1, 0], "pads_end": [0, 1],
                                                      "dilations": [1, 2], "auto_pad": AUTO_PAD}),
    ("convolution_backprop_data", [IMAGE, f(4, 6, 3, 2)], {
        "strides": [2, 1], "pads_begin": [1, 0], "pads_end": [0, 1], "dilations": [1, 1], "auto_pad": AUTO_PAD,
        "output_padding": each([0, 0], [1, 0])}),
    ("convolution_backprop_data", [IMAGE, f(4, 6, 3, 2)], {
        "strides": [2, 1], "output_shape": c(18, 7), "auto_pad": each("same_upper", "same_lower")}),
    ("group_convolution_backprop_data", [IMAGE, f(2, 2, 3, 3, 2)], {
        "strides": [2, 1], "pads_begin": [1, 0], "pads_end": [0, 1], "dilations": [1, 1], "auto_pad": AUTO_PAD,
        "output_padding": each([0, 0], [1, 0])}),
    ("binary_convolution", [x(2, 4, 9, 7, low=0, high=1), np.ones((6, 4, 3, 2), REAL)], {
        "strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1], "mode": "xnor-popcount",
        "pad_value": 0.0, "auto_pad": AUTO_PAD}),
    ("deformable_convolution", [IMAGE, x(2, 12, 8, 6), f(6, 4, 3, 2)], {
        "strides": [1, 1], "pads_begin": [1, 0], "pads_end": [0, 0], "dilations": [1, 1],
        "auto_pad": each("explicit"), "bilinear_interpolation_pad": BOTH, "mask": each(None, x(2, 6, 8, 6))}),
    *(("avg_pool", [IMAGE], {"strides": strides, "pads_begin": [1, 0], "pads_end": [0, 1], "kernel_shape": [3, 2],
                            "exclude_pad": BOTH, "rounding_type": each("floor", "ceil", "ceil_torch"),
                            "dilations": [1, 1],  # opset 16 leaves them empty, which ends the CPU plugin's process
                            **more})
      for strides, more in (([2, 1], {}), ([2, 2], {}), ([2, 1], {"dilations": [2, 2], "only": 16}),
                            ([2, 2], {"auto_pad": "same_upper"}), ([2, 1], {"auto_pad": "same_lower"}),
                            ([2, 2], {"auto_pad": "valid"}))),
    *(("max_pool", [IMAGE], {"strides": stride, "pads_begin": [1, 0], "pads_end": [0, 1], "kernel_shape": [3, 2],
                            "dilations": dilations, "rounding_type": each("floor", "ceil", "ceil_torch"),
                            "auto_pad": AUTO_PAD, "index_element_type": each("i32", "i64"), "axis": axis})
      for stride, dilations, axis in (([2, 1], [1, 1], 0), ([2, 2], [2, 1], 1))),
    ("adaptive_avg_pool", [IMAGE, c(3, 2)], {}),
    ("adaptive_max_pool", [IMAGE, c(3, 2)], {"index_element_type": each("i32", "i64")}),
    # norms
    ("batch_norm_inference", [IMAGE, f(4), f(4), f(4), np.abs(f(4)) + 1], {"epsilon": 1e-3}),
    ("lrn", [IMAGE, c(1)], {"alpha": 0.5, "beta": 0.7, "bias": 1.5, "size": each(3, 5)}),
    ("lrn", [IMAGE, c(2, 3)], {"alpha": 0.5, "size": 3}),
    *(("normalize_l2", [given, axes], {"eps": each(1e-3, 0.5), "eps_mode": each("add", "max")})
      for given, axes in ((IMAGE, c(1)), (IMAGE, c(2, 3)), (ROWS, c(-1)))),
    ("mvn", [IMAGE], {"only": 2, "across_channels": BOTH, "normalize_variance": BOTH, "eps": 1e-3}),
    *(("mvn", [IMAGE, axes], {"only": 6, "normalize_variance": BOTH, "eps": 1e-2,
                             "eps_mode": each("inside_sqrt", "outside_sqrt")})
      for axes in (c(1, 2, 3), c(-1, -2), c(2))),
    ("group_normalization", [IMAGE, f(4), f(4)], {"num_groups": each(1, 2, 4), "epsilon": 1e-3}),
    ("grn", [IMAGE], {"bias": 0.5}),
    *((name, [IMAGE], {"axis": each(0, 1, 2, 3, -1, -2)}) for name in ("softmax", "log_softmax")),
    *((name, [IMAGE, n(axis)], {"exclusive": BOTH, "reverse": BOTH}) for name in ("cum_sum", "cumsum")
      for axis in (1, -1)),
    *(("topk", [IMAGE, n(2)], {"axis": axis, "mode": each("max", "min"), "sort": each("value", "index", "none"),
                              "index_element_type": each("i32", "i64"), "stable": False}) for axis in (1, -1)),
    ("topk", [IMAGE, n(2)], {"axis": 2, "mode": "max", "sort": each("value", "index"), "stable": True}),
    # shapes
    *(("reshape", [given, c(*pattern)], {"special_zero": BOTH}) for given, pattern in (
        (ROWS, (2, 48)), (ROWS, (-1, 8)), (ROWS, (2, 6, 2, 4)), (ROWS, (4, 3, 8)), (ROWS, (12, 8)))),
    *(("reshape", [given, c(*pattern)], {"special_zero": True}) for given, pattern in (
        (ROWS, (-1, 6, 8)), (ROWS, (0, -1)), (ROWS, (0, 0, 2, 4)), (ROWS, (0, 0, -1, 4)), (x(4, 6), (-1, 0)),
        (x(4, 6, 6), (-1, 0)), (x(4, 4, 6), (16, 0, -1)), (x(6, 4), (2, 0, 3)), (IMAGE, (0, 0, -1)),
        (IMAGE, (-1, 0, 7)), (x(6, 6), (2, 3, -1)), (x(8, 2, 3), (0, -1)), (x(4, 6, 2), (4, 3, 0, 2)))),
    *(("squeeze", [x(2, 1, 6, 1), axes], {"allow_axis_skip": BOTH}) for axes in (c(1), c(-1, 1), c(1, 2))),
    *(("squeeze", [x(2, 1, 6, 1)], {"axes": None, "allow_axis_skip": skip}) for skip in (False, True)),
    *(("unsqueeze", [ROWS, axes], {}) for axes in (c(0), c(-1, 1), c(2))),
    *(("transpose", [IMAGE, order], {}) for order in (c(0, 2, 3, 1), c(3, 1, 0, 2), c())),
    *(("concat", [[ROWS, ROWS, f(2, 6, 8)]], {"axis": axis}) for axis in (0, 1, 2, -1, -2)),
    *(("split", [IMAGE, n(axis)], {"num_splits": 2}) for axis in (0, 1, -3)),
    *(("variadic_split", [IMAGE, n(axis), lengths], {})
      for axis, lengths in ((2, c(4, 5)), (-1, c(3, -1)), (1, c(1, 3)))),
    *(("pad", [IMAGE, c(0, 1, 2, 0), c(0, 0, 1, 1)], {"pad_mode": mode, "arg_pad_value": value}) for mode, value in (
        ("constant", n(0.5, REAL)), ("constant", None), ("edge", None), ("reflect", None), ("symmetric", None))),
    ("pad", [IMAGE, c(0, 0, -1, 0), c(0, 0, 1, -2)], {"pad_mode": each("constant", "edge")}),
    *(("strided_slice", [IMAGE, c(*begin), c(*end), c(*step)], {
        "begin_mask": mask, "end_mask": mask, "new_axis_mask": new, "shrink_axis_mask": shrink, "ellipsis_mask": dots})
      for begin, end, step, mask, new, shrink, dots in (
        ((0, 1), (2, 3), (1, 2), [1, 0], [], [], []), ((0, 0), (2, 4), (1, -1), [1, 1], [], [], []),
        ((0, 0, 1), (0, 0, 8), (1, 1, 3), [1, 1, 0], [], [], []), ((0, 0), (0, 0), (1, 1), [1, 1], [1, 0], [], []),
        ((0, 2), (0, 3), (1, 1), [1, 0], [0, 0], [0, 1], []), ((0, 1), (0, 5), (1, 1), [0, 0], [], [], [1, 0]),
        ((-2, -9), (2, 2147483647), (1, 1), [0, 0], [], [], []))),
    *(("slice", [IMAGE, c(*start), c(*stop), c(*step)], {"axes": axes}) for start, stop, step, axes in (
        ((1,), (3,), (1,), c(1)), ((-1,), (-5,), (-2,), c(2)), ((0, 1), (2, 8), (1, 3), c(0, -2)),
        ((0, 1), (2, 3), (1, 1), None))),
    *(("slice_scatter", [IMAGE, x(2, 2, 9, 7), c(1), c(3), c(1)], {"axes": axes}) for axes in (c(1), c(-3))),
    *(("tile", [ROWS, c(*repeats)], {}) for repeats in ((2, 1, 3), (2,), (2, 1, 1, 2))),
    *(("broadcast", [given, c(*target)], {"axes_mapping": axes, "mode": mode.upper(), "broadcast_spec": mode.upper()})
      for given, target, axes, mode in (
        (x(6, 1), (2, 6, 8), None, "numpy"), (x(6), (2, 6, 8), c(1), "explicit"),
        (x(6, 1), (6, 8), c(0, 1), "explicit"), (x(2, 6, 8), (2, 6, 8), None, "numpy"))),
    *(("broadcast", [given, c(*target)], {"broadcast_spec": "BIDIRECTIONAL", "only": 3}) for given, target in (
        (x(2, 6, 1), (1, 8)), (x(2, 1, 8), (4, 1, 6, 1)), (x(6, 8), (1, 1)))),
    ("shape_of", [ROWS], {"output_type": each("i32", "i64")}),
    *(("depth_to_space", [x(2, 8, 4, 3)], {"mode": mode, "block_size": 2}) for mode in ("blocks_first", "depth_first")),
    *(("space_to_depth", [x(2, 2, 4, 6)], {"mode": mode, "block_size": 2}) for mode in ("blocks_first", "depth_first")),
    ("batch_to_space", [x(8, 2, 3, 5), c(1, 1, 2, 2), c(0, 0, 0, 1), c(0, 0, 1, 0)], {}),
    ("space_to_batch", [x(2, 2, 3, 5), c(1, 1, 2, 2), c(0, 0, 0, 1), c(0, 0, 1, 0)], {}),
    ("shuffle_channels", [x(2, 6, 4, 4)], {"axis": each(1, -3), "group": each(2, 3)}),
    ("reverse_sequence", [ROWS, c(2, 5)], {"batch_axis": 0, "seq_axis": 1}),
    ("roll", [ROWS, c(1, -2), c(0, -1)], {}),
    ("reorg_yolo", [x(2, 4, 6, 6)], {"stride": [2]}),
    ("extract_image_patches", [IMAGE], {"sizes": [3, 2], "strides": [2, 1], "rates": each([1, 1], [2, 1]),
                                        "auto_pad": each("same_upper", "same_lower", "valid")}),
    ("col2im", [x(2, 24, 30), c(7, 6), c(3, 2)], {"strides": [1, 1], "dilations": [1, 1], "pads_begin": [0, 0],
                                                "pads_end": [0, 1]}),
    # look-ups
    *(("gather", [IMAGE, indices, n(axis)], {"batch_dims": batch}) for indices, axis, batch in (
        (i(3, high=3), 1, 0), (i(2, 2, high=3), -2, 0), (c(0, 2), 3, 0), (n(1), 2, 0), (i(2, 3, high=3), 1, 1),
        (i(2, 3, high=3), 2, 1), (c(-1, 0), 1, 0), (i(2, 3, high=3), 2, -1))),
    ("gather_elements", [ROWS, i(2, 6, 8, high=5)], {"axis": each(1, -2)}),
    *(("gather_nd", [ROWS, i(2, 3, 1, high=most)], {"batch_dims": batch}) for most, batch in ((1, 0), (5, 1))),
    ("gather_tree", [x(4, 2, 3, low=0, high=3), x(4, 2, 3, low=0, high=2), c(4, 3, kind=REAL), n(2, REAL)], {}),
    ("scatter_update", [ROWS, c(1, 3), x(2, 2, 8), n(1)], {}),
    *(("scatter_elements_update", [ROWS, i(2, 2, 8, high=5), x(2, 2, 8), n(axis)], {
        "reduction": each("none", "sum", "prod", "min", "max", "mean"), "use_init_val": BOTH}) for axis in (1, -2)),
    ("scatter_nd_update", [ROWS, np.array([[0, 1], [1, 4]]), x(2, 8)], {
        "reduction": each("none", "sum", "sub", "prod", "min", "max")}),
    ("one_hot", [i(2, 6, high=3), n(4), n(1.5, REAL), n(-0.5, REAL)], {
        "axis": each(-1, 1), "negative_indices_mode": each("ignore_negative", "normalize")}),
    ("bucketize", [ROWS, c(-1, 0, 1, kind=REAL)], {"output_type": each("i32", "i64"), "with_right_bound": BOTH}),
    ("search_sorted", [np.sort(f(6, 8)), x(6, 4)], {"right_mode": BOTH}),
    ("embedding_bag_offsets_sum", [x(8, 6), i(5, high=7), c(0, 2, 4, kind=np.int32)], {
        "default_index": each(None, n(1, np.int32)), "per_sample_weights": None}),
    ("embedding_bag_offsets", [x(8, 6), i(5, high=7), c(0, 2, 4, kind=np.int32)], {"reduction": each("sum", "mean")}),
    ("embedding_bag_packed_sum", [x(8, 6), i(3, 2, high=7)], {"per_sample_weights": each(None, f(3, 2))}),
    ("embedding_bag_packed", [x(8, 6), i(3, 2, high=7)], {"reduction": each("sum", "mean")}),
    ("embedding_segments_sum", [x(8, 6), i(5, high=7), c(0, 0, 1, 2, 2, kind=np.int32), n(4, np.int32)], {
        "default_index": n(1, np.int32)}),
    ("segment_max", [x(6, 4), c(0, 0, 1, 1, 3, 3)], {"num_segments": n(5), "fill_mode": each("ZERO", "LOWEST")}),
    ("sparse_fill_empty_rows", [x(3), c(4, 5), np.array([[0, 1], [0, 2], [2, 3]]), n(1.5, REAL)], {}),
    ("non_zero", [i(4, 6, high=1)], {"output_type": each("i32", "i64")}),
    ("unique", [i(4, 6, high=4)], {"axis": each(None, n(0), n(1)), "sorted": BOTH,
                                  "index_element_type": each("i32", "i64"), "count_element_type": "i64"}),
    ("range", [n(1), n(9), n(2)], {"output_type": each("i64", "f32")}),
    ("eye", [n(4), n(6), n(1)], {"output_type": each("f32", "i32"), "batch_shape": each(None, c(2))}),
    # images
    *(("interpolate", [x(1, 4, 6, 5), c(9, 8), c(1.5, 1.6, kind=REAL)], {
        **CUBES, "shape_calculation_mode": mode, "axes": c(2, 3), "only": (4, 10)}) for mode in ("sizes", "scales")),
    *(("interpolate", [x(1, 4, 6, 5), to], {**CUBES, "shape_calculation_mode": mode, "axes": axes, "only": 11})
      for mode, to, axes in (("sizes", c(9, 8), c(2, 3)), ("scales", c(1.5, 1.6, kind=REAL), c(3, 2)))),
    *(("interpolate", [x(1, 4, 6, 5), to], {
        "mode": mode, "shape_calculation_mode": "scales", "axes": axes, "pads_begin": each([0, 0, 0, 0], [0, 0, 1, 0],
        [0, 0, 0, 2]), "pads_end": each([0, 0, 0, 0], [0, 1, 0, 1]), "only": 11})
      for mode, to, axes in (("nearest", c(2.0, kind=REAL), c(2)), ("linear_onnx", c(2.0, 1.5, kind=REAL), c(2, 3)))),
    ("interpolate", [x(1, 4, 6, 5), c(9, 8)], {
        "mode": each("bilinear_pillow", "bicubic_pillow"), "shape_calculation_mode": "sizes", "axes": c(2, 3),
        "only": 11}),
    ("interpolate", [x(1, 4, 6, 5), c(9, 8)], {"attrs": each(*(
        {"axes": [2, 3], "mode": mode, "align_corners": corners, "antialias": False, "pads_begin": [0], "pads_end": [0]}
        for mode in ("nearest", "linear") for corners in (False, True))), "only": 1}),
    ("grid_sample", [IMAGE, x(2, 5, 6, 2, low=-1.2, high=1.2)], {"attributes": each(*(
        {"mode": mode, "padding_mode": pads, "align_corners": corners} for mode in ("bilinear", "bicubic", "nearest")
        for pads in ("zeros", "border", "reflection") for corners in (False, True)))}),
    ("roi_align", [IMAGE, np.array([[0, 0, 4, 5], [1, 1, 6, 6]], REAL), c(0, 1)], {
        "pooled_h": 3, "pooled_w": 2, "sampling_ratio": 2, "spatial_scale": 0.9, "mode": each("avg", "max"),
        "aligned_mode": each("asymmetric", "half_pixel_for_nn", "half_pixel")}),
    ("roi_align_rotated", [IMAGE, np.array([[2, 2, 4, 5, 0.2], [1, 1, 6, 6, 0.4]], REAL), c(0, 1)], {
        "pooled_h": 3, "pooled_w": 2, "sampling_ratio": 2, "spatial_scale": 0.9, "clockwise_mode": BOTH}),
    ("roi_pooling", [IMAGE, np.array([[0, 0, 0, 4, 5], [1, 1, 1, 6, 6]], REAL)], {
        "output_size": [3, 2], "spatial_scale": 0.9, "method": each("max", "bilinear")}),
    ("psroi_pooling", [x(1, 8, 9, 7), np.array([[0, 0, 0, 4, 5], [0, 1, 1, 6, 6]], REAL)], {
        "output_dim": 2, "group_size": 2, "spatial_scale": 0.9, "spatial_bins_x": 1, "spatial_bins_y": 1,
        "mode": "average"}),
    ("psroi_pooling", [x(1, 8, 9, 7), np.array([[0, 0, 0, .4, .5], [0, .1, .1, .6, .6]], REAL)], {
        "output_dim": 2, "group_size": 2, "spatial_scale": 1.0, "spatial_bins_x": 2, "spatial_bins_y": 2,
        "mode": "bilinear"}),
    ("deformable_psroi_pooling", [x(1, 8, 9, 7), np.array([[0, 0, 0, 4, 5], [0, 1, 1, 6, 6]], REAL)], {
        "output_dim": 2, "spatial_scale": 0.9, "group_size": 2, "spatial_bins_x": 2, "spatial_bins_y": 2,
        "part_size": 2, "trans_std": 0.1, "offsets": each(None, x(2, 2, 2, 2))}),
    ("region_yolo", [x(1, 21, 6, 6)], {"coords": 4, "classes": 2, "num": 3, "do_softmax": BOTH, "mask": [0, 1, 2],
                                      "axis": 1, "end_axis": 3, "anchors": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}),
    ("prior_box", [c(4, 6), c(32, 48)], {"attrs": each(PRIOR, {**PRIOR, "clip": True, "offset": 0.2, "flip": False})}),
    ("prior_box_clustered", [c(4, 6), c(32, 48)], {"attrs": {"width": [8.0], "height": [6.0], "clip": True, "step": 8.0,
                                                            "offset": 0.5, "variance": [0.1]}}),
    *((f"{stem}_to_{order}", [Given((1, 12, 6, 1), "u8", 0, 255)], {}) for stem in ("nv12", "i420")
      for order in ("rgb", "bgr")),
    # detection
    ("non_max_suppression", [BOXES, x(1, 2, 6, low=0.0, high=1.0), n(3), n(0.5, REAL), n(0.1, REAL)], NMS),
    ("non_max_suppression", [BOXES, x(1, 2, 6, low=0.0, high=1.0), n(3), n(0.5, REAL), n(0.1, REAL)], {
        "soft_nms_sigma": n(0.5, REAL), "only": (5, 9)}),
    ("nms_rotated", [np.concatenate([BOXES + 1, f(1, 6, 1)], 2), x(1, 2, 6, low=0.0, high=1.0), n(3), n(0.5, REAL),
                     n(0.1, REAL)], {"sort_result_descending": BOTH, "output_type": each("i32", "i64"),
                                     "clockwise": BOTH}),
    ("matrix_nms", [BOXES, x(1, 2, 6, low=0.0, high=1.0)], MATRIX_NMS),
    ("multiclass_nms", [BOXES, x(1, 2, 6, low=0.0, high=1.0)], {**MATRIX_NMS, "iou_threshold": 0.5}),
    ("detection_output", [x(1, 12), x(1, 6, low=0.1, high=0.9), np.abs(f(1, 2, 12))], {"attrs": each(
        *({**DETECTION, "num_classes": 2, "code_type": code, "share_location": True, "normalized": True}
          for code in ("caffe.PriorBoxParameter.CORNER", "caffe.PriorBoxParameter.CENTER_SIZE")))}),
    ("proposal", [x(1, 6, 4, 4, low=0.0, high=1.0), x(1, 12, 4, 4, low=-0.2, high=0.2), c(64, 64, 1, kind=REAL)], {
        "attrs": {**{key: np.uint32(value) for key, value in PROPOSAL.items()}, "nms_thresh": REAL(0.7),
                  "ratio": np.array([0.5, 1.0, 2.0], REAL), "scale": np.array([2.0], REAL)}}),
    ("generate_proposals", [np.array([[32, 32, 1]], REAL), f(4, 4, 3, 4) + np.array([0, 0, 9, 9], REAL), x(1, 12, 4, 4),
                            x(1, 3, 4, 4, low=0.0, high=1.0)], {
        "min_size": 1.0, "nms_threshold": 0.7, "pre_nms_count": 14, "post_nms_count": 6, "normalized": BOTH,
        "roi_num_type": each("i32", "i64")}),
    ("ctc_greedy_decoder", [x(5, 2, 4), np.ones((5, 2), REAL)], {"merge_repeated": BOTH}),
    ("ctc_greedy_decoder_seq_len", [x(2, 5, 4), c(5, 3, kind=np.int32)], {
        "merge_repeated": BOTH, "classes_index_type": each("i32", "i64"), "sequence_length_type": each("i32", "i64")}),
    ("ctc_loss", [x(2, 5, 4), c(5, 4, kind=np.int32), np.ones((2, 5), np.int32), c(2, 3, kind=np.int32)], {
        "preprocess_collapse_repeated": BOTH, "ctc_merge_repeated": BOTH, "unique": BOTH}),
    # recurrent, signals, attention, the rest
    *(("lstm_cell", [x(2, 4), x(2, 8), x(2, 8), f(32, 4), f(32, 8), f(32)], {**CELL, "activations": activations})
      for activations in (None, ["sigmoid", "relu", "tanh"])),
    ("gru_cell", [x(2, 4), x(2, 8), f(24, 4), f(24, 8), f(24)], {**CELL, "linear_before_reset": False}),
    ("gru_cell", [x(2, 4), x(2, 8), f(24, 4), f(24, 8), f(32)], {**CELL, "linear_before_reset": True}),
    ("rnn_cell", [x(2, 4), x(2, 8), f(8, 4), f(8, 8), f(8)], {**CELL, "activations": each(["tanh"], ["relu"]),
                                                             "activations_alpha": [], "activations_beta": []}),
    *((f"{kind}_sequence", [x(2, 5, 4), *[x(2, d, 8)] * states, c(5, 3), f(d, rows, 4), f(d, rows, 8), f(d, bias)], {
        **CELL, "direction": direction, **more})
      for kind, states, rows, bias, more in (("lstm", 2, 32, 32, {}), ("rnn", 1, 8, 8, {}), ("gru", 1, 24, 24, {}),
                                           ("gru", 1, 24, 32, {"linear_before_reset": True}))
      for direction, d in (("forward", 1), ("reverse", 1), ("bidirectional", 2))),
    ("dft", [x(2, 6, 8, 2), c(1, 2)], {"signal_size": each(None, c(4, 8))}),
    ("idft", [x(2, 6, 8, 2), c(0, 2)], {"signal_size": each(None, c(4, 8))}),
    ("rdft", [ROWS, c(1, 2)], {"signal_size": each(None, c(4, 8))}),
    ("irdft", [x(2, 6, 5, 2), c(1, 2)], {"signal_size": each(None, c(4, 6))}),
    ("stft", [x(2, 48), np.hanning(8).astype(REAL), n(16), n(8)], {"transpose_frames": BOTH}),
    ("istft", [x(2, 9, 5, 2), np.hanning(16).astype(REAL) + 0.1, n(16), n(8)], {
        "center": BOTH, "normalized": BOTH, "signal_length": each(None, n(40))}),
    *(("einsum", [list(inputs)], {"equation": equation}) for inputs, equation in (
        ((ROWS, x(2, 8, 4)), "bij,bjk->bik"), ((ROWS,), "bij->jib"), ((x(6, 8), x(8, 4)), "ij,jk->ki"))),
    *(("scaled_dot_product_attention", [x(2, 4, 6, 8), x(2, kv, 5, 8), x(2, kv, 5, 8)], {
        "attention_mask": mask, "scale": scale, "causal": BOTH})
      for kv, mask, scale in ((4, None, None), (4, f(6, 5), None), (4, f(2, 1, 6, 5), n(0.2, REAL)), (1, None, None))),
    ("inverse", [np.eye(6, dtype=REAL) * 3 + f(2, 6, 6)], {"adjoint": BOTH}),
    ("random_uniform", [c(2, 6, 8), n(0.0, REAL), n(1.0, REAL)], {
        "output_type": "f32", "global_seed": 3, "op_seed": 5, "alignment": each("tensorflow", "pytorch")}),
    ("multinomial", [x(2, 8, low=0.1, high=1.0), n(3)], {"convert_type": each("i32", "i64"), "with_replacement": BOTH,
                                                       "log_probs": BOTH, "global_seed": 3, "op_seed": 5}),
]  # fmt: skip

NOT_IN_TABLE = {
    **dict.fromkeys("parameter constant result".split(), "no computation"),
    **dict.fromkeys("assign read_value".split(), "a pair, in tests of state"),
    **dict.fromkeys("if_op loop tensor_iterator".split(), "bodies, in tests of their own"),
    **dict.fromkeys("string_tensor_pack string_tensor_unpack".split(), "strings, which the CPU plugin hands on alone"),
}
"""Functions of the opsets without a row, and why."""


@dataclass(frozen=True)
class Case:
    """One op with one value for every attribute: ``made`` by a function of an opset from the nodes of its inputs."""

    name: str
    opset: int
    number: int
    given: tuple[Given, ...]
    make: Callable[[Sequence[Any]], Any]
    text: str


@cache
def versions() -> Mapping[str, Sequence[tuple[int, Callable[..., Any]]]]:
    """By name the functions of the opsets that make nodes, each under the first opset that has it."""
    found: dict[str, list[tuple[int, Callable[..., Any]]]] = {}
    for number in range(1, NUM_OPSETS + 1):
        module = importlib.import_module(f"openvino.opset{number}")
        for name in (name for name in dir(module) if name[0] != "_" and callable(getattr(module, name))):
            function = getattr(module, name)
            if function not in [known for _, known in found.get(name, [])]:
                found.setdefault(name, []).append((number, function))
    return found


def cases(name: str) -> Iterator[Case]:
    """Those of a function's rows, for every version of it."""
    numbers = itertools.count()
    for _, inputs, given in (row for row in TABLE if row[0] == name):
        only = given.get("only", ())
        for opset, function in versions()[name]:
            if only and opset not in (only if isinstance(only, tuple) else (only,)):
                continue
            known = inspect.signature(inspect.unwrap(function)).parameters
            own = {key: value for key, value in given.items() if key in known}
            for values in _combinations(own):
                yield _case(name, opset, next(numbers), function, inputs, values)


def _combinations(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    ranges = {key: value if isinstance(value, Each) else (value,) for key, value in given.items()}
    if np.prod([len(values) for values in ranges.values()]) <= MOST_COMBINATIONS:
        return [dict(zip(ranges, values, strict=True)) for values in itertools.product(*ranges.values())]
    base = {key: values[0] for key, values in ranges.items()}
    return [base, *({**base, key: value} for key, values in ranges.items() for value in values[1:])]


def _case(
    name: str, opset: int, number: int, function: Callable[..., Any], inputs: list[Any], values: Mapping[str, Any]
) -> Case:
    flat = [each for entry in (*inputs, *values.values()) for each in (entry if isinstance(entry, list) else [entry])]
    given = tuple(each for each in flat if isinstance(each, Given))

    def make(nodes: Sequence[Any]) -> Any:
        left = iter(nodes)

        def node(entry: Any) -> Any:
            if isinstance(entry, list) and any(isinstance(each, Given) for each in entry):
                return [node(each) for each in entry]
            if isinstance(entry, Given):
                return next(left)
            return opset13.constant(entry) if isinstance(entry, np.ndarray) else entry

        positional = [node(entry) for entry in inputs]
        named = {key: node(value) for key, value in values.items() if value is not None}
        return function(*positional, **named)

    shown = ", ".join(f"{key}={_shown(value)}" for key, value in values.items() if value is not None)
    shapes = " ".join(str(list(each.shape)) for each in given)
    return Case(name, opset, number, given, make, f"{name} of opset {opset} ({shapes}; {shown})")


def _shown(value: Any) -> str:
    return f"array {value.tolist()}" if isinstance(value, np.ndarray) and value.size < 5 else str(value)[:60]


def models_of(case: Case) -> dict[str, ov.Model]:
    """The op alone, and between two products where it reads real numbers of two axes or more.

    Raises RuntimeError where OpenVINO makes no such op.
    """
    found = {"alone": _model(case, is_between=False)}
    if any(given.kind == "f32" and len(given.shape) > 1 for given in case.given):
        found["between"] = _model(case, is_between=True)
    return found


def _model(case: Case, *, is_between: bool) -> ov.Model:
    parameters = [opset13.parameter(list(each.shape), getattr(ov.Type, each.kind)) for each in case.given]
    nodes: list[Any] = list(parameters)
    for k, given in enumerate(case.given if is_between else ()):
        if given.kind == "f32" and len(given.shape) > 1:
            product = _product(nodes[k], given.shape)
            bounded = opset13.clamp(product, given.low, given.high)
            nodes[k] = product if (given.low, given.high) == (-2.0, 2.0) else bounded
    made = case.make(nodes)
    outputs = [each for port in made.outputs() for each in ([_behind(port)] if is_between else [port])]
    return ov.Model([opset13.result(each) for each in outputs], parameters, case.name)


def _product(value: Any, shape: Sequence[int]) -> Any:
    """A convolution of four axes, else a product of matrices, neither of which changes the sizes."""
    axis = 1 if len(shape) == 4 else -1
    weights = f(shape[axis], shape[axis]) / np.float32(np.sqrt(shape[axis] / 3))
    if len(shape) == 4:
        return opset13.convolution(value, weights[..., None, None], [1, 1], [0, 0], [0, 0], [1, 1])
    return opset13.matmul(value, opset13.constant(weights), False, False)


def _behind(port: Any) -> Any:
    """A product of an output, as real numbers; the output itself where the size of its last axis is not known."""
    shape = port.get_partial_shape()
    if shape.is_dynamic or not 2 <= len(shape) <= 5:
        return port
    real = port if port.get_element_type() == ov.Type.f32 else opset13.convert(port, "f32").output(0)
    return _product(real, tuple(shape.to_shape()))


def inputs_of(case: Case) -> list[np.ndarray[Any, Any]]:
    """The same numbers every time."""
    rng = np.random.default_rng(list(map(ord, case.name)))
    found = []
    for given in case.given:
        kind = getattr(ov.Type, given.kind).to_dtype()
        real = np.issubdtype(kind, np.floating)
        drawn = rng.uniform if real else lambda low, high, shape: rng.integers(int(low), int(high) + 1, shape)
        found.append(np.asarray(drawn(given.low, given.high, given.shape)).astype(kind))
    return found
