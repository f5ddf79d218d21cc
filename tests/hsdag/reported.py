"""Small models, each built after a public report of people who convert models or run them on several devices.

What a report was about is in the docstring of its function; nothing but the idea is taken from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from onnx import helper as h
from openvino import opset15 as op

RNG = np.random.default_rng(0)
Builder = Callable[[Path], Path]
REPORTS: dict[str, Builder] = {}
"""What writes the model of each report into a folder, by the repository and number of the report."""


def report(name: str) -> Callable[[Builder], Builder]:
    def add(build: Builder) -> Builder:
        REPORTS[name] = build
        return build

    return add


def weights(*sizes: int) -> NDArray[np.float32]:
    values = RNG.standard_normal(sizes) / np.sqrt(sizes[-1])
    return np.asarray(values, dtype=np.float32)


def saved(folder: Path, outputs: Sequence[Any], inputs: Sequence[Any], name: str = "model.xml") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    ov.save_model(ov.Model(list(outputs), list(inputs), "reported"), path, compress_to_fp16=False)
    return path


def onnx_file(folder: Path, nodes: Any, inputs: Any, outputs: Any, constants: dict[str, Any], **saving: Any) -> Path:
    """An ONNX model; inputs and outputs are names with types and sizes."""

    def of(ports: Any) -> list[Any]:
        return [h.make_tensor_value_info(*port) for port in ports]

    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = h.make_graph(nodes, "reported", of(inputs), of(outputs), held)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)
    path = folder / "model.onnx"
    onnx.save_model(model, str(path), **saving)
    return path


def dense(x: Any, size: int = 64, out: int = 64) -> Any:
    return op.matmul(x, op.constant(weights(size, out)), False, False)


@report("openvinotoolkit/openvino#25418")
def shapes_shared_by_layers(folder: Path) -> Path:
    """The last layer on another device: sizes that both layers compute from one ShapeOf became wrong at the cut."""
    x = op.parameter([2, 16, 64], np.float32, name="x")
    sizes = op.shape_of(x)
    rows = op.gather(sizes, op.constant([0, 1]), op.constant(0))
    split = op.concat([rows, op.constant(np.array([4, 16]))], 0)
    y: Any = x
    for _ in range(2):
        heads = [op.transpose(op.reshape(dense(y), split, False), op.constant([0, 2, 1, 3])) for _ in range(3)]
        mixed = op.transpose(op.scaled_dot_product_attention(*heads), op.constant([0, 2, 1, 3]))
        y = op.add(y, dense(op.reshape(mixed, sizes, False)))
    return saved(folder, [y], [x])


@report("openvinotoolkit/openvino#11668")
def heavy_convolutions(folder: Path) -> Path:
    """The heaviest convolutions, fused with what follows, were put on another device by hand."""
    x = op.parameter([1, 8, 16, 16], np.float32, name="image")
    y: Any = x
    for _ in range(4):
        y = op.convolution(y, op.constant(weights(8, 8, 3, 3)), [1, 1], [1, 1], [1, 1], [1, 1])
        y = op.relu(op.add(y, op.constant(weights(1, 8, 1, 1))))
    return saved(folder, [y], [x])


@report("openvinotoolkit/openvino#2872")
def empty_submodels(folder: Path) -> Path:
    """Submodels of an input that is an output, and of a constant that is one, are what plugins did not compile."""
    x, y = (op.parameter([4, 64], np.float32, name=name) for name in "xy")
    return saved(folder, [x, op.constant(weights(2, 3)), op.relu(dense(y))], [x, y])


@report("openvinotoolkit/openvino#10834")
def a_constant_output(folder: Path) -> Path:
    """One of several outputs is a constant (prior boxes), which was lost."""
    nodes = [h.make_node("Gemm", ["x", "w"], ["scores"]), h.make_node("Identity", ["boxes"], ["priors"])]
    outputs = [("scores", TensorProto.FLOAT, [2, 8]), ("priors", TensorProto.FLOAT, [5, 4])]
    constants = {"w": weights(16, 8), "boxes": weights(5, 4)}
    return onnx_file(folder, nodes, [("x", TensorProto.FLOAT, [2, 16])], outputs, constants)


@report("openvinotoolkit/openvino#12496")
def outputs_that_stay_dynamic(folder: Path) -> Path:
    """Inputs have fixed shapes, and an output's size depends on values."""
    x = op.parameter([8, 64], np.float32, name="x")
    chosen = op.non_zero(op.greater(dense(x), op.constant(np.float32(0))), "i64")
    return saved(folder, [op.relu(dense(x)), chosen], [x])


@report("openvinotoolkit/openvino#36344")
def a_loop_that_grows_from_nothing(folder: Path) -> Path:
    """An accumulator of a Loop begins with no rows and grows by one in every iteration."""
    row, old = op.parameter([1, 4], np.float32), op.parameter([-1, 4], np.float32)
    grown = op.concat([old, op.add(row, row)], 0)
    body = ov.Model([op.result(op.constant(np.array(True))), op.result(grown)], [row, old], "body")
    x = op.parameter([3, 4], np.float32, name="x")
    loop = op.loop(op.constant(np.int64(3)), op.constant(np.array(True)))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 0])
    loop.set_sliced_input(row, x.output(0), 0, 1, 1, -1, 0)
    loop.set_merged_input(old, op.constant(np.zeros((0, 4), np.float32)).output(0), grown.output(0))
    loop.get_iter_value(grown.output(0), -1)
    loop.validate_and_infer_types()
    return saved(folder, [op.relu(loop.output(0))], [x])


@report("openvinotoolkit/openvino#35797")
def a_loop_whose_body_gathers(folder: Path) -> Path:
    """The body of an ONNX Loop has a GatherND over constants."""
    body = h.make_graph(
        [
            h.make_node("GatherND", ["d", "i"], ["g"]),
            h.make_node("ReduceSum", ["g"], ["s"], keepdims=0),
            h.make_node("Add", ["v", "s"], ["w"]),
            h.make_node("Identity", ["c"], ["go"]),
        ],
        "body",
        [h.make_tensor_value_info(*port) for port in (("n", TensorProto.INT64, []), ("c", TensorProto.BOOL, []),
                                                      ("v", TensorProto.FLOAT, [4]))],
        [h.make_tensor_value_info(*port) for port in (("go", TensorProto.BOOL, []), ("w", TensorProto.FLOAT, [4]))],
        [numpy_helper.from_array(weights(3, 4), "d"), numpy_helper.from_array(np.array([[0, 1], [2, 3]]), "i")],
    )  # fmt: skip
    nodes = [h.make_node("Loop", ["m", "true", "x"], ["y"], body=body)]
    ends = [("x", TensorProto.FLOAT, [4])], [("y", TensorProto.FLOAT, [4])]
    return onnx_file(folder, nodes, *ends, {"m": np.int64(3), "true": np.array(True)})


@report("openvinotoolkit/openvino#30666")
def ties_of_the_largest(folder: Path) -> Path:
    """Indices of the largest of equal values."""
    x = op.parameter([3, 8], np.float32, name="x")
    equal = op.round(op.divide(x, op.constant(np.float32(10))), "half_to_even")
    best = op.topk(equal, op.constant(np.int64(1)), -1, "max", "value", "i64", stable=True)
    return saved(folder, [best.output(1)], [x])


@report("openvinotoolkit/openvino#470")
def indices_alone(folder: Path) -> Path:
    """A TopK of which nobody reads the values."""
    x = op.parameter([1, 2, 5, 10], np.float32, name="x")
    return saved(folder, [op.topk(x, op.constant(np.int64(5)), 3, "max", "value", "i32").output(1)], [x])


@report("openvinotoolkit/openvino#1540")
def boxes_alone(folder: Path) -> Path:
    """A model of a NonMaxSuppression, whose outputs have as many rows as boxes are left."""
    boxes, scores = (
        op.parameter([1, 6, 4], np.float32, name="boxes"),
        op.parameter([1, 2, 6], np.float32, name="scores"),
    )
    found = op.non_max_suppression(
        boxes, scores, op.constant(np.int64(3)), op.constant(np.float32(0.5)), op.constant(np.float32(0.0))
    )
    return saved(folder, [found.output(k) for k in range(3)], [boxes, scores])


@report("openvinotoolkit/openvino#1911")
def two_way_recurrence(folder: Path) -> Path:
    """A bidirectional LSTM over a batch of more than one, between products."""
    nodes = [
        h.make_node("LSTM", ["x", "w", "r", "b"], ["states", "last", ""], hidden_size=8, direction="bidirectional"),
        h.make_node("Transpose", ["states"], ["turned"], perm=[0, 2, 1, 3]),
        h.make_node("Reshape", ["turned", "sizes"], ["rows"]),
        h.make_node("MatMul", ["rows", "out"], ["y"]),
    ]
    constants = {"w": weights(2, 32, 16), "r": weights(2, 32, 8), "b": weights(2, 64), "out": weights(16, 5),
                 "sizes": np.array([0, 0, 16])}  # fmt: skip
    outputs = [("y", TensorProto.FLOAT, [6, 3, 5]), ("last", TensorProto.FLOAT, [2, 3, 8])]
    return onnx_file(folder, nodes, [("x", TensorProto.FLOAT, [6, 3, 16])], outputs, constants)


@report("openvinotoolkit/openvino#1837")
def scalar_inputs(folder: Path) -> Path:
    """Inputs and outputs without any axis, so without a batch."""
    x, scale = op.parameter([4, 64], np.float32, name="x"), op.parameter([], np.float32, name="scale")
    return saved(folder, [op.multiply(dense(x), scale), op.add(scale, scale)], [x, scale])


@report("triton-inference-server/openvino_backend#89")
def tensors_without_names(folder: Path) -> Path:
    """Outputs of one op that have no names, and inputs that have none either."""
    x, y = op.parameter([4, 64], np.float32), op.parameter([4, 64], np.float32)
    halves = op.split(op.add(dense(x), y), op.constant(1), 2)
    for port in (x.output(0), y.output(0), *halves.outputs()):
        port.set_names(set())
    return saved(folder, [halves.output(0), halves.output(1)], [x, y])


@report("microsoft/onnxruntime#6079")
def weights_in_another_file(folder: Path) -> Path:
    """ONNX whose weights lie in a file of their own, in a folder with the name of the user."""
    beside = folder / "Пользователь"
    beside.mkdir()
    nodes = [h.make_node("MatMul", ["x", "w"], ["h"]), h.make_node("Relu", ["h"], ["y"])]
    ends = [("x", TensorProto.FLOAT, [4, 64])], [("y", TensorProto.FLOAT, [4, 64])]
    external = {"save_as_external_data": True, "location": "model.onnx_data", "size_threshold": 0}
    return onnx_file(beside, nodes, *ends, {"w": weights(64, 64)}, **external)


@report("openvinotoolkit/openvino#11717")
def a_path_in_chinese(folder: Path) -> Path:
    """Folder, file, inputs and outputs with names that are not ASCII."""
    x = op.parameter([4, 64], np.float32, name="输入")
    x.output(0).set_names({"输入"})
    return saved(folder, [op.relu(dense(x))], [x], "模型/模型.xml")


@report("openvinotoolkit/openvino_tokenizers#131")
def strings_beside_numbers(folder: Path) -> Path:
    """A model that takes text apart and computes with what it finds, of which one device runs a part."""
    text, x = op.parameter([2], ov.Type.string, name="text"), op.parameter([2, 64], np.float32, name="x")
    begins, ends, _ = op.string_tensor_unpack(text).outputs()
    lengths = op.convert(op.subtract(ends, begins), "f32")
    return saved(folder, [op.add(dense(x), op.unsqueeze(lengths, op.constant(1)))], [text, x])


@report("openvinotoolkit/openvino#33446")
def conversions_that_are_folded(folder: Path) -> Path:
    """Constants that are converted: to another type and back, and out of range."""
    x = op.parameter([4, 64], np.float32, name="x")
    table = op.convert(op.convert(op.constant(np.array([1.5, -2.5, 300.0], np.float32)), "i8"), "f32")
    picked = op.gather(table, op.constant([0, 1]), op.constant(0))
    return saved(folder, [op.add(dense(x), op.reduce_sum(picked, op.constant(0), False))], [x])


@report("openvinotoolkit/openvino#3928")
def constants_of_nothing(folder: Path) -> Path:
    """Empty constants: a size list without sizes, and rows that are none."""
    x = op.parameter([4, 64], np.float32, name="x")
    more = op.concat([dense(x), op.constant(np.zeros((0, 64), np.float32))], 0)
    mean = op.reshape(op.reduce_mean(more, op.constant([0, 1]), False), op.constant(np.zeros(0, np.int64)), False)
    return saved(folder, [op.relu(more), mean], [x])


@report("huggingface/optimum-intel#346")
def ops_of_one_name(folder: Path) -> Path:
    """ONNX nodes that share a name, with which an affinity by name is not one op's."""
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["h"], name="same"),
        h.make_node("Relu", ["h"], ["g"], name="same"),
        h.make_node("MatMul", ["g", "w"], ["y"], name="same"),
    ]
    ends = [("x", TensorProto.FLOAT, [4, 64])], [("y", TensorProto.FLOAT, [4, 64])]
    return onnx_file(folder, nodes, *ends, {"w": weights(64, 64)})


@report("openvinotoolkit/openvino#30797")
def gathering_by_batch(folder: Path) -> Path:
    """GatherND with batch dimensions, behind a Where whose sides are broadcast."""
    x = op.parameter([2, 3, 4], np.float32, name="x")
    where = op.select(op.greater(x, op.constant(np.float32(0))), x, op.constant(np.float32(1)))
    return saved(folder, [op.gather_nd(where, op.constant(np.array([[[0], [2]], [[1], [1]]])), 1)], [x])


@report("openvinotoolkit/openvino#4434")
def scattering_one_value(folder: Path) -> Path:
    """ScatterND of one value into a row, and of rows into a matrix."""
    nodes = [
        h.make_node("ScatterND", ["x", "where", "what"], ["row"]),
        h.make_node("MatMul", ["row", "w"], ["y"]),
        h.make_node("ScatterND", ["w", "rows", "z"], ["changed"]),
    ]
    inputs = [("x", TensorProto.FLOAT, [64]), ("z", TensorProto.FLOAT, [2, 64])]
    outputs = [("y", TensorProto.FLOAT, [64]), ("changed", TensorProto.FLOAT, [64, 64])]
    constants = {"where": np.array([2]), "what": np.float32(5), "w": weights(64, 64), "rows": np.array([[1], [7]])}
    return onnx_file(folder, nodes, inputs, outputs, constants)


@report("openvinotoolkit/openvino#32739")
def angles_of_positions(folder: Path) -> Path:
    """Rotary embeddings of integer positions, which bf16 has no room for above 256."""
    x, positions = op.parameter([1, 8, 64], np.float32, name="x"), op.constant(np.arange(2000, 2008))
    turns = op.constant((10000.0 ** -np.arange(0, 1, 1 / 32)).astype(np.float32))
    angles = op.multiply(op.unsqueeze(op.convert(positions, "f32"), op.constant(1)), turns)
    both = op.concat([angles, angles], 1)
    first, second = op.split(dense(x), op.constant(2), 2).outputs()
    turned = op.concat([op.negative(second), first], 2)
    return saved(folder, [op.add(op.multiply(dense(x), op.cos(both)), op.multiply(turned, op.sin(both)))], [x])


@report("openvinotoolkit/openvino#31393")
def state_that_is_set(folder: Path) -> Path:
    """A cache that grows with each inference."""
    x = op.parameter([1, 1, 64], np.float32, name="x")
    old = op.read_value(op.constant(np.zeros((1, 4, 64), np.float32)), "cache")
    kept = op.concat(
        [op.slice(old, op.constant([1]), op.constant([4]), op.constant([1]), op.constant([1])), dense(x)], 1
    )
    model = ov.Model([op.result(op.relu(dense(kept)))], [op.assign(kept, "cache")], [x], "reported")
    ov.save_model(model, folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


@report("openvinotoolkit/openvino#7173")
def numbers_in_and_integers_out(folder: Path) -> Path:
    """Inputs of f32 and outputs of i32, with a batch of one axis, as a server's identity models have them."""
    x, y = op.parameter([16], np.float32, name="INPUT0"), op.parameter([16], np.float32, name="INPUT1")
    return saved(folder, [op.convert(op.add(x, y), "i32"), op.convert(op.subtract(x, y), "i32")], [x, y])


@report("openvinotoolkit/model_server#1207")
def a_batch_of_any_size(folder: Path) -> Path:
    """The batch is open, and a Reshape has the batch that the model was exported with."""
    x = op.parameter([-1, 4, 16], np.float32, name="x")
    flat = op.reshape(x, op.constant([-1, 64]), False)
    return saved(folder, [op.softmax(dense(flat), 1)], [x])


@report("openvinotoolkit/openvino#18862")
def sizes_computed_from_constants(folder: Path) -> Path:
    """A cut behind what is computed from constants made sizes dynamic that were not."""
    x = op.parameter([2, 6, 64], np.float32, name="x")
    rows = op.multiply(op.gather(op.constant([2, 6, 64]), op.constant([0, 1]), op.constant(0)), op.constant([1, 1]))
    sizes = op.concat([op.reduce_prod(rows, op.constant([0]), True), op.constant([64])], 0)
    return saved(folder, [op.softmax(dense(op.reshape(dense(x), sizes, False)), 1)], [x])


@report("openvinotoolkit/openvino#2872, constants alone")
def no_inputs_at_all(folder: Path) -> Path:
    """The whole model is made of constants."""
    table = op.matmul(op.constant(weights(4, 64)), op.constant(weights(64, 8)), False, False)
    return saved(folder, [op.relu(table)], [])
