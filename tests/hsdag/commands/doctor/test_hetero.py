"""HETERO's rules by hand: shares of memory, weights per device, affinities, and why a device gets nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hsdag.commands.doctor.hetero import (
    automatic_distribution,
    counted_bytes,
    first_share,
    given_distribution,
    why_empty,
)
from hsdag.ir import ComputationGraph, graph_from_edges

GPUS = ("GPU.0", "GPU.1")


def small_graph(variables: tuple[str, ...] = ("",) * 6) -> ComputationGraph:
    """x -> a -> b -> result, with a constant that a and b read, and one that b reads."""
    types = ["Parameter", "Constant", "A", "Constant", "B", "Result"]
    graph = graph_from_edges(
        types, [(0, 2), (1, 2), (1, 4), (2, 4), (3, 4), (4, 5)], op_names=["x", "w", "a", "v", "b", "r"]
    )
    return replace(graph, weight_bytes=np.array([0, 100, 0, 10, 0, 0]), variables=variables)


def test_four_bits_count_as_a_byte() -> None:
    shapes, sizes = np.array([[1], [1000], [1], [50], [1], [1]]), np.array([4, 500, 4, 200, 4, 4])
    assert counted_bytes(replace(small_graph(), shapes=shapes, output_bytes=sizes)) == 1000 + 200


@pytest.mark.parametrize(
    ("devices", "memory", "share"),
    [
        (GPUS, {"GPU.0": 120.0, "GPU.1": 50.0}, 1.0),  # it holds 1.2 times the weights
        (GPUS, {"GPU.0": 119.0, "GPU.1": 50.0}, 1.0),  # it holds the weights
        (GPUS, {"GPU.0": 114.0, "GPU.1": 5.0}, 114 / 119),  # both together do not hold 1.2 times the weights
        (GPUS, {"GPU.0": 60.0, "GPU.1": 60.0}, 0.5),  # both hold 1.2 times the weights
        (GPUS, {"GPU.0": 60.0, "GPU.1": 20.0}, 0.75),  # they do not: by memory
        (("GPU.0", "CPU"), {"GPU.0": 60.0, "CPU": 10.0}, 0.5),  # a CPU holds the rest
        (("CPU", "GPU.0"), {"GPU.0": 60.0, "CPU": 10.0}, 1.0),  # a CPU holds anything
        (("NPU", "GPU.0"), {"NPU": None, "GPU.0": 60.0}, 1.0),  # its memory is not known
    ],
)
def test_the_first_device_takes_what_fits(devices: tuple[str, ...], memory: dict[str, float], share: float) -> None:
    assert first_share(devices, memory, 100) == pytest.approx(share)


def test_an_empty_device_is_explained_by_the_memory_of_the_first() -> None:
    found = automatic_distribution(small_graph(), GPUS, ["GPU.0"] * 6, "PIPELINE_PARALLEL")
    assert found.empty == ["GPU.1"]
    sentence = why_empty(found, "GPU.1", {"GPU.0": 24e9, "GPU.1": 24e9}, 14_100_000_000)
    assert sentence == "GPU.1 will get nothing because GPU.0 holds 1.2 x 14.1 GB"


def test_an_empty_device_is_explained_by_the_order_without_the_policy() -> None:
    found = automatic_distribution(small_graph(), GPUS, ["GPU.0"] * 6, None)
    sentence = why_empty(found, "GPU.1", {"GPU.0": 24e9, "GPU.1": 24e9}, 14_100_000_000)
    assert sentence == "GPU.1 will get nothing because GPU.0 runs every op"


def test_ops_submodels_and_weights_are_counted_by_device() -> None:
    found = automatic_distribution(small_graph(), GPUS, ["GPU.0"] * 4 + ["GPU.1"] * 2, None)
    assert found.ops == {"GPU.0": 4, "GPU.1": 2}
    assert found.submodels == {"GPU.0": 1, "GPU.1": 1}
    assert found.num_submodels == 2
    assert found.weight_bytes(small_graph()) == {"GPU.0": 100, "GPU.1": 110}


def test_a_device_that_hetero_names_otherwise_is_added() -> None:
    found = automatic_distribution(small_graph(), ("GPU_FAST.0", "CPU"), ["GPU.0"] * 6, None)
    assert found.ops == {"GPU_FAST.0": 0, "CPU": 0, "GPU.0": 6}


def test_an_op_that_no_device_runs_makes_hetero_fail() -> None:
    found = automatic_distribution(small_graph(), GPUS, ["GPU.0"] * 4 + ["", ""], None)
    assert found.failure == "no device of GPU.0, GPU.1 runs 2 of 6 ops, for example 'b' (B)"


def test_affinities_of_some_ops_make_hetero_fail() -> None:
    found = given_distribution(small_graph(), ["CPU", "CPU", "", "CPU", "CPU", "CPU"])
    assert found.failure == "1 of 6 ops have no affinity, for example 'a'"


def test_affinities_of_all_ops_are_followed_and_a_result_goes_with_its_op() -> None:
    found = given_distribution(small_graph(), ["A", "A", "A", "A", "B", "A"])
    assert found.failure is None
    assert found.ops == {"A": 4, "B": 2}
    assert found.submodels == {"A": 1, "B": 1}


def test_state_in_two_submodels_is_told() -> None:
    graph = small_graph(("", "", "s", "", "s", ""))
    assert given_distribution(graph, ["A", "A", "A", "A", "B", "B"]).parted_variables(graph) == {"s": ["A", "B"]}
    assert given_distribution(graph, ["A"] * 6).parted_variables(graph) == {}
