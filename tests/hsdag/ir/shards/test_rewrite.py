"""Divided models: what devices compute together is what the model computes, and a placement file says it all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from openvino import opset1
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo

import hsdag
from hsdag.base.errors import PlacementError
from hsdag.ir.device import DeviceSpec
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import check_colocation
from hsdag.ir.placement.divided import regions_of, sharded_fields
from hsdag.ir.placement.placement import Placement
from hsdag.ir.shards.regions import Region
from hsdag.ir.shards.rewrite import _check_outputs, _cover, _Made, shapes_of, shard
from hsdag.ir.shards.rules import RULES, Piece, Span, piece_of
from hsdag.models.registry import build_model
from tests.hsdag.ir.shards.random_shards import (
    LARGEST_DIFFERENCE,
    difference,
    inputs_of,
    outputs_of,
    random_sharding,
)
from tests.placements import by_hand

DEVICES = ["A", "B", "C"]
MODELS = ("tiny_resnet", "tiny_bert", "tiny_llama", "tiny_stateful_llama_int4")


@pytest.mark.parametrize("name", MODELS)
def test_random_regions_of_real_architectures_compute_what_the_model_computes(name: str) -> None:
    model, rng = build_model(name), np.random.default_rng(0)
    inputs, made = inputs_of(model, rng), random_sharding(model, rng, 5)
    assert made is not None
    assert difference(outputs_of(made[1].model, inputs), outputs_of(model, inputs)) < LARGEST_DIFFERENCE


def mlp() -> tuple[ov.Model, Region]:
    """Two products with an activation between them, and the region that divides what lies between."""
    rng = np.random.default_rng(0)
    x = op.parameter([4, 8], np.float32, name="x")
    first = op.matmul(x, op.constant(rng.standard_normal((8, 12)).astype(np.float32)), False, False)
    active = op.relu(op.add(first, op.constant(rng.standard_normal(12).astype(np.float32))))
    last = op.matmul(active, op.constant(rng.standard_normal((12, 8)).astype(np.float32)), False, False)
    biased = op.add(last, op.constant(rng.standard_normal(8).astype(np.float32)))
    model = ov.Model([op.result(op.tanh(biased))], [x], "mlp")
    for number, node in enumerate(model.get_ordered_ops()):
        node.set_friendly_name(f"op{number}")
    graph = graph_of(model)
    shapes = shapes_of(model, graph)
    end = max(v for v in range(graph.num_ops) if graph.op_types[v] == "MatMul")
    region = shapes.region("hidden", end, None)
    assert region is not None
    return model, Region("hidden", region.ops, region.axes, {0: (0, 5), 1: (5, 12)})


def test_partial_sums_are_added_before_what_follows_and_the_bias_once_in_a_model_that_is_always_the_same() -> None:
    model, region = mlp()
    graph, inputs = graph_of(model), inputs_of(model, np.random.default_rng(0))
    ends = tuple(v for v, kind in enumerate(graph.op_types) if kind in ("Add", "Tanh") and v not in region.ops)
    rows = Region("rows", ends, (0, 0), {1: (0, 3), 0: (3, 4)})  # they read a range of the sum
    found, again = (shard(model, graph, [region, rows], [0] * graph.num_ops, DEVICES) for _ in range(2))
    assert (found.graph.op_names, found.devices) == (again.graph.op_names, again.devices)
    assert graph_of(model).op_names == graph.op_names
    assert [graph.op_types[v] for v in region.ops] == ["MatMul", "Add", "Relu", "MatMul"]
    assert difference(outputs_of(found.model, inputs), outputs_of(model, inputs)) < 1e-6
    held = [graph_of(found.model).weight_bytes[[d == k for d in found.devices]].sum() for k in (0, 1)]
    assert held[0] < held[1] < graph.weight_bytes.sum()


@pytest.mark.parametrize("where", [0, 1])
def test_a_device_that_has_what_all_would_add_to_a_sum_adds_it_to_its_own_part(where: int) -> None:
    x, square = op.parameter([4, 8], np.float32), op.constant(np.eye(8, dtype=np.float32))
    product = op.matmul(op.relu(x), square, False, False)
    model = ov.Model([op.result(op.tanh(op.add(op.sin(x), product)))], [x], "residual")
    graph, inputs = graph_of(model), inputs_of(model, np.random.default_rng(0))
    index = {kind: v for v, kind in enumerate(graph.op_types)}
    region = Region("hidden", (index["MatMul"],), (None,), {1: (0, 3), 0: (3, 8)})
    everywhere = Region("replicated", (index["Add"], index["Tanh"]), (None, None), {0: (0, 1), 1: (0, 1)})
    devices = [where if v == index["Sin"] else 0 for v in range(graph.num_ops)]
    found = shard(model, graph, [region, everywhere], devices, DEVICES)
    assert difference(outputs_of(found.model, inputs), outputs_of(model, inputs)) < 1e-6
    assert [d for v, d in zip(found.origin, found.devices, strict=True) if v == index["Add"]] == [where]


def test_a_divided_variable_is_one_for_each_device_and_remembers_what_the_whole_remembers() -> None:
    x, info = op.parameter([2, 6], np.float32, name="x"), VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([2, 6]), ov.Type.f32, "seen"
    seen = Variable(info)
    total = op.add(op.read_value(op.constant(np.ones((2, 6), np.float32)), seen), op.sin(x))
    model = ov.Model([op.result(op.tanh(total))], [op.assign(total, seen)], [x], "state")
    graph = graph_of(model)
    ops = tuple(v for v in range(graph.num_ops) if graph.op_types[v] in ("ReadValue", "Sin", "Add", "Tanh"))
    region = Region("rows", ops, (1,) * len(ops), {0: (0, 2), 1: (2, 6)})
    found = shard(model, graph, [region], [0] * graph.num_ops, DEVICES)
    compiled = [ov.Core().compile_model(each, "CPU").create_infer_request() for each in (model, found.model)]
    assert sorted(state.name for state in compiled[1].query_state()) == ["seen@A", "seen@B"]
    for seed in range(3):  # the second and third inference read what was left
        given = np.random.default_rng(seed).standard_normal((2, 6)).astype(np.float32)
        whole, parts = (request.infer([given])[0] for request in compiled)
        np.testing.assert_allclose(parts, whole, atol=1e-6)


def test_a_variable_with_a_computed_first_value_is_divided_with_the_attention_of_it_alone() -> None:
    """What OpenVINO's CPU plugin fails to compile otherwise: one of keys and values alone, or their first values."""
    model = build_model("tiny_stateful_moe_fp16")
    graph = graph_of(model)
    shapes = shapes_of(model, graph)
    last = graph.op_types.index("ScaledDotProductAttention")
    whole = shapes.region("heads", last, 1)
    assert whole is not None
    assert shapes.grain(whole) == 2  # heads of queries that share one of keys
    keys, values = (v for v in whole.ops if graph.op_types[v] == "ReadValue")
    alone = [shapes.region("heads", v, 1) for v in (keys, shapes.producer(keys, 0))]
    regions = [*alone, *(shapes.region("heads", last, 1, {v}) for v in (keys, values))]
    assert [each and shapes.grain(each) for each in regions] == [None] * len(regions)


def test_rows_of_a_convolution_that_leaves_rows_out_are_looked_up_for_openvino_fails_to_slice_them() -> None:
    x = op.parameter([1, 4, 6, 5], np.float32)
    ones = op.constant(np.ones((4, 4, 1, 1), np.float32))
    points = op.convolution(op.relu(op.sin(x)), ones, [2, 1], [0, 0], [0, 0], [1, 1])
    model = ov.Model([op.result(points)], [x], "points")
    graph, inputs = graph_of(model), inputs_of(model, np.random.default_rng(0))
    rows = Region("rows", (2, 4), (3, 3), {0: (0, 2), 1: (2, 5)})
    everywhere = Region("replicated", (1,), (None,), {0: (0, 1), 1: (0, 1)})
    assert [graph.op_types[v] for v in (1, 2, 4)] == ["Sin", "Relu", "Convolution"]
    found = shard(model, graph, [rows, everywhere], [0] * graph.num_ops, DEVICES)
    assert difference(outputs_of(found.model, inputs), outputs_of(model, inputs)) == 0.0


@pytest.mark.parametrize(("rows", "reading"), [(80, 0.25), (40, 0.5), (4, 1.0)])
def test_a_piece_takes_its_part_of_an_op_but_for_what_its_weights_take_to_be_read(rows: int, reading: float) -> None:
    """10 FLOPs take as long as a byte: 12 rows of 8 numbers are 384 bytes, for 192 FLOPs a row of the result."""
    x, wide = op.parameter([rows, 8], np.float32), op.constant(np.ones((8, 12), np.float16))
    weight = op.convert(op.multiply(wide, op.constant(np.float16(2))), np.float32)
    model = ov.Model([op.result(op.relu(op.matmul(op.sin(x), weight, False, False)))], [x], "m")
    graph = graph_of(model)
    graph = replace(graph, weight_bytes=graph.weight_bytes * 2 * (graph.weight_bytes > 2))
    shapes = shapes_of(model, graph)
    product, relu = (graph.op_types.index(name) for name in ("MatMul", "Relu"))
    by_rows, by_columns, a_row = Span(0, 1, 1 + rows // 2), Span(1, 0, 3), Span(0, 0, 1)

    def work(v: int, span: Span) -> float:
        piece = piece_of(shapes.op(v), span)
        assert piece is not None
        return shapes.work_of(v, span, piece, 0.0)

    assert [work(product, each) for each in (by_rows, a_row)] == [
        0.5 + 0.5 * reading,
        pytest.approx((1 - reading) / rows + reading),
    ]
    assert (work(product, by_columns), work(relu, a_row)) == (0.25, 1 / rows)


@pytest.mark.parametrize(
    ("device", "taken"),
    [
        (0, [(0, 0, 6), (1, 2, 6), (2, 1, 3)]),  # its own first, then the one that has most of what follows
        (1, [(0, 0, 4), (1, 0, 6), (2, 1, 3)]),
        (2, [(0, 0, 6), (1, 2, 5), (2, 0, 3)]),
        (3, [(0, 0, 6), (1, 2, 6), (2, 1, 3)]),
    ],
)
def test_a_tensor_is_brought_together_from_what_a_device_has_and_the_fewest_others(
    device: int, taken: list[tuple[int, int, int]]
) -> None:
    node = op.parameter([12], np.float32)
    made = [_Made(d, Span(0, *ends), is_partial=False, node=node) for d, ends in enumerate([(0, 6), (4, 10), (9, 12)])]
    found = [(each.device, part.first, part.last) for each, part in _cover(made, Span(0, 0, 12), device)]
    assert found == taken


def placement_of(model: ov.Model, region: Region) -> Placement:
    graph = graph_of(model)
    specs = [DeviceSpec.parse(f"{name}=CPU[INFERENCE_NUM_THREADS=1;INFERENCE_PRECISION_HINT=f32]") for name in "AB"]
    fields = sharded_fields([region], [0] * graph.num_ops, graph, DEVICES)
    return by_hand(graph, specs, ["A"] * graph.num_ops, executor="work-conserving").model_copy(update=fields)


def test_a_placement_file_keeps_the_regions_and_compiles_to_what_the_model_computes() -> None:
    model, region = mlp()
    placement = Placement.from_json(placement_of(model, region).to_json())
    graph = graph_of(model)
    assert regions_of(placement, graph)[0] == (region,)
    compiled = hsdag.compile_work_conserving(model, placement)
    x = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    wanted = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(x)[0]
    assert {compiled.cut.device[k] for k in range(len(compiled.cut.subgraphs))} == {0, 1}
    np.testing.assert_allclose(compiled(x)[0], wanted, atol=1e-5)


def test_regions_that_do_not_fit_are_refused_and_all_by_hetero() -> None:
    model, region = mlp()
    graph = graph_of(model)
    beyond, between, twice = ((0, 5), (5, 15)), ((0, 5), (6, 12)), ((0, 5), (4, 12))
    wrong = [replace(region, shares=dict(enumerate(ranges))) for ranges in (beyond, between, twice)]
    wrong += [replace(region, axes=(axis, *region.axes[1:])) for axis in (None, 9, -1)]
    for each in [*wrong, replace(region, ops=region.ops[:-1], axes=(*region.axes[:-2], None))]:
        with pytest.raises(PlacementError, match=r"cannot be divided as {'A': \(0, 5\), 'B': "):
            shard(model, graph, [each], [0] * graph.num_ops, DEVICES)
    with pytest.raises(PlacementError, match="divides ops over devices, which HETERO does not run"):
        placement_of(model, region).compile(ov.Core(), model)
    first, *others = placement_of(model, region).affinity.items()
    with pytest.raises(PlacementError, match=f"gives no device, or several, to 1 ops, the first is '{first[0]}'"):
        regions_of(placement_of(model, region).model_copy(update={"affinity": dict(others)}), graph)


def test_a_rule_that_gives_other_sizes_is_found_out_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a Relu that reads all where a range of it is wanted."""
    model, region = mlp()
    graph = graph_of(model)
    monkeypatch.setitem(RULES, "Relu", lambda _, __: Piece((None,)))
    with pytest.raises(PlacementError, match=r"'op[0-9]+' cannot be divided: OpenVINO gives its shares other sizes"):
        shard(model, graph, [region], [0] * graph.num_ops, DEVICES)


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_outputs_of_other_sizes_or_types_are_refused(kind: str) -> None:
    given = ov.Type.f32, ov.PartialShape([2, 3])
    other = (ov.Type.f16, ov.PartialShape([2, 3])) if kind == "f16" else (ov.Type.f32, ov.PartialShape([1, 3]))
    _check_outputs([given, (ov.Type.f32, ov.PartialShape([-1, 3]))], [given, given])
    with pytest.raises(PlacementError, match=f"its output 1 would be {kind} .* in place of f32"):
        _check_outputs([given, other], [given, given])


def test_rows_that_are_converted_to_booleans_are_looked_up_for_openvino_fails_to_slice_them() -> None:
    heard = op.parameter(ov.PartialShape([4, -1]), np.int64)
    kept = op.convert(
        op.select(op.convert(heard, "boolean"), op.constant(np.float32(2)), op.constant(np.float32(0.5))), "f32"
    )
    model = ov.Model([op.result(kept)], [heard], "mask")
    graph = graph_of(model)
    ops = tuple(v for v in range(graph.num_ops) if graph.op_types[v] in ("Convert", "Select"))
    rows = Region("rows", ops, (0,) * len(ops), {0: (0, 1), 1: (1, 4)})
    found, given = shard(model, graph, [rows], [0] * graph.num_ops, DEVICES), np.arange(8).reshape(4, 2) % 3
    assert difference(outputs_of(found.model, [given]), outputs_of(model, [given])) == 0.0


def test_the_shape_of_an_input_is_taken_where_the_input_is() -> None:
    """Shapes of tensors whose sizes depend on the data are tied to these, also where all devices need them."""
    x = op.parameter(ov.PartialShape([4, -1]), np.float32)
    last = op.gather(op.shape_of(x), op.constant(np.array([1])), op.constant(0))
    spread = op.broadcast(op.constant(np.ones((4, 1), np.float32)), op.concat([op.constant(np.array([4])), last], 0))
    model = ov.Model([op.result(op.multiply(op.tanh(x), spread))], [x], "spread")
    graph = graph_of(model)
    ops = tuple(v for v, kind in enumerate(graph.op_types) if kind in ("ShapeOf", "Gather", "Concat", "Broadcast"))
    everywhere = Region("replicated", ops, (None,) * len(ops), {1: (0, 1), 0: (0, 1)})
    ends = tuple(v for v, kind in enumerate(graph.op_types) if kind in ("Tanh", "Multiply"))
    rows = Region("rows", ends, (0, 0), {0: (0, 2), 1: (2, 4)})
    found = shard(model, graph, [everywhere, rows], [0] * graph.num_ops, DEVICES)
    check_colocation(found.graph, [DEVICES[d] for d in found.devices])


def test_channels_of_convolutions_of_one_part_of_a_split_are_not_taken_for_groups() -> None:
    x, rng = op.parameter([2, 4, 3, 3], np.float32), np.random.default_rng(0)
    filters = op.constant(rng.standard_normal((4, 2, 1, 1)).astype(np.float32))
    part = op.split(op.sin(x), op.constant(1), 2).output(1)
    made = op.convolution(part, filters, [1, 1], [0, 0], [0, 0], [1, 1])
    model = ov.Model([op.result(made)], [x], "parts")
    graph = graph_of(model)
    channels = Region("channels", (graph.op_types.index("Convolution"),), (1,), {0: (0, 2), 1: (2, 4)})
    found, inputs = shard(model, graph, [channels], [0] * graph.num_ops, DEVICES), inputs_of(model, rng)
    assert difference(outputs_of(found.model, inputs), outputs_of(model, inputs)) < 1e-6


def test_an_op_whose_last_input_openvino_adds_is_divided() -> None:
    """As it does for the axes of the first version of Broadcast."""
    x = op.parameter([4, 1], np.float32)
    model = ov.Model([op.result(opset1.broadcast(op.sin(x), op.constant(np.array([4, 3]))))], [x], "wide")
    graph = graph_of(model)
    rows = Region("rows", (graph.op_types.index("Broadcast"),), (0,), {0: (0, 1), 1: (1, 4)})
    found, inputs = (
        shard(model, graph, [rows], [0] * graph.num_ops, DEVICES),
        inputs_of(model, np.random.default_rng(0)),
    )
    assert difference(outputs_of(found.model, inputs), outputs_of(model, inputs)) == 0.0
