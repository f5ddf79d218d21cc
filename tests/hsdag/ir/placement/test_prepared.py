"""The clone that is compiled: what folds, what is kept compressed, and which op each node stands for."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.base.errors import PlacementError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.placement.prepared import COPY_MARK, prepare
from hsdag.ir.placement.submodels import SubmodelCollector
from hsdag.models import DecoderSizes
from hsdag.models.decoder_graph import decoder_model
from tests.stateful import CPUS, generate, placement_of, split_after, unsplit

AFTER_LAYER_1 = "model.layers.1/output"


def sources(node: ov.Node) -> list[ov.Node]:
    return [port.get_source_output().get_node() for port in node.inputs()]


def named(model: ov.Model, name: str) -> ov.Node:
    return next(node for node in model.get_ops() if node.get_friendly_name() == name)


def reads_shapes() -> ov.Model:
    """A Reshape whose target is computed from a shape, a ReduceMax whose axes are, and a Pad by a Range."""
    x = op.parameter([2, 3, 4], np.float32, name="x")
    shape = op.shape_of(x, name="shape")
    last = op.gather(shape, op.constant([2]), op.constant(0), name="last")
    flat = op.reshape(x, op.concat([op.constant([-1]), last], 0, name="target"), False, name="flat")
    axes = op.subtract(last, op.constant([4]), name="axes")
    highest = op.reduce_max(flat, axes, True, name="highest")
    ends = op.range(op.constant(0), op.constant(2), op.constant(1), "i64", name="ends")
    padded = op.pad(highest, ends, ends, "constant", name="padded")
    return ov.Model([op.result(padded, name="y")], [x], "reads_shapes")


def test_each_node_names_the_op_it_stands_for_and_the_op_it_is_placed_with() -> None:
    graph = graph_of(reads_shapes())
    prepared = prepare(reads_shapes())
    names = [(graph.op_names[v], graph.op_names[u]) for v, u in zip(prepared.op, prepared.home, strict=True)]
    folded = [("axes", "highest"), ("ends", "padded"), ("target", "flat")]
    added = [("padded", "padded")]  # by cloning: the value of the padding
    own = [(name, name) for name in ("flat", "highest", "padded", "x", "y")]
    assert sorted(names) == sorted(folded + added + own)
    assert sources(named(prepared.model, "flat"))[1].get_data().tolist() == [-1, 4]


def test_a_constant_goes_where_it_is_read() -> None:
    prepared = prepare(reads_shapes())
    devices = ["A"] * prepared.graph.num_ops
    devices[prepared.graph.index_of["flat"]] = "B"
    flat = named(prepared.place(devices), "flat")
    assert [node.get_rt_info()["affinity"].astype(str) for node in (flat, *sources(flat))] == ["B", "A", "B"]


def test_every_reader_of_a_shared_weight_has_an_instance_with_its_value(model: ov.Model) -> None:
    expected = named(model, "shared").get_data()
    placed = prepare(model).model
    for reader in ("conv2", "conv3"):
        weight = sources(named(placed, reader))[1]
        assert weight.get_friendly_name() == f"shared{COPY_MARK}{reader}"
        assert np.array_equal(weight.get_data(), expected)
    x, (one, two) = op.parameter([2], np.float32), (op.constant(np.full(2, value, np.float32)) for value in (1, 2))
    either = op.select(op.greater(x, op.constant(np.float32(0))), one, two)
    small = prepare(ov.Model([op.add(op.add(x, one), either)], [x], "m")).model
    read = [len(n.output(0).get_target_inputs()) for n in small.get_ops() if n.get_type_name() == "Constant"]
    assert read == [1] * 4


def test_a_shape_that_depends_on_the_data_is_computed_where_it_was_placed() -> None:
    x = op.parameter([2, 3], np.float32, name="x")
    where = op.non_zero(x, name="where")
    count = op.shape_of(where, name="count")
    first, second = op.add(count, op.constant([1, 1]), name="a"), op.relu(x, name="b")
    ends = [op.add(op.reduce_sum(where, op.constant([0, 1])), first), op.tile(second, count, name="c")]
    model = ov.Model([op.result(end) for end in ends], [x], "m")
    placed = prepare(model).model
    assert [node.get_type_name() for node in placed.get_ops() if "count" in node.get_friendly_name()] == ["ShapeOf"]
    values = np.asarray([[1, 0, 2], [0, 0, 3]], dtype=np.float32)
    assert ov.Core().compile_model(placed, "CPU")([values])[1].shape == (4, 9)


def test_constants_that_share_a_name_are_not_mixed_up() -> None:
    x = op.parameter([2], np.float32, name="x")
    one, ten, hundred = (op.constant(np.full(2, value, np.float32), name="k") for value in (1, 10, 100))
    a0, a1 = op.add(one, x, name="a0"), op.add(ten, x, name="a1")
    model = ov.Model([op.concat([ten, one, a1, hundred, a0], 0, name="all")], [x], "m")
    found = ov.Core().compile_model(prepare(model).model, "CPU")([np.asarray([2, 3], np.float32)])[0]
    assert found.tolist() == [10, 10, 1, 1, 12, 13, 100, 100, 3, 4]


def test_only_the_residual_stream_and_the_inputs_cross_between_layers(llama_graph: ComputationGraph) -> None:
    devices = np.asarray([split_after(llama_graph, AFTER_LAYER_1)])
    found = SubmodelCollector(llama_graph).crossings(devices, 2)
    assert found.launches.tolist() == [[1, 1]]
    assert found.num.tolist() == [[[0, 1 + 4], [0, 0]]]


def test_every_device_has_its_own_copy_of_what_is_repeated(llama: ov.Model, llama_graph: ComputationGraph) -> None:
    names = [CPUS[d].openvino_name for d in split_after(llama_graph, AFTER_LAYER_1)]
    nodes = {node.get_friendly_name(): node for node in prepare(llama, llama_graph).place(names).get_ordered_ops()}
    for spec in CPUS:
        mask = nodes[f"mask{COPY_MARK}{spec.openvino_name}"]
        assert mask.get_rt_info()["affinity"].astype(str) == spec.openvino_name
        assert len(mask.output(0).get_target_inputs()) == 2  # layers


def test_a_split_that_makes_hetero_cut_a_variable_in_two_is_refused(llama: ov.Model) -> None:
    first, second = (np.asarray(split_after(graph_of(llama), f"model.layers.{layer}/output")) for layer in (0, 1))
    there_and_back = (first & ~second & 1).tolist()
    with pytest.raises(PlacementError, match=r"HETERO would lose what variable 'model\.layers\.\d\.self_attn"):
        placement_of(llama, there_and_back).compile(ov.Core(), llama)


def test_a_placed_model_has_as_many_submodels_as_foreseen_wherever_its_sets_lie() -> None:
    model = decoder_model("two layers", DecoderSizes(2, 16, 2, 1, 16, 24, group=8), "fp16", 0)
    graph, rng = graph_of(model), np.random.default_rng(0)
    whole = np.asarray(split_after(graph, "model.layers.0/output"))
    moved = rng.choice([v for v, variable in enumerate(graph.op_names) if "layers.1.mlp" in variable], 2)
    devices = np.where(np.isin(colocate(graph).sets.labels, colocate(graph).sets.labels[moved]), 0, whole)
    compiled = placement_of(model, devices.tolist()).compile(ov.Core(), model)
    placed = prepare(model, graph).place([CPUS[d].openvino_name for d in devices])
    names = [node.get_rt_info()["affinity"].astype(str) for node in placed.get_ordered_ops()]
    found = SubmodelCollector(graph_of(placed), is_placed=True).submodel_of(np.unique(names, return_inverse=True)[1])
    assert compiled.get_property("HETERO_NUMBER_OF_SUBMODELS") == found.max() + 1 > 2
    assert generate(compiled.create_infer_request(), 3, (3, 1)).tokens == unsplit(model, 3, (3, 1)).tokens
