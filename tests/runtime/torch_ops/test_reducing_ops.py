"""Products, reductions, normalisations, attention and resampling, against OpenVINO's CPU device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray
from openvino import opset1, opset2, opset11
from openvino import opset13 as ops
from openvino.utils.node_factory import NodeFactory

from hsdag.runtime.torch_ops import build_op

Agrees = Callable[..., None]
Numbers = Callable[..., NDArray[np.float32]]


@pytest.mark.parametrize(
    ("a", "b", "turn_a", "turn_b"),
    [
        ((3, 4), (4, 5), False, False),
        ((4, 3), (5, 4), True, True),
        ((4,), (4, 5), False, False),
        ((4,), (5, 4), True, True),
        ((2, 3, 4), (4,), False, False),
        ((4,), (4,), True, False),
        ((2, 1, 4, 3), (6, 4, 5), True, False),
    ],
)
def test_matmul_agrees(
    agrees: Agrees, numbers: Numbers, a: tuple[int, ...], b: tuple[int, ...], turn_a: bool, turn_b: bool
) -> None:
    agrees(lambda x, y: ops.matmul(x, y, turn_a, turn_b), numbers(*a), numbers(*b, seed=1))


def test_einsum_agrees(agrees: Agrees, numbers: Numbers) -> None:
    agrees(lambda x, y: ops.einsum([x, y], "abc,bd->adc"), numbers(2, 3, 4), numbers(3, 5, seed=1))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("axes", [[1], [0, -1], [0, 1, 2]])
@pytest.mark.parametrize("name", ["mean", "sum", "max", "min", "prod", "l1", "l2"])
def test_reduction_agrees(agrees: Agrees, numbers: Numbers, name: str, axes: list[int], keep: bool) -> None:
    agrees(lambda x: getattr(ops, f"reduce_{name}")(x, axes, keep), numbers(2, 3, 4))


@pytest.mark.parametrize("name", ["mean", "sum", "max", "min", "prod"])
def test_reduction_of_integers_agrees(agrees: Agrees, name: str) -> None:
    x = np.random.default_rng(0).integers(1, 9, (2, 3, 4)).astype(np.int32)
    agrees(lambda p: getattr(ops, f"reduce_{name}")(p, [0, 2], False), x)


def test_reduction_over_no_axes_changes_nothing(numbers: Numbers) -> None:
    """As the op is defined; OpenVINO's CPU device refuses it."""
    x = torch.from_numpy(numbers(2, 3))
    build = build_op(ops.reduce_sum(ops.parameter([2, 3], np.float32), np.array([], np.int64), False))
    assert torch.equal(build([x])[0], x)


@pytest.mark.parametrize("name", ["and", "or"])
def test_logical_reduction_agrees(agrees: Agrees, name: str) -> None:
    x = np.array([[True, True], [True, False], [False, False]])
    agrees(lambda p: getattr(ops, f"reduce_logical_{name}")(p, [1], False), x)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: ops.softmax(x, -2),
        lambda x: opset1.softmax(x, 1),
        lambda x: ops.log_softmax(x, 2),
        lambda x: ops.mvn(x, [2, 3], True, 1e-5, "inside_sqrt"),
        lambda x: ops.mvn(x, [-1], True, 1e-2, "outside_sqrt"),
        lambda x: ops.mvn(x, [1], True, 1e-5, "inside_sqrt"),
        lambda x: ops.mvn(x, [2, 3], False, 1e-5, "inside_sqrt"),
        lambda x: opset2.mvn(x, True, True, 1e-3),
        lambda x: opset2.mvn(x, False, True, 1e-3),
        lambda x: ops.normalize_l2(x, [1], 1e-2, "add"),
        lambda x: ops.normalize_l2(x, [1, 2, 3], 9.0, "max"),
        lambda x: ops.lrn(x, [1], 2.0, 0.75, 1.0, 3),
        lambda x: ops.lrn(x, [2, 3], 2.0, 0.75, 1.0, 3),
        lambda x: ops.lrn(x, [1], 2.0, 0.75, 1.0, 4),
    ],
    ids=(
        "softmax softmax1 log_softmax mvn mvn_outside mvn_channels mvn_mean mvn2_across mvn2 "
        "l2_add l2_max lrn lrn_plane lrn_even"
    ).split(),
)
def test_normalisation_agrees(agrees: Agrees, numbers: Numbers, build: Callable[[ov.Node], ov.Node]) -> None:
    agrees(build, numbers(2, 6, 5, 4))


@pytest.mark.parametrize("opset", [opset1, ops])
def test_batch_norm_agrees(agrees: Agrees, numbers: Numbers, opset: object) -> None:
    mean, scale, shift = (numbers(3, seed=seed) for seed in (1, 2, 3))
    variance = np.abs(numbers(3, seed=4)) + 0.1
    build = opset.batch_norm_inference  # type: ignore[attr-defined]
    agrees(lambda x: build(x, scale, shift, mean, variance, 1e-3), numbers(2, 3, 4, 5))


def test_group_norm_agrees(agrees: Agrees, numbers: Numbers) -> None:
    agrees(lambda x: ops.group_normalization(x, numbers(6, seed=1), numbers(6, seed=2), 3, 1e-3), numbers(2, 6, 4, 5))


@pytest.mark.parametrize("kind", ["plain", "causal", "bias", "shared_bias", "seen", "scale"])
def test_attention_agrees(agrees: Agrees, numbers: Numbers, kind: str) -> None:
    query, key, value = numbers(2, 3, 5, 4), numbers(2, 3, 7, 4, seed=1), numbers(2, 3, 7, 6, seed=2)
    masks = {
        "bias": numbers(2, 3, 5, 7, seed=3),
        "shared_bias": numbers(1, 1, 1, 7, seed=3),
        "seen": np.random.default_rng(0).random((5, 7)) < 0.7,
        "scale": numbers(5, 7, seed=3),
    }

    def build(*inputs: ov.Node) -> ov.Node:
        scale = {"scale": ops.constant(np.float32(0.3))} if kind == "scale" else {}
        return ops.scaled_dot_product_attention(*inputs, causal=kind == "causal", **scale)

    agrees(build, query, key, value, *([masks[kind]] if kind in masks else []))


@pytest.mark.parametrize(
    "places", ["half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn", "align_corners"]
)
@pytest.mark.parametrize("sizes", [[7, 9], [3, 2]])
@pytest.mark.parametrize("mode", ["nearest", "linear_onnx", "linear", "cubic"])
def test_interpolate_agrees(agrees: Agrees, numbers: Numbers, mode: str, sizes: list[int], places: str) -> None:
    agrees(
        lambda x: opset11.interpolate(x, sizes, mode, "sizes", None, None, places, axes=[2, 3]),
        numbers(1, 2, 4, 6),
    )


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple"])
@pytest.mark.parametrize("sizes", [[9, 6], [2, 4]])
def test_nearest_agrees_in_every_rounding(agrees: Agrees, numbers: Numbers, sizes: list[int], rounding: str) -> None:
    agrees(
        lambda x: opset11.interpolate(x, sizes, "nearest", "sizes", None, None, "asymmetric", rounding, axes=[2, 3]),
        numbers(1, 2, 4, 6),
    )


def test_old_interpolate_by_scales_agrees(agrees: Agrees, numbers: Numbers) -> None:
    attributes = {"mode": "linear_onnx", "shape_calculation_mode": "scales", "pads_begin": [0], "pads_end": [0]}

    def build(x: ov.Node) -> ov.Node:
        given = (np.array([10, 9]), np.array([2.5, 1.5], np.float32), np.array([2, 3]))
        operands = [x.output(0), *(ops.constant(value).output(0) for value in given)]
        return NodeFactory("opset4").create("Interpolate", operands, attributes)

    agrees(build, numbers(1, 2, 4, 6))


def test_lrn_adds_its_bias_as_the_op_is_defined() -> None:
    """OpenVINO's CPU device takes 1 whatever the bias. One channel: x / (bias + alpha / size * x^2)^beta."""
    lrn = build_op(ops.lrn(ops.parameter([1, 1, 2], np.float32), np.array([1]), 3.0, 0.5, 4.0, 3))
    (result,) = lrn([torch.tensor([[[1.0, 2.0]]])])
    torch.testing.assert_close(result, torch.tensor([[[1 / 5**0.5, 2 / 8**0.5]]]))


@pytest.mark.parametrize(
    ("dtype", "values"),
    [(np.uint8, [[200, 200, 100], [1, 2, 2]]), (np.int8, [[100, 100, 100], [-100, -90, -1], [-1, -2, -2]])],
)
def test_a_sum_of_bytes_stops_at_the_end_of_its_range(
    agrees: Agrees, dtype: type[np.integer], values: list[list[int]]
) -> None:
    agrees(lambda x: ops.reduce_sum(x, [1], False), np.array(values, dtype))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_mean_of_bytes_is_their_mean(dtype: type[np.integer]) -> None:
    """OpenVINO's CPU device lets the sum stop at the end of the range first."""
    values = np.array([[100, 120, 110, 1], [60, 61, 62, 62]], dtype)
    mean = build_op(ops.reduce_mean(ops.parameter([2, 4], dtype), np.array([1]), False))
    (found,) = mean([torch.from_numpy(values), torch.tensor([1])])
    assert found.tolist() == [82, 61]
    assert found.dtype == torch.from_numpy(values).dtype
