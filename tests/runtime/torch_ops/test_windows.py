"""Convolutions and poolings of the torch library against OpenVINO's CPU device, with odd windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from openvino import opset1, opset8, opset14
from openvino import opset13 as ops

Agrees = Callable[..., None]
Numbers = Callable[..., NDArray[np.float32]]

PADS = st.lists(st.integers(0, 2), min_size=2, max_size=2)
STEPS = st.lists(st.integers(1, 3), min_size=2, max_size=2)
AUTO = st.sampled_from(["explicit", "same_upper", "same_lower", "valid"])
SOME = settings(max_examples=25, suppress_health_check=[HealthCheck.filter_too_much])


@SOME
@given(strides=STEPS, dilations=STEPS, begin=PADS, end=PADS, auto=AUTO, kernel=STEPS)
def test_convolution_agrees_whatever_its_window(
    agrees: Agrees, numbers: Numbers, auto: str, kernel: list[int], **window: list[int]
) -> None:
    weights = numbers(3, 2, *kernel, seed=1)
    order = [window[name] for name in ("strides", "begin", "end", "dilations")]
    agrees(lambda x: ops.convolution(x, weights, *order, auto), numbers(1, 2, 9, 8))


@pytest.mark.parametrize(("sizes", "kernel"), [((11,), (3,)), ((5, 6, 7), (2, 3, 1))])
def test_convolution_of_one_and_three_axes_agrees(
    agrees: Agrees, numbers: Numbers, sizes: tuple[int, ...], kernel: tuple[int, ...]
) -> None:
    weights, ones = numbers(4, 2, *kernel, seed=1), [1] * len(sizes)
    agrees(lambda x: ops.convolution(x, weights, ones, ones, [0] * len(sizes), ones), numbers(2, 2, *sizes))


@pytest.mark.parametrize("groups", [2, 4])
def test_group_convolution_agrees(agrees: Agrees, numbers: Numbers, groups: int) -> None:
    weights = numbers(groups, 3, 4 // groups, 3, 2, seed=1)
    agrees(lambda x: ops.group_convolution(x, weights, [2, 1], [0, 1], [2, 0], [1, 2]), numbers(1, 4, 9, 8))


@SOME
@given(strides=STEPS, dilations=STEPS, begin=PADS, end=PADS, extra=PADS)
def test_transposed_convolution_agrees_whatever_its_window(
    agrees: Agrees, numbers: Numbers, **window: list[int]
) -> None:
    weights, extra = numbers(2, 3, 3, 2, seed=1), window.pop("extra")
    assume(all(e < s for e, s in zip(extra, window["strides"], strict=True)))
    sides = zip((3, 2), window["dilations"], window["begin"], window["end"], strict=True)
    assume(all((k - 1) * step + 1 + 3 - b - e > 0 for k, step, b, e in sides))
    renamed = {
        "strides": window["strides"],
        "dilations": window["dilations"],
        "pads_begin": window["begin"],
        "pads_end": window["end"],
    }
    agrees(lambda x: ops.convolution_backprop_data(x, weights, output_padding=extra, **renamed), numbers(1, 2, 4, 4))


def test_transposed_group_convolution_agrees(agrees: Agrees, numbers: Numbers) -> None:
    weights = numbers(2, 1, 3, 3, 3, seed=1)
    agrees(lambda x: ops.group_convolution_backprop_data(x, weights, [2, 2]), numbers(1, 2, 4, 4))


def _pool_window(window: dict[str, list[int]]) -> dict[str, Any]:
    """OpenVINO refuses padding as wide as the window; windows without any element have no value."""
    for axis, size in enumerate((9, 8)):
        k, b, e = (window[name][axis] for name in ("kernel", "begin", "end"))
        assume(b < k and e < k)
        step, wide = window["strides"][axis], (k - 1) * window.get("dilations", [1, 1])[axis] + 1
        assume(-(-(size + b + e - wide) // step) * step < size + b)  # where the last window starts, rounded up
    return {"pads_begin": window["begin"], "pads_end": window["end"], "kernel_shape": window["kernel"]}


@SOME
@given(
    strides=STEPS, dilations=st.lists(st.integers(1, 2), min_size=2, max_size=2), begin=PADS, end=PADS, kernel=STEPS,
    rounding=st.sampled_from(["floor", "ceil", "ceil_torch"]), axis=st.integers(-3, 3),
)  # fmt: skip
def test_max_pool_agrees_in_values_and_indices(
    agrees: Agrees, numbers: Numbers, rounding: str, axis: int, **window: list[int]
) -> None:
    common = _pool_window(window)
    steps = window["strides"], window["dilations"]
    agrees(
        lambda x: opset14.max_pool(x, *steps, **common, rounding_type=rounding, axis=axis, index_element_type="i32"),
        numbers(2, 3, 9, 8),
    )


@pytest.mark.parametrize("auto", ["same_upper", "same_lower", "valid"])
def test_old_max_pool_of_one_output_agrees(agrees: Agrees, numbers: Numbers, auto: str) -> None:
    agrees(lambda x: opset1.max_pool(x, [2, 2], [0, 0], [0, 0], [3, 2], "floor", auto), numbers(1, 2, 8, 7))


@pytest.mark.parametrize("sizes", [(11,), (4, 5, 6)])
def test_max_pool_of_one_and_three_axes_agrees(agrees: Agrees, numbers: Numbers, sizes: tuple[int, ...]) -> None:
    ones, twos = [1] * len(sizes), [2] * len(sizes)
    agrees(lambda x: opset8.max_pool(x, twos, ones, ones, ones, twos), numbers(1, 2, *sizes))


@SOME
@given(
    strides=STEPS, begin=PADS, end=PADS, kernel=STEPS, exclude=st.booleans(),
    rounding=st.sampled_from(["floor", "ceil", "ceil_torch"]),
)  # fmt: skip
def test_avg_pool_agrees_with_and_without_its_padding(
    agrees: Agrees, numbers: Numbers, rounding: str, exclude: bool, **window: list[int]
) -> None:
    common = _pool_window(window)
    agrees(
        lambda x: opset14.avg_pool(x, window["strides"], **common, exclude_pad=exclude, rounding_type=rounding),
        numbers(1, 2, 9, 8),
    )


def test_avg_pool_of_same_padding_agrees(agrees: Agrees, numbers: Numbers) -> None:
    def build(x: ov.Node) -> ov.Node:
        return opset1.avg_pool(x, [2, 2], [0, 0], [0, 0], [3, 3], True, "floor", "same_upper")

    agrees(build, numbers(1, 2, 8, 7))


@pytest.mark.parametrize("exclude", [True, False])
@pytest.mark.parametrize("auto", ["valid", "same_upper"])
def test_avg_pool_that_rounds_up_divides_as_openvino_whatever_its_auto_pad(
    agrees: Agrees, numbers: Numbers, auto: str, exclude: bool
) -> None:
    agrees(lambda x: opset14.avg_pool(x, [2, 2], [0, 0], [0, 0], [3, 3], exclude, "ceil", auto), numbers(1, 2, 9, 10))
