"""Every rule: an op divided along each axis that its rule lets through computes what the whole op computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset1
from openvino import opset13 as op
from openvino.utils.node_factory import NodeFactory

from hsdag.ir.graph.build import graph_of
from hsdag.ir.shards.regions import Region
from hsdag.ir.shards.rewrite import shapes_of, shard
from hsdag.ir.shards.rules import RULES, Span, piece_of, through_reshape

Build = Callable[[Any], Any]
"""The last op of a model that reads parameters of the given shapes."""

RNG = np.random.default_rng(0)


def weights(*shape: int) -> Any:
    return op.constant(RNG.standard_normal(shape).astype(np.float32))


def ints(*values: int) -> Any:
    return op.constant(np.array(values))


def conv(x: Any, strides: int = 1, begin: int = 1, end: int = 1, dilation: int = 1, auto: str = "explicit") -> Any:
    return op.convolution(x, weights(6, 4, 3, 3), [strides] * 2, [begin] * 2, [end] * 2, [dilation] * 2, auto)


def max_pool(x: Any, rounding: str = "floor", auto: str = "explicit") -> Any:
    return op.max_pool(x, [2, 2], [1, 1], [1, 0], [0, 1], [3, 3], rounding, auto).output(0)


def avg_pool(x: Any, *, exclude: bool, rounding: str = "floor") -> Any:
    return op.avg_pool(x, [2, 2], [1, 1], [1, 1], [3, 3], exclude, rounding)


def quantised(x: Any, axis: int) -> Any:
    """int8 weights whose scales go along an axis, as plugins keep them compressed."""
    shape = [8 if k == axis else 1 for k in range(2)]
    stored = op.constant(RNG.integers(-128, 127, (8, 8)).astype(np.int8))
    return op.matmul(x, op.multiply(op.convert(stored, "f32"), weights(*shape)), False, True)


def in_groups(x: Any) -> Any:
    """int4 weights with a scale for every four along the axis that is summed."""
    packed = ov.Tensor(ov.Type.u4, ov.Shape([8, 2, 4]))
    packed.data[:] = RNG.integers(0, 256, packed.data.shape).astype(np.uint8)
    scaled = op.multiply(op.convert(ov.op.Constant(packed), "f32"), weights(8, 2, 1))
    return op.matmul(x, op.reshape(scaled, ints(8, 8), False), False, True)


IMAGE, ROWS, HEADS = (2, 4, 9, 7), (2, 6, 8), (2, 4, 6, 8)
CASES: dict[str, tuple[tuple[int, ...], Build]] = {
    "Add": (ROWS, lambda x: op.add(x, weights(8))),
    "Multiply by a column": (ROWS, lambda x: op.multiply(x, weights(6, 1))),
    "FakeQuantize per channel": (
        IMAGE,
        lambda x: op.fake_quantize(x, weights(1, 4, 1, 1), *(op.constant(np.float32(k)) for k in (2, -2, 2)), 16),
    ),
    "Select": (ROWS, lambda x: op.select(op.greater(x, op.constant(np.float32(0))), x, weights(1, 1, 8))),
    "PRelu": (IMAGE, lambda x: op.prelu(x, weights(4))),
    "ConvertLike": (ROWS, lambda x: op.convert_like(x, op.constant(np.float16(0)))),
    "MatMul": (ROWS, lambda x: op.matmul(x, weights(8, 10), False, False)),
    "MatMul transposed": (ROWS, lambda x: op.matmul(x, weights(4, 6), True, True)),
    "MatMul of batches": (HEADS, lambda x: op.matmul(x, weights(1, 4, 8, 6), False, False)),
    "MatMul of int8": (ROWS, lambda x: quantised(x, 0)),
    "MatMul of int8 along the sum": (ROWS, lambda x: quantised(x, 1)),
    "MatMul of int4 in groups": (ROWS, in_groups),
    "Convolution": (IMAGE, conv),
    "Convolution with strides": (IMAGE, lambda x: conv(x, strides=2, begin=1, end=2)),
    "Convolution with dilation": (IMAGE, lambda x: conv(x, begin=2, end=1, dilation=2)),
    "Convolution same_upper": (IMAGE, lambda x: conv(x, strides=2, auto="same_upper")),
    "Convolution same_lower": (IMAGE, lambda x: conv(x, strides=2, auto="same_lower")),
    "Convolution valid": (IMAGE, lambda x: conv(x, auto="valid")),
    "GroupConvolution": (
        IMAGE,
        lambda x: op.group_convolution(x, weights(2, 3, 2, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1]),
    ),
    "GroupConvolution by channel": (
        IMAGE,
        lambda x: op.group_convolution(x, weights(4, 1, 1, 3, 3), [2, 2], [1, 1], [1, 1], [1, 1]),
    ),
    "MaxPool": (IMAGE, max_pool),
    "MaxPool with a ceiling": (IMAGE, lambda x: max_pool(x, "ceil")),
    "MaxPool same_upper": (IMAGE, lambda x: max_pool(x, auto="same_upper")),
    "AvgPool": (IMAGE, lambda x: avg_pool(x, exclude=False)),
    "AvgPool without padding": (IMAGE, lambda x: avg_pool(x, exclude=True)),
    "AvgPool with a ceiling": (IMAGE, lambda x: avg_pool(x, exclude=True, rounding="ceil")),
    "Concat": (ROWS, lambda x: op.concat([x, weights(2, 6, 4)], 2)),
    "Split": (ROWS, lambda x: op.split(x, op.constant(2), 2).output(0)),
    "VariadicSplit": (ROWS, lambda x: op.variadic_split(x, op.constant(1), ints(2, 4)).output(0)),
    "Transpose": (ROWS, lambda x: op.transpose(x, ints(2, 0, 1))),
    "Reshape into heads": (ROWS, lambda x: op.reshape(x, ints(0, 0, 2, 4), True)),
    "Reshape out of heads": (HEADS, lambda x: op.reshape(x, ints(2, -1, 8), False)),
    "Unsqueeze": (ROWS, lambda x: op.unsqueeze(x, ints(1))),
    "Squeeze": ((2, 1, 6), lambda x: op.squeeze(x, ints(1))),
    "ReduceMean": (IMAGE, lambda x: op.reduce_mean(x, ints(1), keep_dims=False)),
    "ReduceSum": (IMAGE, lambda x: op.reduce_sum(x, ints(2, 3), keep_dims=True)),
    "Softmax": (ROWS, lambda x: op.softmax(x, 1)),
    "MVN": (ROWS, lambda x: op.mvn(x, ints(-1), True, 1e-6, "inside_sqrt")),
    "NormalizeL2": (ROWS, lambda x: op.normalize_l2(x, ints(1), 1e-6, "add")),
    "CumSum": (ROWS, lambda x: op.cum_sum(x, op.constant(1))),
    "TopK": (ROWS, lambda x: op.topk(x, op.constant(2), 2, "max", "value").output(0)),
    "BatchNormInference": (
        IMAGE,
        lambda x: op.batch_norm_inference(x, weights(4), weights(4), weights(4), op.abs(weights(4)), 1e-3),
    ),
    "Interpolate": (
        IMAGE,
        lambda x: op.interpolate(x, ints(18), "nearest", "sizes", axes=ints(2)),
    ),
    "Interpolate by scales": (
        IMAGE,
        lambda x: NodeFactory("opset4").create(
            "Interpolate",
            [x.output(0), *(each.output(0) for each in (ints(18), op.constant(np.array([2.0], np.float32)), ints(2)))],
            {"mode": "nearest", "shape_calculation_mode": "scales", "pads_begin": [0], "pads_end": [0]},
        ),
    ),
    "Gather": (ROWS, lambda x: op.gather(x, ints(3, 0, 5), op.constant(1))),
    "ScaledDotProductAttention": (
        HEADS,
        lambda x: op.scaled_dot_product_attention(x, weights(2, 4, 5, 8), weights(2, 4, 5, 6), weights(6, 5)),
    ),
    "ScaledDotProductAttention of keys": (
        HEADS,
        lambda x: op.scaled_dot_product_attention(weights(2, 4, 3, 8), x, x),
    ),
    "Pad": (IMAGE, lambda x: op.pad(x, ints(0, 0, 1, 0), ints(0, 0, 0, 2), "constant", op.constant(np.float32(1)))),
    "StridedSlice": (IMAGE, lambda x: op.strided_slice(x, ints(0, 1), ints(2, 3), ints(1, 1), [1, 0], [1, 0])),
    "StridedSlice backwards": (
        IMAGE,
        lambda x: op.strided_slice(x, ints(0, 0), ints(0, 0), ints(1, -1), [1, 1], [1, 1]),
    ),
    "Slice": (IMAGE, lambda x: op.slice(x, ints(1), ints(6), ints(2), ints(2))),
    "Broadcast": ((6, 1), lambda x: op.broadcast(x, ints(4, 6, 5))),
    "Tile": (ROWS, lambda x: op.tile(x, ints(1, 2))),
    "Swish": (ROWS, lambda x: op.swish(x, op.constant(np.float32(1.5)))),
    "LogSoftmax": (ROWS, lambda x: op.log_softmax(x, 2)),
}


def divided(shape: tuple[int, ...], build: Build) -> tuple[int, dict[str, float]]:
    """Along how many axes a case divides, and how far the result is then from the whole one, by axis."""
    parameter = op.parameter(list(shape), np.float32)
    model = ov.Model([op.result(build(op.relu(parameter)))], [parameter], "case")
    graph = graph_of(model)
    _, shapes = shapes_of(model, graph)
    core, x = ov.Core(), np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    last = max(v for v in range(graph.num_ops) if shapes.runs[v])
    models, found = [model], {}
    for axis in (None, *range(shapes.op(last).rank)):
        region = shapes.region("rows", last, axis, {v for v in range(last) if graph.op_types[v] == "Relu"})
        grain = None if region is None else shapes.grain(region)
        if region is None or grain is None:
            continue
        size = shapes.extent(region)
        middle = max(size // (2 * grain), 1) * grain
        shares = {0: (0, middle), 1: (middle, size)}
        models.append(shard(model, graph, [Region("rows", region.ops, region.axes, shares)], [0] * 99, "AB").model)
        found[str(axis)] = len(models) - 1
    results = [core.compile_model(each, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(x)[0] for each in models]
    scale = float(np.abs(results[0]).max())
    return len(found), {axis: float(np.abs(results[k] - results[0]).max()) / scale for axis, k in found.items()}


@pytest.mark.parametrize("case", CASES)
def test_an_op_in_shards_computes_what_the_whole_op_computes(case: str) -> None:
    count, differences = divided(*CASES[case])
    assert count > 0
    assert max(differences.values()) < 1e-5, differences


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.interpolate(x, ints(2, 4, 18, 7), "nearest", "sizes"),
        lambda x: opset1.batch_norm_inference(x, *(weights(4) for _ in range(3)), op.abs(weights(4)), 1e-3),
        lambda x: op.max_pool(x, [1, 1], [1, 1], [0, 0], [0, 0], [2, 2]).output(1),
        lambda x: op.scaled_dot_product_attention(x, x, x, causal=True),
    ],
    ids=["axes not named", "statistics first", "indices", "causal rows"],
)
def test_what_a_rule_cannot_tell_stays_whole(build: Build) -> None:
    """Along axis 2; a Relu before it would be divided otherwise."""
    parameter = op.parameter(list(IMAGE), np.float32)
    model = ov.Model([op.result(build(op.relu(parameter)))], [parameter], "whole")
    graph = graph_of(model)
    _, shapes = shapes_of(model, graph)
    last = max(v for v in range(graph.num_ops) if shapes.runs[v])
    assert piece_of(shapes.op(last), Span(2, 0, 2)) is None


def test_every_rule_but_those_of_one_number_at_a_time_has_a_case() -> None:
    elementwise = {name for name, rule in RULES.items() if rule is RULES["Add"] or rule is RULES["ConvertLike"]}
    reductions = {name for name, rule in RULES.items() if rule is RULES["ReduceSum"]}
    assert set(RULES) - elementwise - reductions - {"LRN"} <= {case.partition(" ")[0] for case in CASES}


def test_halos_of_a_chain_of_convolutions_are_as_wide_as_the_formula_says() -> None:
    """A row of the end reads k - 1 rows more for every layer, each as wide as the strides before it."""
    parameter = op.parameter([1, 4, 64, 8], np.float32)
    x, kernels, strides = op.relu(parameter), (3, 5, 3), (2, 1, 2)
    for kernel, stride in zip(kernels, strides, strict=True):
        x = op.convolution(x, weights(4, 4, kernel, 1), [stride, 1], [kernel // 2, 0], [kernel // 2, 0], [1, 1])
    model = ov.Model([op.result(x)], [parameter], "chain")
    graph = graph_of(model)
    _, shapes = shapes_of(model, graph)
    last = max(v for v in range(graph.num_ops) if shapes.runs[v])
    region = shapes.region("rows", last, 2)
    assert region is not None
    pieces = shapes.pieces(Region("rows", region.ops, region.axes, {0: (4, 8)}), 0)
    assert pieces is not None
    span, _ = pieces[region.ops[0]]
    halo = sum((k - 1) * step for k, step in zip(kernels, (1, 2, 2), strict=True))
    assert span is not None
    assert span.last - span.first == (8 - 4 - 1) * 4 + 1 + halo


def test_a_factor_of_a_reshape_survives() -> None:
    assert through_reshape((2, 6, 8), (2, 6, 2, 4), Span(2, 1, 2)) == Span(2, 4, 8)
    assert through_reshape((2, 6, 2, 4), (2, 6, 8), Span(2, 4, 8)) == Span(2, 1, 2)
    assert through_reshape((2, 6, 2, 4), (2, 6, 8), Span(2, 2, 8)) is None
    assert through_reshape((2, 6, 8), (2, 6, 2, 4), Span(3, 0, 2)) is None
    assert through_reshape((-1, -1, 8), (-1, -1, 2, 4), Span(2, 0, 1)) == Span(2, 0, 4)
