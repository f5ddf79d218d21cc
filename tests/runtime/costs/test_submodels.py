"""The submodels of a placement: by hand, and against what HETERO makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hsdag.ir import ComputationGraph, DeviceSpec, graph_from_edges, placement_units, read_graph
from hsdag.runtime.costs.hetero_submodels import SubmodelCollector
from hsdag.runtime.measuring.candidate import Candidate, CandidateRunner
from hsdag.runtime.measuring.worker_client import WorkerClient, WorkerSetup
from hsdag.runtime.problems.objectives.latency import LATENCY

SPECS = tuple(DeviceSpec.parse(f"P{i}=CPU[INFERENCE_NUM_THREADS=1]") for i in range(3))


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


def random_devices(graph: ComputationGraph, rng: np.random.Generator) -> np.ndarray:
    """Contiguous, scattered or fully random devices of the placement units, by op."""
    units = placement_units(graph, max_share=1 / 64)
    n, d = units.graph.num_ops, int(rng.integers(2, 4))
    leave = rng.random(n) < rng.choice([0.1, 0.3, 1.0])
    return np.asarray((np.cumsum(leave * rng.integers(0, d, n)) % d)[units.partition.labels])


@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_bert"])
def test_submodels_are_those_that_hetero_makes(name: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(name)
    graph, rng = read_graph(path), np.random.default_rng(3)
    expected, found = [], []
    with WorkerClient(WorkerSetup(path, SPECS)) as client:
        runner = CandidateRunner(client, LATENCY)
        for _ in range(12):
            devices = random_devices(graph, rng)
            found.append(int(SubmodelCollector(graph).submodel_of(devices).max()) + 1)
            candidate = Candidate.placed([SPECS[d].openvino_name for d in devices.tolist()])
            expected.append(runner.open("a", candidate).submodels)
    assert found == expected
    assert max(found) > 4
