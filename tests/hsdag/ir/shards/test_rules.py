"""Every rule: an op divided along each axis that its rule lets through computes what the whole op computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset1, opset14, opset15, opset16
from openvino import opset13 as op
from openvino.utils.node_factory import NodeFactory

from hsdag.ir.graph.build import graph_of
from hsdag.ir.shards.rewrite import shapes_of, shard
from hsdag.ir.shards.rules import RULES, NodeView, Piece, Span, elementwise, piece_of, through_reshape
from tests.hsdag.ir.shards.random_shards import (
    BUILDERS,
    LARGEST_DIFFERENCE,
    difference,
    inputs_of,
    ints,
    outputs_of,
    quantisation,
    random_model,
    random_sharding,
    sizes,
    value_of,
    weights,
)

Build = Callable[[np.random.Generator, Any], Any]
"""What adds an op that reads a value; None where it reads none of such a shape."""

SHAPES = ((2, 4, 9, 7), (2, 6, 8), (1, 8, 6, 8), (6, 4))
IMAGE = SHAPES[0]
RNG = np.random.default_rng(0)
OFTEN = "AvgPool Convolution GroupConvolution MatMul MaxPool Pad Reshape ScaledDotProductAttention".split()
RARE: dict[str, Build] = {
    "AvgPool with a ceiling that counts padding": lambda _, x: op.avg_pool(
        x, [2, 2], [0, 0], [0, 0], [2, 2], False, "ceil"
    ),
    "Interpolate of version 4": lambda _, x: NodeFactory("opset4").create(
        "Interpolate",
        [x, *(ints(18).output(0), op.constant(np.array([2.0], np.float32)).output(0), ints(2).output(0))],
        {"mode": "nearest", "shape_calculation_mode": "scales", "pads_begin": [0], "pads_end": [0]},
    ),
    "MaxPool with a ceiling": lambda _, x: op.max_pool(x, [2, 2], [1, 1], [1, 0], [0, 1], [3, 3], "ceil").output(0),
    "ScaledDotProductAttention of keys": lambda rng, x: op.scaled_dot_product_attention(weights(rng, 2, 4, 3, 7), x, x),
    "ScaledDotProductAttention to fewer axes": lambda rng, x: op.scaled_dot_product_attention(
        x, weights(rng, 4, 5, 7), weights(rng, 4, 5, 6)
    ),
    "Squeeze of every axis of size 1": lambda _, x: NodeFactory("opset1").create(
        "Squeeze", [value_of(op.reduce_sum(x, ints(1), keep_dims=True))], {}
    ),
    "StridedSlice backwards": lambda _, x: op.strided_slice(x, ints(0, 0), ints(0, 0), ints(1, -1), [1, 1], [1, 1]),
    "Tile of fewer axes": lambda _, x: op.tile(x, ints(2, 1)),
    "Transpose of all axes": lambda _, x: op.transpose(x, ints()),
    "Unsqueeze counted from behind": lambda _, x: op.unsqueeze(x, ints(-6, 2)),
}


AXES: dict[str, Sequence[str]] = {
    **dict.fromkeys("attention batch_norm elementwise group_convolution of_first pool prelu".split(), "0123"),
    **dict.fromkeys(("convolution", "matmul"), ("0", "1", "2", "3", "sum")),
    **dict.fromkeys(("LRN", "NormalizeL2", "StridedSlice backwards"), "023"),
    **dict.fromkeys(("Interpolate", "Interpolate of version 4", "Tile of fewer axes"), "013"),
    "MaxPool with a ceiling": "0123",
    "ScaledDotProductAttention to fewer axes": "0123",
    "Transpose of all axes": "0123",
    "Unsqueeze counted from behind": "1345",
}
"""Along which axes a case, or all of a rule, can be divided at least."""


def divided(build: Build, shape: tuple[int, ...], rng: np.random.Generator) -> dict[str, float]:
    """By axis along which an op is divided, or "sum", by how many times the limit it is off, in one compiled model.

    Nothing where there is no such op, or OpenVINO does not run it.
    """
    parameter, x = op.parameter(list(shape), np.float32), rng.standard_normal(shape).astype(np.float32)
    try:
        made = build(rng, value_of(op.sin(parameter)))
        if made is None:
            return {}
        model = ov.Model([op.result(made)], [parameter], "case")
    except RuntimeError:
        return {}
    models = {"whole": model, **every_division(model, rng)}
    results = [result for each in models.values() for result in each.get_results()]
    parameters = [parameter for each in models.values() for parameter in each.get_parameters()]
    try:
        whole, *others = outputs_of(ov.Model(results, parameters, "together"), [x] * len(models))
    except RuntimeError:
        with pytest.raises(RuntimeError):
            outputs_of(model, [x])  # whole, it does not run either
        return {}
    limit = max(LARGEST_DIFFERENCE, quantisation(model, [x], [whole]))
    return {axis: difference([other], [whole]) / limit for axis, other in zip(list(models)[1:], others, strict=True)}


def every_division(model: ov.Model, rng: np.random.Generator) -> dict[str, ov.Model]:
    """The model with its last op in two shards along each axis, or as a sum of two."""
    graph = graph_of(model)
    shapes = shapes_of(model, graph)
    last = max(v for v in range(graph.num_ops) if shapes.runs[v])
    stop, found = {v for v in range(last) if graph.op_types[graph.predecessors.of(v)[:1].sum()] == "Parameter"}, {}
    for axis in (None, *range(shapes.op(last).rank)):
        region = shapes.region("rows", last, axis, stop)
        grain = None if region is None else shapes.grain(region)
        if region is not None and grain is not None:
            size = shapes.extent(region)
            middle = int(rng.integers(1, size // grain)) * grain
            halves = replace(region, shares={0: (0, middle), 1: (middle, size)})
            made = shard(model, graph, [halves], [0] * graph.num_ops, "AB").model
            (first,) = (node for node in made.get_ops() if node.get_friendly_name() == f"{graph.op_names[last]}@A")
            assert axis is None or sizes(first)[axis] == middle  # no more is computed than is wanted
            found["sum" if axis is None else str(axis)] = made
    return found


@pytest.mark.parametrize("case", [*BUILDERS, *RARE])
def test_an_op_in_shards_computes_what_the_whole_op_computes(case: str) -> None:
    rng, worst = np.random.default_rng(list(map(ord, case))), dict[str, float]()
    has_one = case in RARE or (RULES[case] is elementwise and case not in ("Add", "FakeQuantize", "Select"))
    for shape in SHAPES[:1] if has_one else SHAPES * (4 if case in OFTEN else 1):
        for axis, found in divided(RARE.get(case) or BUILDERS[case], shape, rng).items():
            worst[axis] = max(worst.get(axis, 0.0), found)
    assert worst.keys() >= set(AXES.get(case, AXES.get(RULES.get(case, piece_of).__name__, [])))
    assert max(worst.values()) <= 1.0, worst


def interpolated(x: Any, pads: list[int], version: str) -> Any:
    """Rows twice as near to each other, and padding."""
    mode = {"mode": "nearest", "shape_calculation_mode": "scales", "pads_begin": pads, "pads_end": pads}
    scales, axes = op.constant(np.array([2.0], np.float32)), ints(2)
    inputs = [x, ints(18), scales, axes] if version == "opset4" else [x, scales, axes]
    return NodeFactory(version).create("Interpolate", [value_of(each) for each in inputs], mode)


HEEDED: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "Reshape special_zero, of the divided axis": ((1, 4, 4), lambda x: op.reshape(x, ints(-1, 0), True)),
    "Reshape special_zero, beside a number": ((1, 4, 4), lambda x: op.reshape(x, ints(4, 0), True)),
    "Reshape special_zero, in its place": ((4, 4, 6), lambda x: op.reshape(x, ints(0, 0, 2, 3), True)),
    "Interpolate pads, version 4": (IMAGE, lambda x: interpolated(x, [0, 1, 0, 2], "opset4")),
    "Interpolate pads, version 11": (IMAGE, lambda x: interpolated(x, [0, 1, 0, 2], "opset11")),
    "Add auto_broadcast": ((4, 4, 4), lambda x: op.add(x, weights(RNG, 4, 1), "PDPD")),
    "FakeQuantize auto_broadcast": ((4, 4, 4), lambda x: quantised_from_the_front(x)),
    "MatMul transpose_a": ((4, 6, 6), lambda x: op.matmul(x, weights(RNG, 6, 6), True, False)),
    "MatMul transpose_b": ((4, 6, 6), lambda x: op.matmul(x, weights(RNG, 6, 6), False, True)),
    "Gather batch_dims": ((4, 6, 6), lambda x: op.gather(x, op.constant(np.ones((4, 2), np.int64)), op.constant(1), 1)),
    "ReduceMax keep_dims": ((4, 4, 4), lambda x: op.reduce_max(x, ints(0), keep_dims=True)),
    "ReduceMax keep_dims, dropped": ((4, 4, 4), lambda x: op.reduce_max(x, ints(0), keep_dims=False)),
    "Squeeze allow_axis_skip": ((4, 1, 4), lambda x: opset15.squeeze(x, ints(0, 1), True)),
    "Pad of less than nothing": ((4, 4, 4), lambda x: op.pad(x, ints(0, -1, 0), ints(0, 1, 0), "constant")),
    "StridedSlice ellipsis_mask": (
        (4, 4, 4),
        lambda x: op.strided_slice(x, ints(0, 0), ints(0, 3), ints(1, 1), [0, 0], [0, 0], [], [], [1, 0]),
    ),
    "StridedSlice shrink_axis_mask": (
        (4, 4, 4), lambda x: op.strided_slice(x, ints(1), ints(2), ints(1), [0], [0], [], [1])
    ),
    "AvgPool dilations": (IMAGE, lambda x: opset16.avg_pool(x, [1, 1], [2, 0], [2, 0], [3, 1], True, dilations=[2, 1])),
    "AvgPool exclude_pad": (IMAGE, lambda x: op.avg_pool(x, [2, 2], [0, 0], [0, 0], [2, 2], False, "ceil")),
    "AvgPool rounding_type": (
        IMAGE, lambda x: opset14.avg_pool(x, [2, 2], [1, 0], [0, 1], [3, 2], False, "ceil_torch", "explicit")
    ),
    "MaxPool auto_pad": (
        IMAGE, lambda x: op.max_pool(x, [2, 2], [1, 1], [], [], [3, 3], "floor", "same_lower").output(0)
    ),
    "Convolution auto_pad": (
        IMAGE, lambda x: op.convolution(x, weights(RNG, 4, 4, 4, 2), [1, 1], [], [], [1, 1], "same_lower")
    ),
    "Broadcast mode": ((4, 4), lambda x: op.broadcast(x, ints(4, 4, 3), ints(0, 1), "EXPLICIT")),
    "Concat axis": ((4, 4, 4), lambda x: op.concat([x, op.sin(x)], -2)),
    "ScaledDotProductAttention causal": ((2, 4, 6), lambda x: op.scaled_dot_product_attention(x, x, x, causal=True)),
}  # fmt: skip
"""By rule and attribute: an input's shape, and what reads one so that the attribute says what is read or given."""


STAY_WHOLE = {
    *(f"{name} auto_broadcast" for name in ("Add", "FakeQuantize")),
    *(f"StridedSlice {name}_mask" for name in ("ellipsis", "shrink_axis")),
    "Broadcast mode",
    "Gather batch_dims",
    "Squeeze allow_axis_skip",
}
"""Where a rule knows of the attribute and lets be."""


def quantised_from_the_front(x: Any) -> Any:
    """In steps of another size for each of the first axis."""
    edge = op.constant(np.arange(1, 5, dtype=np.float32).reshape(4, 1, 1))
    return op.fake_quantize(x, op.negative(edge), edge, op.negative(edge), edge, 7, "PDPD")


@pytest.mark.parametrize("name", HEEDED)
def test_no_rule_ignores_an_attribute_of_its_op(name: str) -> None:
    shape, build = HEEDED[name]
    found = divided(lambda _, x: build(x), shape, np.random.default_rng(0))
    assert bool(found) is (name not in STAY_WHOLE)
    assert max(found.values(), default=0.0) <= 1.0, found


@pytest.mark.parametrize("seed", range(24))
def test_a_random_graph_divided_at_random_computes_what_it_computes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng, [name for name in BUILDERS if name != "FakeQuantize"])  # which may round to either side
    inputs, made = inputs_of(model, rng), random_sharding(model, rng)
    assert made is not None
    assert difference(outputs_of(made[1].model, inputs), outputs_of(model, inputs)) <= LARGEST_DIFFERENCE


def late(x: Any, *values: int) -> Any:
    """Numbers that nobody knows before the data."""
    return op.add(ints(*values), op.convert(op.reduce_max(x, ints(0, 1, 2, 3)), "i64"))


WHOLE: dict[str, Callable[[Any], Any]] = {
    "axes not named": lambda x: op.interpolate(x, ints(2, 4, 18, 7), "nearest", "sizes"),
    "statistics first": lambda x: opset1.batch_norm_inference(x, *(weights(RNG, 4) for _ in range(4)), 1e-3),
    "indices": lambda x: op.max_pool(x, [1, 1], [1, 1], [0, 0], [0, 0], [2, 2]).output(1),
    "causal rows": lambda x: op.scaled_dot_product_attention(x, x, x, causal=True),
    "broadcast from the front": lambda x: op.add(x, weights(RNG, *IMAGE), "PDPD"),
    "product with a vector": lambda x: op.matmul(x, weights(RNG, 7), False, False),
    "batches of indices": lambda x: op.gather(x, op.constant(np.zeros((2, 3), np.int64)), op.constant(2), 1),
    "new axes": lambda x: op.strided_slice(x, ints(0), ints(0), ints(1), [1], [1], [1]),
    "late order": lambda x: op.transpose(x, late(x, 0, 1, 2, 3)),
    "late axes of a mean": lambda x: op.reduce_mean(x, late(x, 1)),
    "late axes of a norm": lambda x: op.mvn(x, late(x, 1), True, 1e-2, "inside_sqrt"),
    "late axes that are added": lambda x: op.unsqueeze(x, late(x, 0)),
    "late axes that are dropped": lambda x: op.squeeze(x, late(x, 0)),
    "late axis of a look-up": lambda x: op.gather(x, ints(0, 1), late(x, 0)),
    "late padding": lambda x: op.pad(x, late(x, 0, 0, 0, 0), late(x, 0, 0, 0, 0), "edge"),
    "late slice": lambda x: op.slice(x, ints(0), ints(1), ints(1), late(x, 1)),
    "late slice with strides": lambda x: op.strided_slice(x, late(x, 0), ints(1), ints(1), [0], [0]),
    "late pattern": lambda x: op.reshape(x, late(x, 2, 4, 9, 7), False),
    "late steps": lambda x: op.strided_slice(x, ints(0), ints(0), late(x, 1), [1], [1]),
    "padding beside what is resized": lambda x: interpolated(x, [0, 1, 0, 2], "opset11"),
    "late repeats": lambda x: op.tile(x, late(x, 1, 1, 1, 1)),
}
"""What a rule cannot know enough of."""


@pytest.mark.parametrize("build", WHOLE.values(), ids=WHOLE)
def test_what_a_rule_cannot_tell_stays_whole(build: Callable[[Any], Any]) -> None:
    """Along axis 2; a Relu before it would be divided otherwise."""
    parameter = op.parameter(list(IMAGE), np.float32)
    model = ov.Model([op.result(build(op.relu(parameter)))], [parameter], "whole")
    graph = graph_of(model)
    shapes = shapes_of(model, graph)
    last = max(v for v in range(graph.num_ops) if shapes.runs[v])
    assert piece_of(shapes.op(last), Span(2, 0, 2)) is None


PADDED: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "explicit": (lambda x: op.max_pool(x, [2, 2], [1, 1], [0, 1], [1, 1], [3, 3]).output(0), True),
    "valid": (lambda x: op.convolution(x, weights(RNG, 4, 4, 4, 2), [2, 1], [], [], [1, 1], "valid"), True),
    "same": (lambda x: op.convolution(x, weights(RNG, 4, 4, 4, 2), [2, 1], [], [], [1, 1], "same_lower"), False),
    "same of a pool": (lambda x: op.avg_pool(x, [2, 2], [], [], [3, 3], True, "floor", "same_upper"), False),
    "rounded up": (lambda x: op.avg_pool(x, [2, 2], [0, 0], [0, 0], [3, 3], True, "ceil"), False),
    "one for all": (
        lambda x: op.add(op.constant(np.zeros((2, 4, 12, 12), np.float32)), op.transpose(x, ints(0, 1, 3, 2))),
        False,
    ),
}
"""What reads a tensor of which the size of another axis is not known, and whether it can tell what it reads."""


@pytest.mark.parametrize(("build", "is_known"), PADDED.values(), ids=PADDED)
def test_what_follows_from_an_open_size_stays_whole(build: Callable[[Any], Any], is_known: bool) -> None:
    parameter = op.parameter([2, 4, -1, 12], np.float32)
    model = ov.Model([op.result(build(parameter))], [parameter], "open")
    graph = graph_of(model)
    last = max(v for v in range(graph.num_ops) if shapes_of(model, graph).runs[v])
    assert (piece_of(shapes_of(model, graph).op(last), Span(3, 0, 2)) is not None) is is_known


def test_groups_of_channels_are_parted_between_groups_alone() -> None:
    filters = weights(np.random.default_rng(0), 2, 2, 2, 1, 1)
    made = op.group_convolution(op.parameter(list(IMAGE), np.float32), filters, *[[1, 1], [0, 0], [0, 0], [1, 1]])
    assert piece_of(NodeView(made), Span(1, 0, 2)) == Piece((Span(1, 0, 2), Span(0, 0, 1)))
    assert [piece_of(NodeView(made), Span(1, *each)) for each in ((0, 3), (1, 4))] == [None, None]


def test_every_rule_has_a_case() -> None:
    assert set(RULES) == {*BUILDERS, "ReadValue"}  # of which test_rewrite has one, for it comes with an Assign


def span_of(op_type: str, result: Any, parameter: Any, rows: tuple[int, int]) -> Span | None:
    """What a device computes of an op in the largest region that gives it these rows of the result."""
    model = ov.Model([op.result(result)], [parameter], "rows")
    graph = graph_of(model)
    shapes = shapes_of(model, graph)
    region = shapes.region("rows", max(v for v in range(graph.num_ops) if shapes.runs[v]), 2)
    assert region is not None
    pieces = shapes.pieces(replace(region, shares={0: rows}), 0)
    assert pieces is not None
    return pieces[graph.op_types.index(op_type)][0]


def test_halos_of_a_chain_of_convolutions_are_as_wide_as_the_formula_says() -> None:
    """A row of the end reads k - 1 rows more for every layer, each as wide as the strides before it."""
    parameter, kernels, strides = op.parameter([1, 4, 64, 8], np.float32), (3, 5, 3), (2, 1, 2)
    x = op.relu(parameter)
    for k, stride in zip(kernels, strides, strict=True):
        filters = weights(np.random.default_rng(0), 4, 4, k, 1)
        x = op.convolution(x, filters, [stride, 1], [k // 2, 0], [k // 2, 0], [1, 1])
    halo = sum((k - 1) * each for k, each in zip(kernels, (1, 2, 2), strict=True))
    first = 4 * 4 - halo // 2
    assert span_of("Relu", x, parameter, (4, 8)) == Span(2, first, first + (8 - 4 - 1) * 4 + 1 + halo)


def test_an_op_that_is_read_with_several_ranges_computes_the_least_one_that_holds_them() -> None:
    """One of the two convolutions reads the row above, too, and one the row below."""
    parameter, filters = op.parameter([1, 4, 8, 8], np.float32), weights(np.random.default_rng(0), 4, 4, 2, 1)
    x = op.abs(parameter)
    above, below = (op.convolution(x, filters, [1, 1], [k, 0], [1 - k, 0], [1, 1]) for k in (1, 0))
    assert span_of("Abs", op.add(above, below), parameter, (3, 5)) == Span(2, 2, 6)


def test_a_factor_of_a_reshape_survives() -> None:
    assert through_reshape((2, 6, 8), (2, 6, 2, 4), Span(2, 1, 2)) == Span(2, 4, 8)
    assert through_reshape((2, 6, 2, 4), (2, 6, 8), Span(2, 4, 8)) == Span(2, 1, 2)
    assert [through_reshape((2, 6, 2, 4), (2, 6, 8), Span(2, *each)) for each in ((2, 8), (0, 6))] == [None, None]
    assert through_reshape((2, 6, 8), (2, 6, 2, 4), Span(3, 0, 2)) is None
    assert through_reshape((-1, -1, 8), (-1, -1, 2, 4), Span(2, 0, 1)) == Span(2, 0, 4)


@pytest.mark.parametrize(
    ("shape", "pattern", "span", "source"),
    [
        ((-1, 6, 6), (-1, 0), Span(1, 0, 3), None),  # six of each row, but there are six rows as well
        ((-1, 6, 6), (0, -1), Span(1, 0, 6), Span(1, 0, 1)),
        ((-1, -1, 8), (0, -1, 2, 4), Span(2, 0, 1), Span(2, 0, 4)),
        ((-1, -1, 8), (-1, 2, 4), Span(1, 0, 1), None),
    ],
)
def test_sizes_that_are_not_known_are_equal_where_a_pattern_says_so(
    shape: tuple[int, ...], pattern: tuple[int, ...], span: Span, source: Span | None
) -> None:
    found = piece_of(NodeView(op.reshape(op.parameter(list(shape), np.float32), ints(*pattern), True)), span)
    assert (found and found.inputs[0]) == source
