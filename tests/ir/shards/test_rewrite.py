"""Divided models: what devices compute together is what the model computes, and a placement file says it all."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as op

import hsdag
from hsdag.ir.device import DeviceSpec
from hsdag.ir.errors import PlacementError
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.placement.placement import ModelRecord, Placement
from hsdag.ir.shards.placed import divided, records_of, regions_of
from hsdag.ir.shards.regions import Region, Shapes
from hsdag.ir.shards.rewrite import shapes_of, shard
from hsdag.models.registry import build_model

DEVICES = ["A", "B", "C"]
MODELS = ("tiny_resnet", "tiny_inception", "tiny_bert", "tiny_llama")


def outputs(core: ov.Core, model: ov.Model) -> list[Any]:
    rng, inputs = np.random.default_rng(0), []
    for port in model.inputs:
        shape, is_real = list(port.get_shape()), port.get_element_type().is_real()
        inputs.append(rng.standard_normal(shape).astype(np.float32) if is_real else rng.integers(0, 2, shape))
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [np.array(value) for value in compiled(inputs).values()]


def largest_difference(found: list[Any], wanted: list[Any]) -> float:
    scale = max(float(np.abs(each).max()) for each in wanted)
    return max(float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True)) / scale


def random_regions(graph: ComputationGraph, shapes: Shapes, rng: np.random.Generator, count: int) -> list[Region]:
    """Disjoint regions of random ends, axes and shares over two or three devices; some ops are on every device."""
    found: list[Region] = []
    taken: set[int] = set()
    running = [v for v in range(graph.num_ops) if shapes.runs[v]]
    for v in rng.permutation(running).tolist():
        axes = [None, *range(shapes.op(v).rank)]
        if len(found) == count or v in taken:
            break
        region = shapes.region("rows", v, axes[int(rng.integers(len(axes)))], taken)
        grain = None if region is None else shapes.grain(region)
        if region is None or grain is None or set(region.ops) & taken:
            continue
        inside = set(region.ops)
        if any(u not in inside for k in region.ops[:-1] for u in graph.successors.of(k).tolist()):
            continue
        size = shapes.extent(region) // grain
        marks = sorted(rng.choice(np.arange(1, size), min(int(rng.integers(1, 3)), size - 1), replace=False).tolist())
        bounds = [0, *(k * grain for k in marks), size * grain]
        order = rng.permutation(3)[: len(bounds) - 1].tolist()
        shares = {d: (bounds[k], bounds[k + 1]) for k, d in enumerate(order)}
        found.append(Region("rows", region.ops, region.axes, shares))
        taken |= inside
    rest = [v for v in running if v not in taken]
    repeated = tuple(sorted(rng.choice(rest, len(rest) // 3, replace=False).tolist())) if len(rest) > 2 else ()
    if repeated:
        found.append(Region("replicated", repeated, (None,) * len(repeated), {0: (0, 1), 2: (0, 1)}))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", MODELS)
def test_random_regions_of_real_architectures_compute_what_the_model_computes(name: str, seed: int) -> None:
    model, rng, core = build_model(name), np.random.default_rng(seed), ov.Core()
    graph = graph_of(model)
    _, shapes = shapes_of(model, graph)
    regions = random_regions(graph, shapes, rng, 4)
    found = shard(model, graph, regions, rng.integers(0, 3, graph.num_ops).tolist(), DEVICES)
    assert any(region.scheme != "replicated" for region in regions)
    assert set(found.devices) == {0, 1, 2}
    assert largest_difference(outputs(core, found.model), outputs(core, model)) < 1e-5


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
    _, shapes = shapes_of(model, graph)
    end = max(v for v in range(graph.num_ops) if graph.op_types[v] == "MatMul")
    region = shapes.region("hidden", end, None)
    assert region is not None
    return model, Region("hidden", region.ops, region.axes, {0: (0, 5), 1: (5, 12)})


def test_partial_sums_are_added_before_what_follows_and_the_bias_once() -> None:
    model, region = mlp()
    core, graph = ov.Core(), graph_of(model)
    found = shard(model, graph, [region], [0] * graph.num_ops, DEVICES)
    assert [graph.op_types[v] for v in region.ops] == ["MatMul", "Add", "Relu", "MatMul"]
    assert largest_difference(outputs(core, found.model), outputs(core, model)) < 1e-6
    held = [graph_of(found.model).weight_bytes[[d == k for d in found.devices]].sum() for k in (0, 1)]
    assert held[0] < held[1] < graph.weight_bytes.sum()


def test_rewriting_is_repeatable_and_leaves_the_model_alone() -> None:
    model, region = mlp()
    graph = graph_of(model)
    before = [node.get_friendly_name() for node in model.get_ordered_ops()]
    first, second = (shard(model, graph, [region], [1] * graph.num_ops, DEVICES) for _ in range(2))
    assert first.graph.op_names == second.graph.op_names
    assert first.devices == second.devices
    assert [node.get_friendly_name() for node in model.get_ordered_ops()] == before
    assert sum(name.endswith("@A") for name in first.graph.op_names) == 4


def placement_of(model: ov.Model, region: Region) -> Placement:
    graph = graph_of(model)
    inside, names = set(region.ops), graph.canonical_names
    properties = {"INFERENCE_NUM_THREADS": "1", "INFERENCE_PRECISION_HINT": "f32"}
    return Placement(
        version=3,
        model=ModelRecord.of(graph),
        devices=[DeviceSpec(name=name, plugin="CPU", properties=properties) for name in DEVICES[:2]],
        affinity={names[v]: "A" for v in range(graph.num_ops) if v not in inside},
        method="test",
        seed=0,
        objective="latency",
        executor="work-conserving",
        shards=records_of([region], graph, DEVICES),
    )


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


def test_a_divided_model_has_a_plain_placement_of_its_own() -> None:
    model, region = mlp()
    rewritten, plain = divided(model, placement_of(model, region))
    assert plain.version == 2
    assert plain.shards is None
    assert set(plain.devices_of(graph_of(rewritten))) == {"A", "B"}


def test_hetero_is_told_that_it_cannot_run_shards() -> None:
    model, region = mlp()
    with pytest.raises(PlacementError, match="divides ops over devices, which HETERO does not run"):
        placement_of(model, region).compile(ov.Core(), model)


def test_regions_that_do_not_fit_are_refused() -> None:
    model, region = mlp()
    graph = graph_of(model)
    beyond = Region(region.scheme, region.ops, region.axes, {0: (0, 5), 1: (5, 15)})
    with pytest.raises(PlacementError, match="cannot be divided as"):
        shard(model, graph, [beyond], [0] * graph.num_ops, DEVICES)
    document = placement_of(model, region).model_dump(mode="json")
    document["affinity"].pop(next(iter(document["affinity"])))
    with pytest.raises(PlacementError, match="gives no device, or several, to 1 ops"):
        regions_of(Placement.model_validate(document), graph)
