"""The submodels of a model as it is: by hand, by the plain rules, and against what HETERO makes."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hsdag.ir import DeviceSpec, graph_from_edges
from hsdag.ir.build import graph_of, name_uniquely
from hsdag.ir.device import hetero_properties
from hsdag.ir.submodels import automatic_submodels, placed_submodels, with_results
from tests.ir.submodels.hetero_members import actual_choice
from tests.ir.submodels.hetero_rules import Nodes, hetero_choice, hetero_split
from tests.ir.submodels.random_models import random_devices, random_model

SPECS = tuple(DeviceSpec.parse(f"Q{i}=CPU[INFERENCE_NUM_THREADS=1]") for i in range(2))


def same_groups(one: np.ndarray, other: np.ndarray) -> bool:
    pairs = set(zip(one.tolist(), other.tolist(), strict=True))
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


@given(st.integers(0, 2**32), st.integers(3, 60))
def test_members_are_those_of_the_plain_rules_wherever_shared_constants_are(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng, num_ops)
    graph = graph_of(model)
    devices = with_results(graph, rng.integers(0, 3, graph.num_ops))
    found, expected = placed_submodels(graph, devices), np.array(hetero_split(Nodes.of(model), devices.tolist()))
    own = ~np.isin(graph.op_types, ["Constant"])
    assert same_groups(found[own], expected[own])
    assert set(found[~own].tolist()) <= {-1}


@given(st.integers(0, 2**32), st.integers(3, 40))
@example(429, 60)  # where it matters that a submodel in the place of its ops reads a tensor once
def test_own_choice_is_that_of_the_plain_rules(seed: int, num_ops: int) -> None:
    rng = np.random.default_rng(seed)
    model = random_model(rng, num_ops)
    graph = graph_of(model)
    devices = with_results(graph, random_devices(graph, 3, rng) if seed % 2 else rng.integers(0, 3, graph.num_ops))
    is_constant = np.isin(graph.op_types, ["Constant"])
    expected = hetero_choice(Nodes.of(model), is_constant.tolist(), devices.tolist())
    found = automatic_submodels(graph, devices)
    kept = found >= 0
    assert same_groups(found[kept], np.array([-1 if each is None else each for each in expected])[kept])


@pytest.mark.parametrize("seed", range(3))
def test_a_model_with_affinities_is_split_as_hetero_does(seed: int) -> None:
    core, rng = ov.Core(), np.random.default_rng(seed)
    for spec in SPECS:
        spec.register(core)
    model = random_model(rng, 30)
    name_uniquely(model)
    graph = graph_of(model)
    devices = random_devices(graph, 2, rng)
    names = [SPECS[d].openvino_name for d in devices]
    for node, name in zip(model.get_ordered_ops(), names, strict=True):
        node.get_rt_info()["affinity"] = name
    ops, compiled = actual_choice(core, model, "HETERO:" + ",".join(sorted(set(names))), hetero_properties(SPECS))
    found = placed_submodels(graph, devices)
    drawn = [v for v, name in enumerate(graph.op_names) if name in ops and graph.op_types[v] != "Constant"]
    assert found.max() + 1 == len(compiled) > 1
    assert same_groups(found[drawn], np.array([ops[graph.op_names[v]][1] for v in drawn]))


def test_own_choice_cuts_a_detour_over_the_second_device() -> None:
    """As HETERO:GPU,CPU does where the CPU alone runs ops 2 and 4; 3 and 5 also read what was before them."""
    edges = [(0, 1), (1, 2), (2, 3), (1, 3), (3, 4), (4, 5), (3, 5), (5, 6)]
    graph = graph_from_edges(["Parameter", "X", "Y", "X", "Y", "X", "Result"], edges)
    assert automatic_submodels(graph, np.array([0, 0, 1, 0, 1, 0, 0])).tolist() == [0, 0, 3, 1, 4, 2, 2]


def test_the_second_device_is_cut_with_the_submodels_of_the_first_in_place() -> None:
    """2 and 5 are on the second device and joined by 2 -> 5, but 4 on the first one is between them."""
    edges = [(0, 1), (1, 2), (2, 4), (4, 5), (2, 5), (5, 6)]
    graph = graph_from_edges(["Parameter", "X", "Y", "Constant", "X", "Y", "Result"], [*edges, (3, 5), (3, 4)])
    assert automatic_submodels(graph, np.array([0, 0, 1, 0, 0, 1, 1])).tolist() == [0, 0, 2, -1, 1, 3, 3]


def test_a_submodel_that_gives_nothing_is_dropped() -> None:
    """As HETERO does with an Assign on a device of its own, and does not count an input that nothing reads."""
    graph = graph_from_edges(["Parameter", "X", "Assign", "Result", "Parameter"], [(0, 1), (1, 2), (1, 3)])
    assert automatic_submodels(graph, np.array([0, 0, 1, 0, 0])).tolist() == [0, 0, -1, 0, -1]


def test_a_result_goes_with_what_it_reads() -> None:
    graph = graph_from_edges(["Parameter", "X", "Result"], [(0, 1), (1, 2)])
    assert placed_submodels(graph, np.array([0, 0, 1])).tolist() == [0, 0, 0]
    assert automatic_submodels(graph, np.array([0, 0, 1])).tolist() == [0, 0, 0]
