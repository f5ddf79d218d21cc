"""The contract of built ops: what is refused, what a build needs, and what running one may not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray
from openvino import opset1, opset11
from openvino import opset13 as ops

from hsdag.ir.errors import ModelError
from hsdag.models import build_model, list_models
from hsdag.runtime.torch_ops import UnsupportedOpError, build_op, static_value, supported_types
from hsdag.runtime.torch_ops.parity import relative_difference

TINY = [spec.name for spec in list_models() if spec.is_tiny]
IMAGE = (1, 3, 8, 8)


def _image(element_type: Any = np.float32) -> ov.Node:
    return ops.parameter(list(IMAGE), element_type)


def test_unknown_type_is_refused_with_name_and_type() -> None:
    node = ops.reverse_sequence(_image(), np.array([1]), 0, 1)
    node.set_friendly_name("turned")
    with pytest.raises(
        UnsupportedOpError, match=r"does not run ReverseSequence \(opset1\) 'turned'; it runs 1\d\d other types"
    ):
        build_op(node)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: opset11.interpolate(_image(), [4, 4], "linear", "sizes", antialias=True, axes=[2, 3]), "antialiasing"),
        (lambda: opset1.interpolate(_image(), [4, 4], {"axes": [2, 3], "mode": "nearest"}), "another opset"),
        (lambda: ops.matmul(_image(np.int32), _image(np.int32), False, True), "element type i32; .* floating"),
        (lambda: ops.relu(ops.parameter([-1, 3], np.float32)).output(0) and ops.reshape(
            ops.parameter([-1, 3], np.float32), [-1], False), "open shape"),
        (lambda: ops.tile(_image(), ops.parameter([4], np.int64)), "repeats .* that change|open shape"),
        (lambda: ops.constant(np.array([1], np.uint16)), "element type u16; .* f64, f32"),
        (lambda: ops.range(*(ops.parameter([], np.int64) for _ in range(3)), "i64"), "a value that changes"),
    ],
)  # fmt: skip
def test_what_an_op_cannot_do_is_refused_when_it_is_built(build: Callable[[], ov.Node], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        build_op(build())


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_zoo_runs_without_ever_reading_a_value(name: str) -> None:
    """Meta tensors have shapes and no contents: a branch on data or a wait for it would fail."""
    values: dict[tuple[str, int], torch.Tensor] = {}
    for node in build_model(name).get_ordered_ops():
        sources = [port.get_source_output() for port in node.inputs()]
        xs = [values[source.get_node().get_name(), source.get_index()] for source in sources]
        if node.get_type_name() == "Parameter":
            xs = [torch.empty(tuple(node.get_output_shape(0)), dtype=torch.float32)]
            if not node.get_element_type().is_real():
                xs = [xs[0].to(torch.int64)]
        results = build_op(node)([x.to("meta") for x in xs])
        values |= {(node.get_name(), port): x.to("meta") for port, x in enumerate(results)}
        read = [(port, x) for port, x in zip(node.outputs(), results, strict=True) if port.get_target_inputs()]
        assert all(tuple(x.shape) == tuple(port.get_shape()) for port, x in read)
        assert node.get_type_name() == "Constant" or {x.device.type for x in results} == {"meta"}


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_op_type_of_the_zoo_is_listed(name: str) -> None:
    assert {node.get_type_name() for node in build_model(name).get_ops()} <= set(supported_types())


def test_built_op_leaves_its_inputs_alone() -> None:
    x = torch.randn(IMAGE, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    for build in (ops.relu, ops.abs, ops.sigmoid, lambda p: ops.clamp(p, -1, 1), lambda p: ops.elu(p, 1.0)):
        build_op(build(_image()))([x])
    assert torch.equal(x, before)


def test_indices_that_nobody_reads_come_back_empty() -> None:
    pool = ops.max_pool(_image(), [1, 1], [1, 1], [0, 0], [0, 0], [2, 2])
    values, indices = build_op(pool)([torch.zeros(IMAGE)])
    assert (tuple(values.shape), indices.numel()) == ((1, 3, 7, 7), 0)


def test_same_ops_run_in_half_and_in_double_precision() -> None:
    for element_type, dtype in ((np.float16, torch.float16), (np.float64, torch.float64)):
        node = ops.softmax(ops.add(_image(element_type), _image(element_type)), 1)
        assert build_op(node)([torch.zeros(IMAGE, dtype=dtype)])[0].dtype is dtype


def test_value_that_depends_on_an_input_is_not_known() -> None:
    x = ops.parameter([2], np.int64)
    assert static_value(ops.add(x, np.array([1])).output(0)) is None


def test_value_of_arithmetic_on_a_fixed_shape_is_known() -> None:
    shape = ops.shape_of(ops.parameter([2, 7], np.float32))
    value = static_value(ops.multiply(shape, shape).output(0))
    assert value is not None
    assert value.tolist() == [4, 49]


@pytest.mark.parametrize(
    ("got", "wanted", "difference"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([0.5], [0.0], 0.5),
        ([np.inf, 1.0], [np.inf, 1.0], 0.0),
        ([np.inf, 1.0], [-np.inf, 1.0], np.inf),
        ([np.nan], [1.0], np.inf),
        ([1.0, 1.0], [1.0], np.inf),
    ],
)
def test_relative_difference_sees_shapes_and_undefined_numbers(
    got: list[float], wanted: list[float], difference: float
) -> None:
    assert relative_difference(torch.tensor(got), torch.tensor(wanted)) == difference


def test_relative_difference_sees_another_element_type() -> None:
    x: NDArray[np.float32] = np.ones(2, np.float32)
    assert relative_difference(torch.from_numpy(x), torch.from_numpy(x).double()) == np.inf
