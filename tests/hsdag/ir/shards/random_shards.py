"""Random small graphs of every op type that has a rule, and random legal ways to divide a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as op
from openvino.utils.node_factory import NodeFactory

from hsdag.base.errors import PlacementError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.shards.regions import OpShapes, Region, Scheme
from hsdag.ir.shards.rewrite import ShardedModel, shapes_of, shard

Rng = np.random.Generator
CORE = ov.Core()
F32 = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
NAMES = "ABCD"
LARGEST_DIFFERENCE = 1e-5


def weights(rng: Rng, *shape: int) -> Any:
    """A constant."""
    return op.constant(rng.uniform(0.2, 1, shape).astype(np.float32) * rng.choice([-1, 1], shape).astype(np.float32))


def ints(*values: int) -> Any:
    """A constant of integers."""
    return op.constant(np.array(values, dtype=np.int64))


def number(value: float) -> Any:
    """A constant of one number."""
    return op.constant(np.float32(value))


def sizes(x: Any) -> list[int]:
    """The shape."""
    return list(value_of(x).get_shape())


def value_of(made: Any) -> Any:
    """The first result of a node, or the result itself."""
    return made.output(0) if isinstance(made, ov.Node) else made


def _like(rng: Rng, x: Any) -> Any:
    """A constant that is broadcast to x: some axes 1, leading ones left out, an extra one at times."""
    shape = [size if rng.random() < 0.6 else 1 for size in sizes(x)]
    return weights(rng, *shape[int(rng.integers(len(shape))) :])


def _matmul(rng: Rng, x: Any) -> Any:
    shape, is_int = sizes(x), int(rng.integers(4))
    a, b, out = rng.random() < 0.3, rng.random() < 0.5, int(rng.choice([6, 8]))
    size = shape[-2] if a else shape[-1]
    if is_int and size % 4 == 0 and b:
        return op.matmul(x, compressed(rng, out, size), a, True)
    batch = shape[:-2] if rng.random() < 0.3 else []
    return op.matmul(x, weights(rng, *batch, *((out, size) if b else (size, out))), a, b)


def compressed(rng: Rng, rows: int, columns: int) -> Any:
    """Weights of 8 or 4 bits with scales by row or group, and zero points at times."""
    kind, per_group = rng.choice(["i8", "u8", "i4", "u4"]), rng.random() < 0.5
    shape = [rows, columns // 4, 4] if per_group else [rows, columns]
    tensor = ov.Tensor(getattr(ov.Type, kind), ov.Shape(shape))
    stored = tensor.data.view(np.uint8)
    stored[:] = rng.integers(0, 256, stored.shape)
    value = op.convert(ov.op.Constant(tensor), "f32")
    along = [rows, columns // 4, 1] if per_group else [rows, 1]
    if rng.random() < 0.5:
        points = rng.integers(0, 7, along).astype(np.uint8)
        value = op.subtract(value, op.convert(op.constant(points), "f32"))
    scale = 0.01 if "8" in kind else 0.1
    value = op.multiply(value, op.multiply(weights(rng, *along), number(scale)))
    return op.reshape(value, ints(rows, columns), False) if per_group else value


def _attention(rng: Rng, x: Any) -> Any:
    shape = sizes(x)
    *batch, _, width = shape
    keys = int(rng.integers(3, 6))
    kv = [1 if rng.random() < 0.2 else size for size in batch]
    mask = [weights(rng, *([1] * len(batch) if rng.random() < 0.5 else []), shape[-2], keys)]
    given = [weights(rng, *kv, keys, width), weights(rng, *kv, keys, 6), *(mask if rng.random() < 0.5 else [])]
    return op.scaled_dot_product_attention(x, *given, causal=len(given) == 2 and rng.random() < 0.3)


def _window(rng: Rng) -> tuple[list[int], list[list[int]], list[int], str]:
    """Kernel, strides with padding before and behind, dilations and automatic padding of windows."""
    kernel, (strides, dilations) = rng.integers(1, 4, 2), rng.integers(1, 3, (2, 2)).tolist()
    pads = np.minimum(rng.integers(0, 3, (2, 2)), kernel - 1).tolist()
    auto = str(rng.choice(["explicit", "explicit", "same_upper", "same_lower", "valid"]))
    return kernel.tolist(), [strides, *pads], dilations, auto


def _convolution(rng: Rng, x: Any) -> Any:
    kernel, strides, dilations, auto = _window(rng)
    filters = weights(rng, int(rng.choice([4, 6])), sizes(x)[1], *kernel)
    return op.convolution(x, filters, *strides, dilations, auto)


def _group_convolution(rng: Rng, x: Any) -> Any:
    kernel, strides, dilations, auto = _window(rng)
    channels = sizes(x)[1]
    groups = int(rng.choice([g for g in range(1, channels + 1) if channels % g == 0]))
    filters = weights(rng, groups, int(rng.choice([1, 2])), channels // groups, *kernel)
    return op.group_convolution(x, filters, *strides, dilations, auto)


def _pool(rng: Rng, x: Any) -> tuple[list[Any], list[Any]]:
    """The input, strides and padding of a pool, and its rounding and automatic padding."""
    kernel, strides, _, auto = _window(rng)
    return [x, *strides, kernel], [str(rng.choice(["floor", "ceil"])), auto]


def _max_pool(rng: Rng, x: Any) -> Any:
    (x, strides, *padded), rounding = _pool(rng, x)
    return op.max_pool(x, strides, [1, 1], *padded, *rounding).output(0)


def _avg_pool(rng: Rng, x: Any) -> Any:
    given, rounding = _pool(rng, x)
    return op.avg_pool(*given, bool(rng.random() < 0.5), *rounding)


def _reshape(rng: Rng, x: Any) -> Any:
    """Split an axis in two, or join two neighbours."""
    shape = sizes(x)
    axis = int(rng.integers(len(shape)))
    if rng.random() < 0.5 and len(shape) < 5 and shape[axis] % 2 == 0:
        factors = [2, shape[axis] // 2] if rng.random() < 0.5 else [shape[axis] // 2, 2]
        target = [*shape[:axis], *factors, *shape[axis + 1 :]]
    else:
        axis = min(axis, len(shape) - 2)
        target = [*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]]
    if rng.random() < 0.4:
        target[int(rng.integers(len(target)))] = -1
    is_zero = bool(rng.random() < 0.5)
    if is_zero:
        target = [
            0 if k < len(shape) and size == shape[k] and rng.random() < 0.5 else size for k, size in enumerate(target)
        ]
    return op.reshape(x, ints(*target), is_zero)


def _strided_slice(rng: Rng, x: Any) -> Any:
    shape = sizes(x)
    count = int(rng.integers(1, len(shape) + 1))
    masks = [int(rng.random() < 0.6) for _ in range(count)]
    begin = [0 if mask else 1 for mask in masks]
    steps = [int(rng.choice([1, 1, 2])) for _ in masks]
    return op.strided_slice(x, ints(*begin), ints(*shape[:count]), ints(*steps), masks, masks)


def _pad(rng: Rng, x: Any) -> Any:
    count = len(sizes(x))
    before, behind = ((rng.integers(0, 2, count) * (rng.random(count) < 0.5)).tolist() for _ in range(2))
    mode = str(rng.choice(["constant", "edge"]))
    return op.pad(x, ints(*before), ints(*behind), mode, *([number(0.5)] if mode == "constant" else []))


def _gather(rng: Rng, x: Any) -> Any:
    axis = int(rng.integers(len(sizes(x))))
    shape = [3] if rng.random() < 0.7 or len(sizes(x)) > 3 else [2, 2]
    return op.gather(x, op.constant(rng.integers(0, sizes(x)[axis], shape)), op.constant(axis))


def _some_axes(rng: Rng, x: Any) -> list[int]:
    count = len(sizes(x))
    found = rng.permutation(count)[: int(rng.integers(1, max(count - 1, 1) + 1))]
    return [int(axis) - (count if rng.random() < 0.3 else 0) for axis in found]


def _reduction(name: str, before: Callable[[Any], Any] = lambda x: x) -> Callable[[Rng, Any], Any]:
    return lambda rng, x: _made(
        f"Reduce{name}", before(x), ints(*_some_axes(rng, x)), keep_dims=bool(rng.random() < 0.5 or len(sizes(x)) < 3)
    )


def _axis(rng: Rng, x: Any) -> int:
    return int(rng.integers(-len(sizes(x)), len(sizes(x))))


def _broadcast(rng: Rng, x: Any) -> Any:
    shape = sizes(x)
    if len(shape) < 5 and rng.random() < 0.5:
        return op.broadcast(x, ints(2, *shape))
    return op.broadcast(x, ints(*(3 if size == 1 else size for size in shape)))


def _split(rng: Rng, x: Any) -> Any:
    axis = _axis(rng, x)
    size = sizes(x)[axis]
    parts = op.split(x, op.constant(axis), 2) if size % 2 == 0 else None
    return None if parts is None else op.subtract(parts.output(0), op.sin(parts.output(1)))


def _variadic(rng: Rng, x: Any) -> Any:
    axis = _axis(rng, x)
    size = sizes(x)[axis]
    return None if size < 3 else op.variadic_split(x, op.constant(axis), ints(2, size - 2)).output(1)


def _quantised(rng: Rng, x: Any) -> Any:
    shape = [1, sizes(x)[1], *[1] * (len(sizes(x)) - 2)] if len(sizes(x)) > 1 and rng.random() < 0.5 else []
    low, high = (
        op.constant(np.full(shape, sign, np.float32) * rng.uniform(1, 3, shape).astype(np.float32)) for sign in (-1, 1)
    )
    return op.fake_quantize(x, low, high, low, high, 255)


def _image(build: Callable[[Rng, Any], Any]) -> Callable[[Rng, Any], Any]:
    return lambda rng, x: build(rng, x) if len(sizes(x)) == 4 else None


def _unary(name: str, before: Callable[[Any], Any] = lambda x: x) -> Callable[[Rng, Any], Any]:
    return lambda _, x: _made(name, before(x))


def _made(name: str, *inputs: Any, **attributes: Any) -> Any:
    return NodeFactory("opset13").create(name, [value_of(each) for each in inputs], attributes)


def _small(x: Any) -> Any:
    return op.clamp(x, -0.9, 0.9)


def _positive(x: Any) -> Any:
    return op.add(op.abs(x), number(1.1))


def _asked(name: str, inputs: Callable[[Rng, Any], Sequence[Any]]) -> Callable[[Rng, Any], Any]:
    return lambda rng, x: op.convert(_made(name, *inputs(rng, x)), "f32")


def _binary(name: str) -> Callable[[Rng, Any], Any]:
    return lambda rng, x: _made(name, *((x, _like(rng, x)) if rng.random() < 0.7 else (_like(rng, x), x)))


def _odd(_: Rng, x: Any) -> Sequence[Any]:
    """Numbers of which some are infinite and some are none."""
    return [op.log(op.ceiling(op.multiply(x, number(2))))]


BUILDERS: dict[str, Callable[[Rng, Any], Any]] = {
    **{
        name: _unary(name) for name in "Abs Asinh Atan Ceiling Cos Erf Floor HSigmoid HSwish Mish Negative Relu".split()
    },
    **{name: _unary(name) for name in "Sigmoid Sign Sin SoftPlus SoftSign Tanh".split()},
    **{name: _unary(name, _small) for name in "Acos Asin Atanh Cosh Exp Sinh Tan".split()},
    **{name: _unary(name, _positive) for name in "Acosh Log Sqrt".split()},
    **{
        name: _asked(name, lambda rng, x: (x, _like(rng, x)))
        for name in "Equal Greater GreaterEqual Less LessEqual NotEqual".split()
    },
    **{
        name: _asked(name, lambda rng, x: (op.greater(x, number(0.1)), op.less(x, _like(rng, x))))
        for name in "LogicalAnd LogicalOr LogicalXor".split()
    },
    **{name: _asked(name, _odd) for name in "IsFinite IsInf IsNaN".split()},
    **{name: _binary(name) for name in "Add Maximum Minimum Multiply SquaredDifference Subtract".split()},
    "Divide": lambda rng, x: op.divide(x, _like(rng, x)),
    "Power": lambda rng, x: op.power(_positive(_small(x)), _like(rng, x)),
    "FloorMod": lambda rng, x: op.floor_mod(x, op.abs(_like(rng, x))),
    "Mod": lambda rng, x: op.mod(x, op.abs(_like(rng, x))),
    "Clamp": lambda _, x: op.clamp(x, -0.7, 0.8),
    "Convert": lambda _, x: op.convert(op.convert(x, "f64"), "f32"),
    "Elu": lambda _, x: op.elu(x, 0.5),
    "Gelu": lambda rng, x: op.gelu(x, str(rng.choice(["erf", "tanh"]))),
    "Round": lambda _, x: op.round(x, "half_to_even"),
    "LogicalNot": _asked("LogicalNot", lambda _, x: [op.greater(x, number(0.3))]),
    "Select": lambda rng, x: op.select(op.greater(x, number(0)), x, _like(rng, x)),
    "FakeQuantize": _quantised,
    "PRelu": lambda rng, x: op.prelu(x, weights(rng, sizes(x)[1] if len(sizes(x)) > 1 else 1)),
    "ConvertLike": lambda _, x: op.convert_like(op.convert(x, "f64"), number(0)),
    "HardSigmoid": lambda _, x: op.hard_sigmoid(x, number(0.3), number(0.4)),
    "Selu": lambda _, x: op.selu(x, number(1.6), number(1.05)),
    "Swish": lambda _, x: op.swish(x, number(1.5)),
    **{f"Reduce{name}": _reduction(name) for name in "L1 Max Mean Min Sum".split()},
    "ReduceL2": _reduction("L2", _positive),
    "ReduceProd": _reduction("Prod", _small),
    "CumSum": lambda rng, x: op.cum_sum(
        x, op.constant(_axis(rng, x)), bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    ),
    "LRN": _image(lambda _, x: op.lrn(x, ints(1), 0.5, 0.7, 1.0, 3)),
    "MVN": lambda rng, x: op.mvn(x, ints(*_some_axes(rng, x)), True, 1e-2, "inside_sqrt"),
    "NormalizeL2": lambda _, x: op.normalize_l2(x, ints(1), 0.1, "add") if len(sizes(x)) in (3, 4) else None,
    "LogSoftmax": lambda rng, x: op.log_softmax(x, _axis(rng, x)),
    "Softmax": lambda rng, x: op.softmax(x, _axis(rng, x)),
    "TopK": lambda rng, x: op.topk(x, op.constant(2), _axis(rng, x), "max", "value").output(0),
    "Split": _split,
    "VariadicSplit": _variadic,
    "AvgPool": _image(_avg_pool),
    "MaxPool": _image(_max_pool),
    "BatchNormInference": lambda rng, x: op.batch_norm_inference(
        x, *(weights(rng, *sizes(x)[1:2]) for _ in range(3)), op.abs(weights(rng, *sizes(x)[1:2])), 1e-2
    ),
    "Broadcast": _broadcast,
    "Concat": lambda rng, x: op.concat([x, op.tanh(x), x][: int(rng.integers(2, 4))], _axis(rng, x)),
    "Convolution": _image(_convolution),
    "Gather": _gather,
    "GroupConvolution": _image(_group_convolution),
    "Interpolate": _image(lambda _, x: op.interpolate(x, ints(2 * sizes(x)[2]), "nearest", "sizes", axes=ints(2))),
    "MatMul": lambda rng, x: _matmul(rng, x) if len(sizes(x)) > 1 else None,
    "Pad": _pad,
    "Reshape": lambda rng, x: _reshape(rng, x) if len(sizes(x)) > 1 else None,
    "ScaledDotProductAttention": lambda rng, x: _attention(rng, x) if len(sizes(x)) > 2 else None,
    "Slice": lambda rng, x: op.slice(x, ints(1), ints(6), ints(int(rng.integers(1, 3))), ints(_axis(rng, x))),
    "Squeeze": lambda _, x: op.squeeze(op.unsqueeze(x, ints(0)), ints(0)) if len(sizes(x)) < 4 else None,
    "StridedSlice": _strided_slice,
    "Tile": lambda rng, x: op.tile(x, ints(*[int(k) for k in rng.choice([1, 1, 2], len(sizes(x)))])),
    "Transpose": lambda rng, x: op.transpose(x, ints(*rng.permutation(len(sizes(x))).tolist())),
    "Unsqueeze": lambda rng, x: op.unsqueeze(x, ints(_axis(rng, x))) if len(sizes(x)) < 4 else None,
}
"""By op type, what makes one that reads a value; None where it does not read such a value."""


def random_model(rng: Rng, names: Sequence[str] = tuple(BUILDERS), count: int = 6) -> ov.Model:
    """A graph of ``count`` ops of random types, which read each other at random, and what these need."""
    shape = [int(rng.choice(size)) for size in ([1, 2], [4, 6, 8], [6, 8, 9], [5, 8])]
    parameter = op.parameter(shape if rng.random() < 0.6 else shape[:3], np.float32)
    values = [value_of(op.relu(parameter) if rng.random() < 0.3 else op.sin(parameter))]
    while len(values) <= count:
        x = values[-1] if rng.random() < 0.8 else values[int(rng.integers(len(values)))]
        try:
            made = BUILDERS[str(rng.choice(names))](rng, x)
        except RuntimeError:
            continue  # the op takes no such shape
        if made is None or not 1 < np.prod(sizes(made)) < 5000 or len(sizes(made)) > 5:
            continue
        same = [each for each in values if sizes(each) == sizes(made)]
        is_joined = same and rng.random() < 0.3
        values.append(value_of(op.add(made, same[int(rng.integers(len(same)))]) if is_joined else made))
    results = [op.result(values[-1])]
    if rng.random() < 0.3:
        results.append(op.result(op.cos(values[int(rng.integers(len(values)))])))
    return ov.Model(results, [parameter], "random")


def inputs_of(model: ov.Model, rng: Rng, integers: tuple[int, int] = (0, 2)) -> list[Any]:
    """Random inputs, of 4 tokens where sizes are open; lists of integers are zeros (indices of beams)."""
    found = []
    for port in model.inputs:
        sizes_ = [size.get_length() if size.is_static else 4 if k else 1 for k, size in enumerate(port.partial_shape)]
        dtype = port.get_element_type().to_dtype()
        real = np.issubdtype(dtype, np.floating)
        drawn = rng.standard_normal(sizes_) if real else rng.integers(*integers, sizes_) * (len(sizes_) > 1)
        found.append(drawn.astype(dtype))
    return found


def outputs_of(model: ov.Model, inputs: Sequence[Any]) -> list[Any]:
    """What a model computes, in full precision."""
    request = CORE.compile_model(model, "CPU", F32).create_infer_request()
    request.infer(list(inputs))
    return [np.array(tensor.data) for tensor in request.output_tensors]


def difference(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest difference over the largest value of all; infinite where only one side is finite."""
    a, b = (np.concatenate([each.ravel().astype(np.float64) for each in tensors]) for tensors in (found, wanted))
    is_finite, shapes = np.isfinite(b), [[each.shape for each in tensors] for tensors in (found, wanted)]
    if shapes[0] != shapes[1] or not np.array_equal(np.isfinite(a), is_finite):
        return np.inf
    worst = float(np.abs(a[is_finite] - b[is_finite]).max(initial=0.0))
    return worst / float(np.abs(b[is_finite]).max()) if worst > 0 else 0.0


def quantisation(model: ov.Model, inputs: Sequence[Any], wanted: Sequence[Any]) -> float:
    """How far outputs move where every quantised number moves a step up or down; 0 in a model without any.

    A number at the edge between two steps may be rounded to either.
    """
    found, rng = [0.0], np.random.default_rng(0)
    for _ in range(3 if any(node.get_type_name() == "FakeQuantize" for node in model.get_ops()) else 0):
        moved = model.clone()
        for node in [each for each in moved.get_ordered_ops() if each.get_type_name() == "FakeQuantize"]:
            readers, steps = node.output(0).get_target_inputs(), node.get_attributes()["levels"] - 1
            signs = rng.choice([-1.0, 1.0], sizes(node)).astype(np.float32) / np.float32(steps)
            step = op.multiply(op.subtract(node.input_value(4), node.input_value(3)), op.constant(signs))
            for reader in readers:
                reader.replace_source_output(op.add(node, step).output(0))
        found.append(difference(outputs_of(moved, inputs), wanted))
    return max(found)


def random_regions(graph: ComputationGraph, shapes: OpShapes, rng: Rng, count: int, num_devices: int) -> list[Region]:
    """Disjoint regions of random ends, axes, lengths and shares, with ops on every device beside them.

    A share may be all but nothing, and a device may have none.
    """
    found: list[Region] = []
    taken: set[int] = set()
    running = [v for v in range(graph.num_ops) if shapes.runs[v]]
    for v in rng.permutation(running).tolist():
        axes = [None, *range(shapes.op(v).rank)]
        axis = axes[int(rng.integers(len(axes)))]
        if len(found) == count or v in taken:
            continue
        some = [u for u in running if u < v and rng.random() < 0.15]
        scheme: Scheme = "hidden" if axis is None else "rows"
        region = shapes.region(scheme, v, axis, {*taken, *some})
        grain = None if region is None else shapes.grain(region)
        if region is None or grain is None:
            continue
        size = shapes.extent(region) // grain
        marks = np.sort(rng.integers(0, size + 1, num_devices - 1)).tolist()
        bounds = [0, *(k * grain for k in marks), size * grain]
        order = rng.permutation(num_devices).tolist()
        shares = {d: (bounds[k], bounds[k + 1]) for k, d in enumerate(order) if bounds[k] < bounds[k + 1]}
        found.append(Region(scheme, region.ops, region.axes, shares))
        taken |= set(region.ops)
    rest = [v for v in running if v not in taken and graph.op_types[v] not in ("ReadValue", "Assign")]
    repeated = tuple(sorted(rng.choice(rest, len(rest) // 3, replace=False).tolist())) if len(rest) > 2 else ()
    if repeated:
        everywhere = dict.fromkeys(rng.permutation(num_devices)[: max(2, num_devices - 1)].tolist(), (0, 1))
        found.append(Region("replicated", repeated, (None,) * len(repeated), everywhere))
    return found


def random_sharding(
    model: ov.Model, rng: Rng, count: int = 2, tries: int = 20
) -> tuple[list[Region], ShardedModel] | None:
    """A legal way to divide a model over two to four devices; None where so many tries find none."""
    graph, num_devices = graph_of(model), int(rng.integers(2, 5))
    shapes = shapes_of(model, graph)
    for _ in range(tries):
        regions = random_regions(graph, shapes, rng, count, num_devices)
        if not any(len(region.shares) > 1 and region.scheme != "replicated" for region in regions):
            continue
        homes = rng.integers(0, num_devices, graph.num_ops).tolist()
        try:
            return regions, shard(model, graph, regions, homes, NAMES[:num_devices])
        except PlacementError:
            continue  # what is read outside a region is not all there
    return None
