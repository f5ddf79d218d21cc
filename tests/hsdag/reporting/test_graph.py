"""Layered drawings: data flow to the right, weights lie beside their readers, routes join what edges join."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.ir.graph.reader import load_model
from hsdag.reporting.graph import draw_layers

LONG_WAY = graph_from_edges(["Parameter", "Relu", "Add", "Relu", "Add"], [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])
WITH_WEIGHT = graph_from_edges(["Parameter", "Constant", "Convert", "Relu", "Add"], [(0, 3), (3, 4), (1, 2), (2, 4)])


@pytest.fixture(scope="module")
def graph(tiny_resnet: Path) -> ComputationGraph:
    return graph_of(load_model(tiny_resnet))


def test_data_flow_to_the_right(graph: ComputationGraph) -> None:
    drawing = draw_layers(graph)
    src, dst = drawing.edge[~drawing.is_known[drawing.edge[:, 0]]].T
    assert (drawing.x[src] < drawing.x[dst]).all()


def test_the_layer_is_the_longest_way_to_an_op_but_what_is_read_late_lies_before_its_reader() -> None:
    assert draw_layers(LONG_WAY).x.tolist() == [0, 1, 2, 3, 4]
    late = graph_from_edges(["Parameter", "Relu", "Relu", "Parameter", "Add"], [(0, 1), (1, 2), (2, 4), (3, 4)])
    assert draw_layers(late).x.tolist() == [0, 1, 2, 2, 3]
    alone = draw_layers(graph_from_edges(["Parameter"], []))
    assert (len(alone.x), len(alone.route_x)) == (1, 0)


def test_weights_lie_before_their_reader_and_not_where_data_begin() -> None:
    x = draw_layers(WITH_WEIGHT).x
    assert x[4] - 1.5 < x[2] < x[4]
    assert x[2] - 1.5 < x[1] < x[2]


def test_no_two_ops_that_run_on_data_overlap(graph: ComputationGraph) -> None:
    drawing = draw_layers(graph)
    places = np.stack([drawing.x, drawing.y], axis=1)[~drawing.is_known]
    for layer in np.unique(places[:, 0]):
        assert (np.diff(np.sort(places[places[:, 0] == layer, 1])) >= 1.0).all()


def test_every_route_joins_the_ops_of_its_edge(graph: ComputationGraph) -> None:
    drawing = draw_layers(graph)
    pairs = set(zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True))
    assert {tuple(pair) for pair in drawing.edge.tolist()} == pairs
    for e, (src, dst) in enumerate(drawing.edge.tolist()):
        x, y = drawing.routes(np.arange(len(drawing.edge)) == e)
        assert (x[0], y[0], x[-2], y[-2]) == (drawing.x[src], drawing.y[src], drawing.x[dst], drawing.y[dst])
        assert np.isnan(x[-1])


def test_a_long_edge_goes_around_the_ops_between_its_ends() -> None:
    drawing = draw_layers(LONG_WAY)
    long = int(np.flatnonzero((drawing.edge == [0, 4]).all(axis=1))[0])
    x, y = drawing.routes(np.arange(len(drawing.edge)) == long)
    assert x[:-1].tolist() == [0, 1, 2, 3, 4]
    assert abs(y[2] - drawing.y[2]) >= 1.0


def test_of_an_edge_over_many_layers_of_a_large_graph_both_ends_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.reporting.graph.LARGE", 4)
    monkeypatch.setattr("hsdag.reporting.graph.LAYERS_SHOWN", 3)
    drawing = draw_layers(LONG_WAY)
    long = int(np.flatnonzero((drawing.edge == [0, 4]).all(axis=1))[0])
    x, y = drawing.routes(np.arange(len(drawing.edge)) == long)
    np.testing.assert_allclose(x, [0, 0.9, np.nan, 3.1, 4, np.nan])
    assert [y[0], y[1], y[3], y[4]] == [drawing.y[0], drawing.y[0], drawing.y[4], drawing.y[4]]
