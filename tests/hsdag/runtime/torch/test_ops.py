"""The table of builders against OpenVINO's CPU device, op by op; what is left to OpenVINO, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray
from openvino import opset1, opset2, opset3, opset8, opset10, opset14
from openvino import opset13 as ops

from hsdag.ir.graph.reader import input_name
from hsdag.models import MODELS, build_model
from hsdag.runtime.torch.graph import TorchGraph, openvino_graph
from hsdag.runtime.torch.op import UnsupportedOpError, constant_tensor
from hsdag.runtime.torch.ops import build_op

Array = NDArray[Any]
Build = Callable[..., ov.Node | ov.Output]

BAR = 1e-4


def numbers(*shape: int, scale: float = 1.0, seed: int = 0) -> NDArray[np.float32]:
    return scale * np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def results_of(graph: TorchGraph, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    values: dict[tuple[int, int], torch.Tensor] = {}
    for v in graph.order.tolist():
        node = graph.nodes[v]
        made = node.constants or (() if node.feed is None else (inputs[node.feed.tensor],))
        results = made if node.run is None else node.run([values[read] for read in node.reads])
        values |= {(v, port): x for port, x in enumerate(results)}
    return [values[read] for read in graph.outputs.values()]


CORE = ov.Core()


def model_of(build: Build, arrays: Sequence[Array]) -> ov.Model:
    parameters = [ops.parameter(list(x.shape), x.dtype) for x in arrays]
    made = build(*parameters)
    results = [ops.result(port) for port in (made.outputs() if isinstance(made, ov.Node) else [made])]
    return ov.Model(results, parameters)


def all_agree(cases: Iterable[tuple[Build, tuple[Array, ...]]], in_torch: bool | None = True) -> None:
    """Ops compute what OpenVINO computes of all in one model; ``in_torch`` is who must run them, None for either."""
    cases = list(cases)
    models = [model_of(build, arrays) for build, arrays in cases]
    whole = ov.Model([r for m in models for r in m.get_results()], [p for m in models for p in m.get_parameters()])
    compiled = CORE.compile_model(whole, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = iter(compiled([x for _, arrays in cases for x in arrays]).values())
    for (_, arrays), model in zip(cases, models, strict=True):
        check(model, arrays, [np.array(next(found)) for _ in model.outputs], in_torch)


def check(model: ov.Model, arrays: Sequence[Array], wanted: Sequence[Array], in_torch: bool | None) -> None:
    named, shown = [op.get_name() for op in model.get_ordered_ops()], str(model.get_ordered_ops()[-2])
    graph = openvino_graph(model)
    assert [op.get_name() for op in model.get_ordered_ops()] == named  # ops that OpenVINO evaluates stay in place
    assert in_torch is None or all(node.in_torch for node in graph.nodes) is in_torch, shown
    inputs = {input_name(port): torch.from_numpy(x) for port, x in zip(model.inputs, arrays, strict=True)}
    before = {name: x.clone() for name, x in inputs.items()}
    for got, x in zip(results_of(graph, inputs), wanted, strict=True):
        found = got.numpy()
        assert (found.shape, found.dtype) == (x.shape, x.dtype), shown
        finite = np.isfinite(x) if x.dtype.kind == "f" else np.ones(x.shape, np.bool_)
        np.testing.assert_array_equal(found[~finite], x[~finite], shown)
        if finite.any():
            scale = np.abs(x[finite].astype(np.float64)).max() or 1.0
            assert np.abs(found[finite].astype(np.float64) - x[finite]).max() <= BAR * scale, shown
    for name, kept in before.items():
        np.testing.assert_array_equal(inputs[name].numpy(), kept.numpy(), shown)


UNARY = ("relu sigmoid tanh exp erf abs negative floor ceiling sign hswish hsigmoid softplus mish sin cos tan "
         "atan sinh cosh asinh swish").split()  # fmt: skip
REALS_TO = {"asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9), "log": (1e-6, 9), "sqrt": (0, 9),
            "acosh": (1.0, 1e3)}  # fmt: skip
ARITHMETIC = "add subtract multiply maximum minimum squared_difference divide mod floor_mod".split()
COMPARISONS = "equal not_equal greater greater_equal less less_equal".split()
LOGIC = "logical_and logical_or logical_xor".split()


def test_functions_of_reals_agree() -> None:
    rng = np.random.default_rng(0)
    cases = dict.fromkeys(UNARY, (-4.0, 4.0)) | REALS_TO
    all_agree((getattr(ops, name), (rng.uniform(*ends, (3, 5)).astype(np.float32),)) for name, ends in cases.items())


@pytest.mark.parametrize("other", [(3, 1, 5), (2, 1), (5,), (1,)])
def test_ops_of_two_operands_broadcast_as_openvino_does(other: tuple[int, ...]) -> None:
    rng, cases = np.random.default_rng(0), list[tuple[Build, tuple[Array, ...]]]()
    for name, kind in itertools.product([*ARITHMETIC, *COMPARISONS], (np.float32, np.int32)):
        first = rng.integers(-4 if name != "divide" else 1, 5, (3, 2, 5)).astype(kind)
        least = 1 if name in ("divide", "mod", "floor_mod") else -4
        cases.append((getattr(ops, name), (first, rng.integers(least, 5, other).astype(kind))))
    all_agree(cases)


def test_ops_of_several_element_types_agree() -> None:
    all_agree(
    [
        *((getattr(ops, name), (np.array([[True], [False]]), np.array([True, False]))) for name in LOGIC),
        (ops.logical_not, (np.array([True, False]),)),
        *(
            (getattr(ops, f"bitwise_{name}"), (np.array([[12], [-7]], np.int32), np.array([10, 5], np.int32)))
            for name in ("and", "or", "xor")
        ),
        (ops.bitwise_not, (np.array([0, 5, -9], np.int32),)),
        *((build, (np.array([np.inf, -np.inf, np.nan, 1.0], np.float32),)) for build in (opset10.is_nan,
                                                                                        opset10.is_finite)),
        (ops.select, (np.array([[True], [False]]), numbers(3, 1, 4), numbers(2, 4, seed=1))),
        (ops.power, (np.abs(numbers(2, 3, 4)), numbers(3, 1, seed=1))),
        (lambda x: ops.power(x, np.float32(3)), (numbers(4, 5),)),
        (ops.convert_like, (np.array([-1.5, 2.7], np.float32), np.array([1], np.int32))),
        *((build, (np.arange(-5, 6, dtype=np.int32),)) for build in (ops.relu, ops.abs, ops.negative)),
        *(
            (lambda x, kind=kind: ops.convert(x, kind), (np.array([0.0, 0.4, 1.6, 2.5, 100.9], np.float32),))
            for kind in ("i32", "i64", "f16", "boolean", "u8", "i8")
        ),
        *(
            (lambda x: ops.convert(x, "f32"), (np.array([0, 1, 0, 1]).astype(kind),))
            for kind in (np.int64, np.bool_, np.uint8, np.float16)
        ),
    ])  # fmt: skip


def test_ops_with_attributes_agree() -> None:
    builds: list[Build] = [
        lambda x: ops.gelu(x, "erf"),
        lambda x: ops.gelu(x, "tanh"),
        lambda x: ops.clamp(x, -0.5, 0.8),
        lambda x: ops.swish(x, np.float32(1.7)),
        lambda x: ops.softmax(x, -2),
        lambda x: opset1.softmax(x, 1),
        lambda x: ops.log_softmax(x, 2),
        lambda x: ops.mvn(x, [2, 3], True, 1e-5, "inside_sqrt"),
        lambda x: opset2.mvn(x, True, True, 1e-3),
        lambda x: opset2.mvn(x, False, True, 1e-3),
        lambda x: ops.reshape(x, [0, -1], special_zero=True),
        lambda x: ops.reshape(x, [4, 1, 60], special_zero=False),
        lambda x: ops.unsqueeze(x, [0, -1]),
        lambda x: ops.transpose(x, [2, 0, 3, 1]),
        lambda x: ops.transpose(x, np.array([], np.int64)),
        lambda x: ops.split(x, 1, 3),
        lambda x: ops.split(x, -1, 2),
        lambda x: ops.variadic_split(x, -1, [1, -1, 2]),
        lambda x: ops.concat([x, x], -2),
        lambda x: ops.tile(x, [2, 1]),
        lambda x: ops.tile(x, [2, 1, 3, 1, 1]),
        lambda x: ops.broadcast(x, [5, 2, 6, 5, 4]),
        lambda x: opset3.broadcast(x, [1, 4], broadcast_spec="BIDIRECTIONAL"),
        lambda x: ops.pad(x, [0, 0, 1, 2], [1, 0, 0, 3], "constant"),
        lambda x: ops.pad(x, [0, 0, -1, 2], [0, 1, 0, -1], "constant", np.float32(1.5)),
        lambda x: ops.slice(x, [1, -3], [2, 1000], [1, 2]),
        lambda x: ops.slice(x, [0], ops.gather(ops.shape_of(x), np.array([3]), np.array(0)), [1], [1]),
        lambda x: opset1.max_pool(x, [2, 2], [0, 0], [0, 0], [3, 2], "floor", "same_upper"),
    ]  # fmt: skip
    all_agree((build, (numbers(2, 6, 5, 4, scale=2.0),)) for build in builds)


def test_reductions_agree() -> None:
    def reduction(name: str, axes: list[int], keep: bool) -> Build:
        return lambda p: getattr(ops, f"reduce_{name}")(p, axes, keep)

    x = np.random.default_rng(0).integers(1, 9, (2, 3, 4))
    whole, real, kinds = x.astype(np.int32), (x - 0.5).astype(np.float32), (([0, -1], False), ([1], True))
    cases = ((reduction(name, *kind), (real,)) for name in "mean sum max min prod l1 l2".split() for kind in kinds)
    of_whole = ((reduction(name, [0, 1, 2], True), (whole,)) for name in "mean sum max min".split())
    all_agree(itertools.chain(cases, of_whole), None)
    logical = np.array([[True, True], [True, False], [False, False]])
    all_agree((reduction(f"logical_{name}", [1], False), (logical,)) for name in ("and", "or"))


def test_products_and_attention_agree() -> None:
    def product(turn_a: bool, turn_b: bool) -> Build:
        return lambda x, y: ops.matmul(x, y, turn_a, turn_b)

    def attention(causal: bool, **scale: float) -> Build:
        fixed = {name: np.float32(value) for name, value in scale.items()}
        return lambda *xs: ops.scaled_dot_product_attention(*xs, causal=causal, **fixed)

    plain, turned = product(False, False), product(True, True)
    query, key, value = numbers(2, 3, 5, 4), numbers(2, 3, 7, 4, seed=1), numbers(2, 3, 7, 6, seed=2)
    given, bias, seen = (query, key, value), numbers(2, 3, 5, 7, seed=3), np.random.default_rng(0).random((5, 7)) < 0.7
    all_agree([
        (plain, (numbers(3, 4), numbers(4, 5, seed=1))),
        (turned, (numbers(4, 3), numbers(5, 4, seed=1))),
        (plain, (numbers(4), numbers(4, 5, seed=1))),
        (turned, (numbers(4), numbers(5, 4, seed=1))),
        (plain, (numbers(2, 3, 4), numbers(4, seed=1))),
        (product(True, False), (numbers(2, 1, 4, 3), numbers(6, 4, 5, seed=1))),
        *((attention(causal), given) for causal in (False, True)),
        *((attention(False), (*given, mask)) for mask in (bias, bias[:1, :1, :1], seen)),
        (attention(False, scale=0.3), (*given, bias[0, 0])),
    ])  # fmt: skip


def test_slices_agree_whatever_their_limits_steps_and_masks() -> None:
    def plain(start: list[int], stop: list[int], step: list[int]) -> tuple[Build, tuple[Array]]:
        return lambda x: ops.slice(x, start, stop, step, [2, -2]), (numbers(2, 5, 6),)

    def strided(*how: list[int]) -> tuple[Build, tuple[Array]]:
        return lambda x: ops.strided_slice(x, *how), (numbers(5, 6, 2),)

    all_agree([
        plain([1, -3], [4, 100], [1, 2]), plain([-9, 0], [5, -1], [2, 3]),
        strided([1, 2], [4, 9], [2, 1], [0, 1], [0, 0]), strided([-4, 1], [2, -1], [1, 3], [0, 0], [1, 0]),
    ])  # fmt: skip
    backward = plain([4, 0], [-9, 3], [-1, 1]), strided([4, 0], [0, 3], [-2, 1], [0, 0], [1, 0])
    all_agree(backward, in_torch=False)


def test_strided_slice_with_new_lost_and_skipped_axes_agrees() -> None:
    def strided(begin: list[int], end: list[int], **masks: list[int]) -> Build:
        none = [0] * len(begin)
        return lambda x: ops.strided_slice(x, begin, end, [1] * len(begin), none, none, **masks)

    builds = [
        strided([0, 1], [0, 2], new_axis_mask=[1, 0]),
        strided([-1, 1], [0, 2], shrink_axis_mask=[1, 0]),
        strided([0, 1], [0, 3], ellipsis_mask=[1, 0]),
        strided([1, 0, 1], [2, 0, 3], ellipsis_mask=[0, 1, 0], shrink_axis_mask=[1, 0, 0]),
        strided([0, 0, 2], [0, 0, 3], ellipsis_mask=[1, 0, 0], new_axis_mask=[0, 1, 0]),
    ]
    all_agree((build, (numbers(3, 4, 5),)) for build in builds)


def test_gather_agrees_and_gives_zeros_for_indices_out_of_range() -> None:
    def gather(opset: Any, axis: int, *indices: Array) -> Build:
        return lambda x, *given: opset.gather(x, *(given or indices), np.int64(axis))

    rng, cases = np.random.default_rng(0), list[tuple[Build, tuple[Array, ...]]]()
    for opset, axis, rank in itertools.product((opset1, ops), (-3, -1, 0, 1), (1, 2)):
        indices = np.asarray(rng.integers(-6, 7, rng.integers(1, 4, rank)), np.int32)
        x = numbers(2, 4, 3)
        cases += [(gather(opset, axis, indices), (x,)), (gather(opset, axis), (x, indices))]
    all_agree(cases)


WINDOWS = (
    ([3, 3], [1, 1], [1, 1], [1, 1], [1, 1]),
    ([3, 2], [2, 1], [1, 0], [0, 1], [1, 1]),
    ([2, 3], [3, 2], [0, 1], [1, 2], [2, 1]),
    ([2, 2], [1, 1], [1, 0], [0, 0], [1, 1]),
    ([3, 3], [3, 3], [2, 2], [0, 0], [1, 1]),
    ([3, 3], [1, 1], [2, 2], [2, 2], [1, 1]),
    ([3, 3], [2, 2], [2, 1], [1, 1], [1, 2]),
)
"""Kernels, strides, paddings at the beginning and the end, and dilations."""
EVEN = [window for window in WINDOWS if window[-1] == [1, 1]]


def test_convolution_agrees_whatever_its_window() -> None:
    def convolution(auto: str, groups: int, kernel: list[int], *window: list[int]) -> Build:
        build, shape = (ops.group_convolution, (groups, 3, 4 // groups)) if groups else (ops.convolution, (3, 4))
        return lambda x: build(x, numbers(*shape, *kernel, seed=1), *window, auto)

    kinds = itertools.product(("explicit", "same_upper", "same_lower", "valid"), (0, 1, 2), WINDOWS)
    all_agree((convolution(auto, groups, *window), (numbers(1, 4, 9, 8),)) for auto, groups, window in kinds)


@pytest.mark.parametrize(("sizes", "kernel"), [((11,), (3,)), ((5, 6, 7), (2, 3, 1))])
def test_windows_of_one_and_three_axes_agree(sizes: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    weights, ones, x = numbers(4, 2, *kernel, seed=1), [1] * len(sizes), (numbers(2, 2, *sizes),)
    convolution = (lambda x: ops.convolution(x, weights, ones, ones, [0] * len(sizes), ones), x)
    all_agree([convolution, (lambda x: opset8.max_pool(x, ones, ones, ones, ones, [2] * len(sizes)).output(0), x)])


def test_pools_agree_whatever_their_windows() -> None:
    def max_pool(rounding: str, kernel: list[int], strides: list[int], *sides: list[int]) -> Build:
        begin, end, dilations = sides
        return lambda x: opset14.max_pool(x, strides, dilations, begin, end, kernel, rounding).output(0)

    def avg_pool(rounding: str, auto: str, exclude: bool, kernel: list[int], *window: list[int]) -> Build:
        return lambda x: opset14.avg_pool(x, *window[:3], kernel, exclude, rounding, auto)

    roundings, x = ("floor", "ceil_torch"), (numbers(2, 3, 9, 8),)
    all_agree((max_pool(rounding, *window), x) for rounding in roundings for window in WINDOWS)
    kinds = itertools.product(roundings, ("explicit", "valid", "same_upper", "same_lower"), (True, False), EVEN)
    all_agree(((avg_pool(rounding, auto, exclude, *window), x) for rounding, auto, exclude, window in kinds), None)


def test_what_the_table_lacks_is_evaluated_by_openvino() -> None:
    all_agree(
        [
            (lambda x: ops.topk(x, np.int32(2), 1, "max", "value"), (numbers(3, 5),)),
            (lambda x, i: ops.gather(x, i, 1, 1), (numbers(2, 3), np.array([[0, 2], [1, 1]], np.int32))),
            (lambda x: ops.pad(x, [1, 2], [0, 3], "reflect"), (numbers(3, 5),)),
            (lambda x: ops.clamp(x, -1.5, 2.5), (np.arange(-5, 6, dtype=np.int32),)),
            (lambda x: ops.mvn(x, [1], True, 1e-5, "inside_sqrt"), (numbers(2, 3, 4),)),
            (lambda x: ops.mvn(x, [-1], True, 1e-2, "outside_sqrt"), (numbers(2, 3, 4),)),
            (lambda x: ops.mvn(x, [-1], False, 1e-5, "inside_sqrt"), (numbers(2, 3, 4),)),
            (lambda x: ops.topk(ops.non_zero(x), np.int32(1), 0, "max", "value").output(0), (numbers(2, 3),)),
            (lambda x: ops.shape_of(ops.non_zero(x)), (np.array([[0, 3], [2, 0]], np.float32),)),
            (lambda x: ops.reduce_sum(x, [1], False), (np.array([[30000, 30000], [1, 2]], np.int16),)),
            (lambda x: ops.max_pool(x, [1, 1], [1, 1], [0, 0], [0, 0], [2, 2]), (numbers(1, 2, 4, 4),)),
            (lambda x, n: ops.tile(x, n), (numbers(2, 3), np.array([2, 1], np.int64))),
            (lambda x: ops.non_zero(x), (np.array([[0, 3], [2, 0]], np.float32),)),
            (lambda x: ops.fake_quantize(x, *map(np.float32, (-1, 1.5, -3, 5)), 16), (numbers(4, 5),)),
        ],
        in_torch=False,
    )


def test_what_depends_on_constants_alone_is_computed_once() -> None:
    all_agree([(lambda: ops.topk(ops.relu(ops.constant(numbers(2, 3))), np.int32(2), 1, "max", "value"), ())])


@pytest.mark.parametrize(
    ("build", "given", "wanted"),
    [
        (ops.divide, (np.array([7, -9, -7, 9], np.int32), np.array([2, 4, -2, -4], np.int32)), [3, -3, 3, -3]),
        (lambda x: ops.reduce_sum(x, np.array([], np.int64), False), (np.array([2.0, 3.0], np.float32),), [2, 3]),
    ],
)
def test_ops_are_as_they_are_defined_where_openvinos_cpu_device_is_not(
    build: Build, given: tuple[Array, ...], wanted: list[float]
) -> None:
    """It divides negative integers towards zero, and refuses to reduce no axes."""
    model = model_of(build, given)
    inputs = {input_name(port): torch.from_numpy(x) for port, x in zip(model.inputs, given, strict=True)}
    assert results_of(openvino_graph(model), inputs)[0].tolist() == wanted


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ops.constant(np.array([1], np.uint16)), "Constant .* has element type u16; .* f64, f32"),
        (lambda: opset3.assign(opset3.read_value(ops.parameter([1], np.float32), "v"), "v"), "Assign .* keeps state"),
        (lambda: ops.convert(ops.parameter([1], np.float32), "u16"), "Convert .* has element type u16"),
    ],
)
def test_what_runs_nowhere_is_refused_by_name(build: Callable[[], ov.Node], words: str) -> None:
    with pytest.raises(UnsupportedOpError, match=words):
        build_op(build())


def test_an_input_of_an_open_shape_is_refused() -> None:
    x = ops.parameter([-1, 3], np.float32)
    with pytest.raises(UnsupportedOpError, match=r"has the open shape \[\?,3\]"):
        openvino_graph(ov.Model([ops.result(ops.relu(x))], [x], "open"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [spec.name for spec in MODELS if spec.name.startswith("tiny")])
def test_every_op_of_the_zoo_runs_in_torch_without_reading_a_value(name: str) -> None:
    """Meta tensors have shapes and no contents: a branch on data or a wait for it would fail."""
    graph = openvino_graph(build_model(name))
    assert all(node.in_torch for node in graph.nodes)
    nodes = tuple(replace(node, constants=tuple(x.to("meta") for x in node.constants)) for node in graph.nodes)
    feeds = [node.feed for node in nodes if node.feed is not None]
    inputs = {feed.tensor: torch.empty(feed.shape, dtype=feed.dtype, device="meta") for feed in feeds}
    results = results_of(replace(graph, nodes=nodes), inputs)
    assert {x.device.type for x in results} == {"meta"}


@pytest.mark.parametrize("name", "f64 f32 f16 bf16 i64 i32 i16 i8 u8 i4 u4 boolean".split())
def test_a_constant_keeps_its_values_with_their_sign_and_size(name: str) -> None:
    values = {"i4": [-8, 7, -1], "u4": [15, 8, 1], "bf16": [-2.5, 0.75, 384.0], "boolean": [True, False, True]}
    expected = values.get(name, [1, 0, 5])
    assert constant_tensor(ov.op.Constant(getattr(ov.Type, name), ov.Shape([3]), expected)).tolist() == expected
