"""The submodels of a placement: by hand, and against what HETERO makes."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.ir.device import DeviceSpec, hetero_properties
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.computation_graph import graph_from_edges
from hsdag.ir.placement.prepared import prepare
from hsdag.ir.placement.submodels import SubmodelCollector
from tests.hsdag.ir.placement.hetero_members import actual_submodels, same_members
from tests.hsdag.ir.placement.hetero_rules import Nodes, hetero_split
from tests.hsdag.ir.placement.random_models import random_devices, random_model

SPECS = tuple(DeviceSpec.parse(f"P{i}=CPU[INFERENCE_NUM_THREADS=1]") for i in range(3))


@pytest.fixture(scope="module")
def core() -> ov.Core:
    core = ov.Core()
    for spec in SPECS:
        spec.register(core)
    return core


def collector(edges: list[tuple[int, int]], sizes: list[int]) -> SubmodelCollector:
    return SubmodelCollector(graph_from_edges(["X"] * len(sizes), edges, output_bytes=sizes))


def test_a_chain_that_changes_device_at_every_op_has_a_submodel_for_each() -> None:
    chain = collector([(0, 1), (1, 2), (2, 3)], [1, 10, 100, 1000])
    found = chain.crossings(np.array([[0, 1, 0, 1]]), 2)
    assert found.launches.tolist() == [[2, 2]]
    assert found.num.tolist() == [[[0, 2], [1, 0]]]
    assert found.size_bytes.tolist() == [[[0, 101], [10, 0]]]


def test_branches_on_one_device_that_nothing_joins_are_submodels_of_their_own() -> None:
    fork = collector([(0, 1), (0, 2)], [1, 1, 1])
    assert fork.crossings(np.array([[0, 1, 1]]), 2).launches.tolist() == [[1, 2]]


def test_a_result_goes_once_to_each_other_device_however_many_read_it_there() -> None:
    star = collector([(0, 1), (0, 2), (0, 3), (1, 4), (2, 4)], [8, 1, 1, 1, 1])
    found = star.crossings(np.array([[0, 1, 1, 2, 1]]), 3)
    assert found.launches[0].tolist() == [1, 1, 1]
    assert found.num[0].tolist() == [[0, 1, 1], [0, 0, 0], [0, 0, 0]]
    assert found.size_bytes[0, 0].tolist() == [0, 8, 8]


def test_a_submodel_that_would_wait_for_itself_is_cut() -> None:
    """0 and 3 share a device, but 3 waits for 1, which waits for 0; the detour's side branch 2 stays with 0."""
    detour = collector([(0, 1), (0, 2), (1, 3), (2, 3)], [1, 1, 16, 4])
    placement = np.array([0, 1, 0, 0])
    assert detour.submodel_of(placement).tolist() == [0, 1, 0, 2]
    found = detour.crossings(placement[None], 2)
    assert found.num[0].tolist() == [[1, 1], [1, 0]]
    assert found.size_bytes[0].tolist() == [[16, 1], [1, 0]]


def test_a_result_that_leaves_its_device_is_not_counted_again_on_it() -> None:
    detour = collector([(0, 1), (1, 2), (0, 2)], [4, 1, 1])
    assert detour.crossings(np.array([[0, 1, 0]]), 2).num[0].tolist() == [[0, 1], [1, 0]]


def test_constants_neither_join_nor_part_submodels() -> None:
    graph = graph_from_edges(["Parameter", "Add", "Constant", "Add"], [(0, 1), (2, 1), (2, 3), (1, 3)])
    found = SubmodelCollector(graph).submodel_of(np.array([0, 0, 1, 1]))
    assert found.tolist() == [0, 0, -1, 1]


def numbered(label: list[int]) -> list[int]:
    """The same groups, numbered in the order in which they appear."""
    number: dict[int, int] = {}
    return [number.setdefault(group, len(number)) for group in label]


@given(st.integers(0, 2**32), st.integers(3, 60))
def test_members_are_those_of_the_plain_rules(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng, num_ops)
    graph, prepared = graph_of(model), prepare(model)
    devices = random_devices(graph, int(rng.integers(2, 4)), rng)
    found = SubmodelCollector(graph).submodel_of(devices)[prepared.op]
    expected = np.array(hetero_split(Nodes.of(prepared.model), devices[prepared.home].tolist()))
    own = prepared.op == prepared.home
    assert numbered(found[own].tolist()) == numbered(expected[own].tolist())


def test_a_ring_of_submodels_that_no_node_sees_whole_is_opened_at_one_node() -> None:
    """0 -> 3 and 1 -> 2 cross between two submodels {0, 2} and {1, 3}, joined by constants only in later ops."""
    ring = graph_from_edges(["Parameter", "Parameter", *["X"] * 4], [(0, 3), (1, 2), (0, 4), (2, 4), (1, 5), (3, 5)])
    found = SubmodelCollector(ring).submodel_of(np.array([0, 1, 0, 1, 0, 1]))
    assert len(set(found.tolist())) == 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_members_of_random_models_are_those_that_hetero_makes(seed: int, core: ov.Core) -> None:
    rng = np.random.default_rng(seed)
    check(random_model(rng, 40), core, rng)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_bert"])
def test_members_of_networks_are_those_that_hetero_makes(
    name: str, core: ov.Core, request: pytest.FixtureRequest
) -> None:
    check(core.read_model(request.getfixturevalue(name)), core, np.random.default_rng(3))


def check(model: ov.Model, core: ov.Core, rng: np.random.Generator) -> None:
    """HETERO's submodels of a random placement have the predicted members, and there are as many."""
    graph, prepared = graph_of(model), prepare(model)
    devices = random_devices(graph, 3, rng)
    names = [SPECS[d].openvino_name for d in devices]
    actual, count = actual_submodels(core, prepared, names, hetero_properties(SPECS))
    predicted = SubmodelCollector(graph).submodel_of(devices)
    assert same_members(predicted, actual)
    assert predicted.max() + 1 == count > 1
