"""Documents for Model Explorer: what its page reads of a graph and of its nodes."""

from __future__ import annotations

import numpy as np
import pytest

from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.reporting.explorer import graph_document, label_data, layer_of, node_data, number_data, received
from hsdag.reporting.graph import PlacedGraph
from hsdag.runtime.measuring.profile import LinkProfile
from tests.hsdag.reporting.examples import NAMES, PROFILE, RUN


@pytest.fixture
def diamond() -> ComputationGraph:
    """0 feeds 1 and 2, which feed 3; 0 is read twice by 1."""
    edges = [(0, 1), (0, 1), (0, 2), (1, 3), (2, 3)]
    return graph_from_edges(["Parameter", "Add", "Relu", "Concat"], edges, output_bytes=[100, 200, 300, 400])


def test_a_node_says_what_it_reads_by_which_port(diamond: ComputationGraph) -> None:
    document = graph_document(diamond, "m")
    assert document["id"] == "m"
    assert [node["label"] for node in document["nodes"]] == list(diamond.op_types)
    read = {
        (edge["sourceNodeId"], node["id"], edge["targetNodeInputId"])
        for node in document["nodes"]
        for edge in node["incomingEdges"]
    }
    columns = (diamond.edge_src, diamond.edge_dst, diamond.edge_dst_port)
    names = diamond.op_names
    assert read == {(names[s], names[d], str(p)) for s, d, p in zip(*(c.tolist() for c in columns), strict=True)}


@pytest.mark.parametrize(
    ("name", "layer"),
    [("a/b/c", "a/b"), ("c", ""), ("/a//b/", "a/b"), ("x;y/z;w/c", "x,y/z,w"), ("<b>&/c", "<b>&"), ("a/ /c", "a")],
)
def test_the_layer_of_an_op_is_what_stands_before_its_name(name: str, layer: str) -> None:
    assert layer_of(name) == layer


def test_labels_and_numbers_are_by_the_ids_of_nodes(diamond: ComputationGraph) -> None:
    ids = [node["id"] for node in graph_document(diamond, "m")["nodes"]]
    labels = label_data(diamond, ["FAST", "SLOW"], np.array([0, 1, 0, -1]))["results"]
    assert {key: result["value"] for key, result in labels.items()} == {ids[0]: "FAST", ids[1]: "SLOW", ids[2]: "FAST"}
    assert labels[ids[0]]["bgColor"] == labels[ids[2]]["bgColor"] != labels[ids[1]]["bgColor"]
    numbers = number_data(diamond, np.array([1.0, 2, 3, np.nan]), np.array([True, False, True, False]))
    assert {key: result["value"] for key, result in numbers["results"].items()} == {ids[0]: 1.0, ids[2]: 3.0}
    assert [stop["stop"] for stop in numbers["gradient"]] == [0, 1]


def test_an_op_receives_each_tensor_of_another_device_once(diamond: ComputationGraph) -> None:
    device, kept = np.array([0, 1, 0, 1]), np.ones(5, dtype=np.bool_)
    size, reads = received(diamond, device, kept, None)
    assert size.tolist() == [0, 100, 0, 300]
    assert reads.tolist() == [False, True, False, True]
    latency, bandwidth = np.array([[0, 2.0], [9, 0]]), np.array([[np.inf, 50.0], [1, np.inf]])
    links = LinkProfile(np.zeros(2), latency, bandwidth)
    assert received(diamond, device, kept, links)[0].tolist() == [0, 2 + 100 / 50, 0, 2 + 300 / 50]


def test_what_is_copied_is_not_received(diamond: ComputationGraph) -> None:
    size, reads = received(diamond, np.array([0, 1, 1, 1]), np.zeros(5, dtype=np.bool_), None)
    assert not size.any()
    assert not reads.any()


def test_times_are_in_milliseconds_on_devices_and_on_the_way() -> None:
    data = node_data(PlacedGraph.of(RUN), PROFILE.links)
    (times,) = (each["results"] for name, each in data.items() if name.startswith("ms_on_FAST"))
    assert times[NAMES[1]]["value"] == pytest.approx(4.0)
    sent = {name: each["value"] for name, each in data["transfers_ms"]["results"].items()}
    assert sent == {NAMES[3]: pytest.approx(0.010004), NAMES[4]: pytest.approx(0.010004)}
    assert data["submodel"]["results"][NAMES[3]]["value"] != data["submodel"]["results"][NAMES[4]]["value"]
