"""Elementwise ops of the torch library against OpenVINO's CPU device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray
from openvino import opset10, opset13
from openvino import opset13 as ops

from hsdag.runtime.torch_ops import build_op

Agrees = Callable[..., None]
Numbers = Callable[..., NDArray[np.float32]]

UNARY = ("relu", "sigmoid", "tanh", "exp", "erf", "abs", "negative", "floor", "ceiling", "sign", "hswish", "hsigmoid",
         "softplus", "softsign", "mish", "sin", "cos", "tan", "atan", "sinh", "cosh", "asinh")  # fmt: skip
LIMITED = ("asin", "acos", "atanh")
POSITIVE = ("log", "sqrt")
ARITHMETIC = ("add", "subtract", "multiply", "maximum", "minimum", "squared_difference")
COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")


@pytest.mark.parametrize("name", UNARY)
def test_function_agrees(agrees: Agrees, numbers: Numbers, name: str) -> None:
    agrees(getattr(ops, name), numbers(2, 3, 5, scale=2.0))


@pytest.mark.parametrize("name", LIMITED)
def test_function_on_the_unit_interval_agrees(agrees: Agrees, name: str) -> None:
    agrees(getattr(ops, name), np.linspace(-0.9, 0.9, 17, dtype=np.float32))


@pytest.mark.parametrize("name", [*POSITIVE, "acosh"])
def test_function_of_large_positive_numbers_agrees(agrees: Agrees, name: str) -> None:
    agrees(getattr(ops, name), np.geomspace(1.0, 1e6, 17, dtype=np.float32))


@pytest.mark.parametrize("name", POSITIVE)
def test_function_of_small_positive_numbers_agrees(agrees: Agrees, name: str) -> None:
    agrees(getattr(ops, name), np.geomspace(1e-6, 1.0, 17, dtype=np.float32))


@pytest.mark.parametrize(
    "build",
    [
        lambda x: ops.gelu(x, "erf"),
        lambda x: ops.gelu(x, "tanh"),
        lambda x: ops.elu(x, 0.7),
        lambda x: ops.clamp(x, -0.5, 0.8),
        lambda x: ops.swish(x),
        lambda x: ops.swish(x, np.float32(1.7)),
        lambda x: ops.selu(x, np.array([1.6], np.float32), np.array([1.1], np.float32)),
        lambda x: ops.hard_sigmoid(x, np.float32(0.3), np.float32(0.4)),
        lambda x: ops.round(x, "half_to_even"),
        lambda x: ops.round(x, "half_away_from_zero"),
    ],
    ids="gelu_erf gelu_tanh elu clamp swish swish_beta selu hard_sigmoid round_even round_away".split(),
)
def test_function_with_attributes_agrees(agrees: Agrees, build: Callable[[ov.Node], ov.Node]) -> None:
    agrees(build, np.arange(-12, 13, dtype=np.float32) / 4)


@pytest.mark.parametrize("shapes", [((2, 3, 4), (3, 1)), ((5,), (2, 1, 5)), ((), (3, 2))])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_broadcasts_as_openvino_does(
    agrees: Agrees, numbers: Numbers, name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    agrees(getattr(ops, name), numbers(*shapes[0]), numbers(*shapes[1], seed=1))


@pytest.mark.parametrize("name", ["divide", "power", "mod", "floor_mod"])
def test_arithmetic_of_a_positive_second_operand_agrees(agrees: Agrees, numbers: Numbers, name: str) -> None:
    second = np.abs(numbers(3, 1, seed=1)) + 0.5
    first = np.abs(numbers(2, 3, 4)) if name == "power" else numbers(2, 3, 4, scale=5.0)
    agrees(getattr(ops, name), first, second)


def test_negative_numbers_to_a_whole_power_agree(agrees: Agrees, numbers: Numbers) -> None:
    agrees(lambda x: ops.power(x, np.float32(3)), numbers(4, 5))


@pytest.mark.parametrize("name", [*ARITHMETIC[:-1], *COMPARISONS])
def test_integer_operands_agree(agrees: Agrees, name: str) -> None:
    rng = np.random.default_rng(0)
    agrees(getattr(ops, name), *(rng.integers(-4, 5, shape).astype(np.int32) for shape in ((3, 4), (2, 1, 4))))


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison_of_floats_agrees(agrees: Agrees, name: str) -> None:
    rng = np.random.default_rng(0)
    agrees(getattr(ops, name), *(rng.integers(-2, 3, (3, 4)).astype(np.float32) for _ in range(2)))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
def test_logical_op_agrees(agrees: Agrees, name: str) -> None:
    agrees(getattr(ops, name), np.array([[True], [False]]), np.array([True, False]))


def test_logical_not_agrees(agrees: Agrees) -> None:
    agrees(ops.logical_not, np.array([True, False]))


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bitwise_op_agrees(agrees: Agrees, name: str) -> None:
    agrees(getattr(opset13, name), np.array([[12], [-7]], np.int32), np.array([10, 5], np.int32))


def test_bitwise_not_agrees(agrees: Agrees) -> None:
    agrees(opset13.bitwise_not, np.array([0, 5, -9], np.int32))


@pytest.mark.parametrize("build", [opset10.is_inf, opset10.is_nan, opset10.is_finite])
def test_classification_of_odd_numbers_agrees(agrees: Agrees, build: Callable[..., ov.Node]) -> None:
    agrees(build, np.array([np.inf, -np.inf, np.nan, 1.0, 0.0], np.float32))


@pytest.mark.parametrize("signs", [(True, False), (False, True), (False, False)])
def test_one_sided_is_inf_agrees(agrees: Agrees, signs: tuple[bool, bool]) -> None:
    wanted = {"detect_negative": signs[0], "detect_positive": signs[1]}
    agrees(lambda x: opset10.is_inf(x, wanted), np.array([np.inf, -np.inf, 1.0], np.float32))


def test_select_broadcasts_all_three_operands(agrees: Agrees, numbers: Numbers) -> None:
    agrees(ops.select, np.array([[True], [False]]), numbers(3, 1, 4), numbers(2, 4, seed=1))


@pytest.mark.parametrize("slope", [(3,), (1,), (3, 1, 1), (5,)])
def test_prelu_puts_a_plain_slope_along_the_channels(agrees: Agrees, numbers: Numbers, slope: tuple[int, ...]) -> None:
    agrees(ops.prelu, numbers(2, 3, 4, 5), numbers(*slope, seed=1))


@pytest.mark.parametrize("target", ["i32", "i64", "f16", "boolean", "u8", "i8"])
def test_convert_cuts_towards_zero(agrees: Agrees, target: str) -> None:
    agrees(lambda x: ops.convert(x, target), np.array([0.0, 0.4, 1.6, 2.5, 100.9], np.float32))


@pytest.mark.parametrize("given", [np.int64, np.bool_, np.uint8, np.float16])
def test_convert_to_f32_agrees(agrees: Agrees, given: type[Any]) -> None:
    agrees(lambda x: ops.convert(x, "f32"), np.array([0, 1, 0, 1]).astype(given))


def test_convert_like_takes_the_type_of_the_second(agrees: Agrees) -> None:
    agrees(ops.convert_like, np.array([-1.5, 2.7], np.float32), np.array([1], np.int32))


@pytest.mark.parametrize("build", [lambda x: ops.clamp(x, -1.5, 2.5), ops.relu, ops.abs, ops.negative])
def test_function_of_integers_agrees(agrees: Agrees, build: Callable[[ov.Node], ov.Node]) -> None:
    agrees(build, np.arange(-5, 6, dtype=np.int32))


def test_division_of_whole_numbers_agrees(agrees: Agrees) -> None:
    agrees(ops.divide, np.array([7, 8, 9, 6], np.int32), np.array([2, 3, 4, 3], np.int32))


def test_division_of_negative_integers_rounds_down_as_the_op_is_defined() -> None:
    """OpenVINO's CPU device cuts towards zero instead; its own reference evaluation rounds down."""
    a, b = np.array([7, -9, -7, 9], np.int32), np.array([2, 4, -2, -4], np.int32)
    divide = ops.divide(ops.parameter([4], np.int32), ops.parameter([4], np.int32))
    (result,) = build_op(divide)([torch.from_numpy(a), torch.from_numpy(b)])
    assert result.tolist() == (a // b).tolist()


def test_fake_quantize_rounds_to_its_levels(agrees: Agrees, numbers: Numbers) -> None:
    low, high = np.array([[-1.0], [-2.0]], np.float32), np.array([[1.5], [0.7]], np.float32)
    agrees(lambda x: ops.fake_quantize(x, low, high, np.float32(-3), np.float32(5), 16), numbers(3, 2, 40))


@pytest.mark.parametrize("limits", [(0, 0, 0, 0), (2, -2, -3, 5), (-2, 2, 5, -3)])
def test_fake_quantize_agrees_with_equal_and_reversed_limits(agrees: Agrees, limits: tuple[int, ...]) -> None:
    in_low, in_high, out_low, out_high = map(np.float32, limits)
    x = np.array([-5, -2, -1, 0, 1, 2, 5], np.float32)
    agrees(lambda p: ops.fake_quantize(p, in_low, in_high, out_low, out_high, 16), x)


def test_fake_quantize_of_equal_input_limits_gives_the_limits_of_the_output() -> None:
    """As the op is defined; OpenVINO's CPU device gives NaN."""
    x = ops.parameter([3], np.float32)
    build = build_op(ops.fake_quantize(x, *map(np.float32, (1, 1, -3, 5)), 256))
    given = [torch.tensor(values) for values in ([0.0, 1.0, 2.0], 1.0, 1.0, -3.0, 5.0)]
    assert build(given)[0].tolist() == [-3.0, -3.0, 5.0]
