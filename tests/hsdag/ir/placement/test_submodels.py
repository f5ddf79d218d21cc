"""The submodels of a placement: by hand, and against what HETERO makes."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest

from hsdag.ir.device import DeviceSpec, hetero_properties
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.placement.prepared import prepare
from hsdag.ir.placement.submodels import SubmodelCollector
from tests.hsdag.ir.placement.hetero_members import actual_submodels, same_members
from tests.hsdag.ir.placement.random_models import random_devices, random_model

SPECS = tuple(DeviceSpec.parse(f"P{i}=CPU[INFERENCE_NUM_THREADS=1]") for i in range(3))


@pytest.mark.parametrize(
    ("edges", "sizes", "devices", "launches", "sent"),
    [
        ([(0, 1), (1, 2), (2, 3)], [1, 10, 100, 1000], [0, 1, 0, 1], [2, 2], {(0, 1): (2, 101), (1, 0): (1, 10)}),
        ([(0, 1), (0, 2)], [1, 1, 1], [0, 1, 1], [1, 2], {(0, 1): (1, 1)}),
        ([(0, 1), (0, 2), (0, 3), (1, 4), (2, 4)], [8, 1, 1, 1, 1], [0, 1, 1, 2, 1], [1, 1, 1],
         {(0, 1): (1, 8), (0, 2): (1, 8)}),
        ([(0, 1), (0, 2), (1, 3), (2, 3)], [1, 1, 16, 4], [0, 1, 0, 0], [2, 1],
         {(0, 0): (1, 16), (0, 1): (1, 1), (1, 0): (1, 1)}),
        ([(0, 1), (1, 2), (0, 2)], [4, 1, 1], [0, 1, 0], [2, 1], {(0, 1): (1, 4), (1, 0): (1, 1)}),
    ],
    ids=[
        "each op of a chain",
        "branches that nothing joins",
        "once to each device that reads it",
        "a submodel that would wait for itself",
        "not again on its own device",
    ],
)  # fmt: skip
def test_launches_and_what_crosses_follow_from_the_submodels(
    edges: list[tuple[int, int]],
    sizes: list[int],
    devices: list[int],
    launches: list[int],
    sent: dict[tuple[int, int], tuple[int, float]],
) -> None:
    graph = graph_from_edges(["X"] * len(sizes), edges, output_bytes=sizes)
    found = SubmodelCollector(graph).crossings(np.array([devices]), len(launches))
    assert found.launches.tolist() == [launches]
    pairs = list(np.ndindex(found.num[0].shape))
    assert {p: (found.num[0][p], found.size_bytes[0][p]) for p in pairs if found.num[0][p]} == sent


def test_constants_neither_join_nor_part_submodels() -> None:
    graph = graph_from_edges(["Parameter", "Add", "Constant", "Add"], [(0, 1), (2, 1), (2, 3), (1, 3)])
    found = SubmodelCollector(graph).submodel_of(np.array([0, 0, 1, 1]))
    assert found.tolist() == [0, 0, -1, 1]


def test_a_ring_of_submodels_that_no_node_sees_whole_is_opened_at_one_node() -> None:
    """0 -> 3 and 1 -> 2 cross between two submodels {0, 2} and {1, 3}, joined by constants only in later ops."""
    ring = graph_from_edges(["Parameter", "Parameter", *["X"] * 4], [(0, 3), (1, 2), (0, 4), (2, 4), (1, 5), (3, 5)])
    found = SubmodelCollector(ring).submodel_of(np.array([0, 1, 0, 1, 0, 1]))
    assert len(set(found.tolist())) == 4


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40))])
def test_members_of_random_models_are_those_that_hetero_makes(seed: int, core: ov.Core) -> None:
    for spec in SPECS:
        spec.register(core)
    rng = np.random.default_rng(seed)
    model = random_model(rng, int(rng.integers(20, 60)))
    graph, prepared = graph_of(model), prepare(model)
    devices = random_devices(graph, 3, rng)
    names = [SPECS[d].openvino_name for d in devices]
    actual, count = actual_submodels(core, prepared, names, hetero_properties(SPECS))
    predicted = SubmodelCollector(graph).submodel_of(devices)
    assert same_members(predicted, actual)
    assert predicted.max() + 1 == count > 1
