"""Models with state, split: what crosses, what every device computes for itself, and which splits lose state."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

from hsdag.ir.errors import PlacementError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.colocation import colocate
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.placement.prepared import COPY_MARK, prepare
from hsdag.ir.placement.submodels import SubmodelCollector
from hsdag.models import DecoderSizes, build_model
from hsdag.models.decoder_graph import decoder_model
from tests.stateful import CPUS, generate, placement_of, split_after, unsplit

AFTER_LAYER_1 = "model.layers.1/output"


@pytest.fixture(scope="module")
def model() -> ov.Model:
    return build_model("tiny_stateful_llama_int4")


@pytest.fixture(scope="module")
def graph(model: ov.Model) -> ComputationGraph:
    return graph_of(model)


def test_only_the_residual_stream_and_the_inputs_cross_between_layers(graph: ComputationGraph) -> None:
    devices = np.asarray([split_after(graph, AFTER_LAYER_1)])
    found = SubmodelCollector(graph).crossings(devices, 2)
    assert found.launches.tolist() == [[1, 1]]
    assert found.num.tolist() == [[[0, 1 + 4], [0, 0]]]


def test_every_device_has_its_own_copy_of_what_is_repeated(model: ov.Model, graph: ComputationGraph) -> None:
    names = [CPUS[d].openvino_name for d in split_after(graph, AFTER_LAYER_1)]
    nodes = {node.get_friendly_name(): node for node in prepare(model, graph).place(names).get_ordered_ops()}
    for spec in CPUS:
        mask = nodes[f"mask{COPY_MARK}{spec.openvino_name}"]
        assert mask.get_rt_info()["affinity"].astype(str) == spec.openvino_name
        assert len(mask.output(0).get_target_inputs()) == 2  # layers


def counter() -> ov.Model:
    """A model that adds its input to what it remembers."""
    x = op.parameter([1], np.float32, name="x")
    read = op.read_value(op.constant(np.zeros(1, np.float32)), "count", np.float32, [1], name="read")
    total = op.add(read, x, name="total")
    return ov.Model([op.result(op.relu(total, name="relu"), name="out")], [op.assign(total, "count")], [x], "counter")


def test_a_variable_on_two_devices_is_refused_because_hetero_would_lose_it() -> None:
    """The control is what HETERO does with such a map: it gives 1, 1, 1 where 1, 2, 3 is right, or fails."""
    model = counter()
    graph = graph_of(model)
    devices = [int(op_type in ("Assign", "Add", "Relu", "Result")) for op_type in graph.op_types]
    with pytest.raises(PlacementError, match="must share a device, for they keep variable 'count' between inferences"):
        placement_of(model, devices).compile(ov.Core(), model)
    whole = placement_of(model, [int(op_type in ("Relu", "Result")) for op_type in graph.op_types])
    request = whole.compile(ov.Core(), model).create_infer_request()
    assert [float(request.infer([np.ones(1, np.float32)])[0][0]) for _ in range(3)] == [1.0, 2.0, 3.0]


def test_a_split_that_makes_hetero_cut_a_variable_in_two_is_refused(model: ov.Model, graph: ComputationGraph) -> None:
    first, second = (np.asarray(split_after(graph, f"model.layers.{layer}/output")) for layer in (0, 1))
    there_and_back = (first & ~second & 1).tolist()
    with pytest.raises(PlacementError, match=r"HETERO would lose what variable 'model\.layers\.\d\.self_attn"):
        placement_of(model, there_and_back).compile(ov.Core(), model)


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
