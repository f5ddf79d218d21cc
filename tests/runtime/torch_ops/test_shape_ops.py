"""Ops that move, choose or repeat elements, against OpenVINO's CPU device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from openvino import opset1, opset3
from openvino import opset13 as ops

from hsdag.runtime.torch_ops import build_op

Agrees = Callable[..., None]
Numbers = Callable[..., NDArray[np.float32]]
Build = Callable[[ov.Node], ov.Node]

SOME = settings(max_examples=30, suppress_health_check=[HealthCheck.filter_too_much])
LIMIT = st.integers(-9, 9)
STEP = st.sampled_from([-3, -2, -1, 1, 2, 3])


@pytest.mark.parametrize(
    "build",
    [
        lambda x: ops.reshape(x, [0, -1], special_zero=True),
        lambda x: ops.reshape(x, [4, 1, 6], special_zero=False),
        lambda x: ops.reshape(x, [0, 0, 2, -1], special_zero=True),
        lambda x: ops.unsqueeze(x, [0, -1]),
        lambda x: ops.transpose(x, [2, 0, 1]),
        lambda x: ops.transpose(x, np.array([], np.int64)),
        lambda x: ops.split(x, 1, 3),
        lambda x: ops.split(x, -1, 2),
        lambda x: ops.variadic_split(x, -1, [1, -1, 2]),
        lambda x: ops.concat([x, x, ops.abs(x)], -2),
        lambda x: ops.tile(x, [2, 1]),
        lambda x: ops.tile(x, [2, 1, 3, 1]),
        lambda x: ops.broadcast(x, [5, 2, 3, 4]),
        lambda x: opset3.broadcast(x, [1, 4], broadcast_spec="BIDIRECTIONAL"),
        lambda x: opset3.broadcast(x, [2, 5, 3, 4], [0, 2, 3], "EXPLICIT"),
        lambda x: ops.cum_sum(x, -1, True, True),
        lambda x: ops.cum_sum(x, 0),
    ],
    ids=(
        "reshape_zero reshape reshape_zeros unsqueeze transpose reverse split split_end variadic concat "
        "tile_fewer tile_more broadcast bidirectional explicit cumsum_both cumsum"
    ).split(),
)
def test_op_on_a_tensor_of_three_axes_agrees(agrees: Agrees, numbers: Numbers, build: Build) -> None:
    agrees(build, numbers(2, 3, 4))


@pytest.mark.parametrize("axes", [[1], [0, -2]])
def test_squeeze_agrees(agrees: Agrees, numbers: Numbers, axes: list[int]) -> None:
    agrees(lambda x: ops.squeeze(x, axes), numbers(1, 1, 1, 3))


@pytest.mark.parametrize("mode", ["blocks_first", "depth_first"])
def test_depth_and_space_agree(agrees: Agrees, numbers: Numbers, mode: str) -> None:
    agrees(lambda x: ops.depth_to_space(x, mode, 2), numbers(2, 12, 3, 5))
    agrees(lambda x: ops.space_to_depth(x, mode, 2), numbers(2, 3, 4, 6))


@SOME
@given(limits=st.lists(st.tuples(LIMIT, LIMIT, STEP), min_size=2, max_size=2))
def test_slice_agrees_for_any_limits_and_steps(
    agrees: Agrees, numbers: Numbers, limits: list[tuple[int, int, int]]
) -> None:
    assume(all(range(*slice(a, b, c).indices(n)) for (a, b, c), n in zip(limits, (6, 5), strict=True)))
    start, stop, step = (list(column) for column in zip(*limits, strict=True))
    agrees(lambda x: ops.slice(x, start, stop, step, [2, -2]), numbers(2, 5, 6))


def test_slice_without_axes_starts_at_the_first(agrees: Agrees, numbers: Numbers) -> None:
    agrees(lambda x: ops.slice(x, [1, -3], [2, 1000], [1, 2]), numbers(2, 5, 6))


@SOME
@given(
    limits=st.lists(st.tuples(LIMIT, LIMIT, STEP), min_size=2, max_size=2),
    masks=st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=2), min_size=2, max_size=2),
)
def test_strided_slice_agrees_for_any_limits_and_masks(
    agrees: Agrees, numbers: Numbers, limits: list[tuple[int, int, int]], masks: list[list[int]]
) -> None:
    for axis, ((a, b, c), n) in enumerate(zip(limits, (5, 6), strict=True)):
        assume(range(*slice(None if masks[0][axis] else a, None if masks[1][axis] else b, c).indices(n)))
    begin, end, steps = (list(column) for column in zip(*limits, strict=True))
    agrees(lambda x: ops.strided_slice(x, begin, end, steps, *masks), numbers(5, 6, 2))


@pytest.mark.parametrize(
    ("begin", "end", "masks"),
    [
        ([0, 1], [0, 2], {"new_axis_mask": [1, 0]}),
        ([-1, 1], [0, 2], {"shrink_axis_mask": [1, 0]}),
        ([0, 1], [0, 3], {"ellipsis_mask": [1, 0]}),
        ([1, 0, 1], [2, 0, 3], {"ellipsis_mask": [0, 1, 0], "shrink_axis_mask": [1, 0, 0]}),
        ([0, 0, 2], [0, 0, 3], {"ellipsis_mask": [1, 0, 0], "new_axis_mask": [0, 1, 0]}),
    ],
)
def test_strided_slice_with_new_lost_and_skipped_axes_agrees(
    agrees: Agrees, numbers: Numbers, begin: list[int], end: list[int], masks: dict[str, list[int]]
) -> None:
    none = [0] * len(begin)
    agrees(lambda x: ops.strided_slice(x, begin, end, [1] * len(begin), none, none, **masks), numbers(3, 4, 5))


@pytest.mark.parametrize("batch_dims", [0, 1, 2])
@pytest.mark.parametrize("axis", [2, -1])
def test_gather_takes_negative_indices_in_step_with_its_batch(
    agrees: Agrees, numbers: Numbers, axis: int, batch_dims: int
) -> None:
    indices = np.random.default_rng(0).integers(-4, 4, (2, 3, 5)).astype(np.int32)
    agrees(lambda x, i: ops.gather(x, i, axis, batch_dims), numbers(2, 3, 4, 4), indices)


def test_gather_of_one_index_loses_the_axis(agrees: Agrees, numbers: Numbers) -> None:
    agrees(lambda x: opset1.gather(x, np.array(1), 1), numbers(2, 3, 4))


@pytest.mark.parametrize("given", [np.int32, np.int64])
def test_gather_elements_agrees(agrees: Agrees, numbers: Numbers, given: type[np.signedinteger]) -> None:
    indices = np.random.default_rng(0).integers(0, 3, (2, 5, 4)).astype(given)
    agrees(lambda x, i: ops.gather_elements(x, i, 1), numbers(2, 3, 4), indices)


@pytest.mark.parametrize(("batch_dims", "indices"), [(0, (5, 2)), (1, (2, 5, 2)), (1, (2, 1)), (2, (2, 3, 1))])
def test_gather_nd_agrees(agrees: Agrees, numbers: Numbers, batch_dims: int, indices: tuple[int, ...]) -> None:
    where = np.random.default_rng(0).integers(0, 2, indices).astype(np.int32)
    agrees(lambda x, i: ops.gather_nd(x, i, batch_dims), numbers(2, 3, 4, 5), where)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_pad_agrees(agrees: Agrees, numbers: Numbers, mode: str) -> None:
    agrees(lambda x: ops.pad(x, [0, 1, 2], [1, 0, 3], mode), numbers(2, 3, 4))


def test_pad_with_a_value_and_negative_widths_agrees(agrees: Agrees, numbers: Numbers) -> None:
    agrees(lambda x: ops.pad(x, [0, -1, 2], [1, 0, -1], "constant", np.float32(1.5)), numbers(2, 3, 4))


def test_shapes_and_ranges_that_follow_from_fixed_shapes_are_known(agrees: Agrees, numbers: Numbers) -> None:
    def build(x: ov.Node) -> ov.Node:
        size = ops.gather(ops.shape_of(x), np.array(1), 0)
        return ops.range(np.array(0), size, np.array(2), "i64")

    agrees(build, numbers(2, 7))


def test_non_zero_of_a_constant_is_known(agrees: Agrees, numbers: Numbers) -> None:
    def build(x: ov.Node) -> ov.Node:
        where = ops.non_zero(ops.constant(np.array([[0, 3], [2, 0]], np.float32)), "i64")
        return ops.gather_nd(x, ops.transpose(where, [1, 0]))

    agrees(build, numbers(2, 2))


@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("opset", [opset1, ops])
def test_gather_of_an_index_out_of_range_gives_zeros(
    agrees: Agrees, numbers: Numbers, opset: Any, is_constant: bool
) -> None:
    indices = np.array([[0, 5, -1], [-4, -5, 3]], np.int32)
    if is_constant:
        agrees(lambda x: opset.gather(x, indices, np.int64(1)), numbers(2, 4, 3))
    else:
        agrees(lambda x, i: opset.gather(x, i, np.int64(1)), numbers(2, 4, 3), indices)


def test_gather_in_step_with_a_batch_gives_zeros_out_of_range(agrees: Agrees, numbers: Numbers) -> None:
    indices = np.array([[0, 4], [-1, -5]], np.int32)
    agrees(lambda x, i: ops.gather(x, i, np.int64(2), 1), numbers(2, 3, 4, 2), indices)


def test_no_gather_reads_beyond_its_data() -> None:
    """OpenVINO leaves these two undefined."""
    x, where = torch.arange(1.0, 7.0).reshape(2, 3), torch.tensor([[0, 3], [-1, -3]])
    data, indices = ops.parameter([2, 3], np.float32), ops.parameter([2, 2], np.int64)
    elements, slices = ops.gather_elements(data, indices, 1), ops.gather_nd(data, indices)
    assert build_op(elements)([x, where])[0].tolist() == [[1.0, 0.0], [6.0, 4.0]]
    assert build_op(slices)([x, where])[0].tolist() == [0.0, 4.0]


@pytest.mark.parametrize("backwards", [True, False])
def test_an_exclusive_cumsum_never_adds_the_element_itself(agrees: Agrees, backwards: bool) -> None:
    for x in ([1.0, 1e9, -1e9, 3.0], [-np.inf, 1.0, 2.0], [1.0, np.inf, 2.0]):
        agrees(lambda p: ops.cum_sum(p, 0, True, backwards), np.array(x, np.float32))
