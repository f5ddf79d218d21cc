"""Layered drawings: data flow to the right, weights lie beside their readers, routes join what edges join."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsdag.commands.report.graph import LayeredDrawing, PlacedGraph, draw_layers, graph_figure, op_source
from hsdag.drawing import COLOURS
from hsdag.ir.graph.build import graph_of
from hsdag.ir.graph.computation_graph import ComputationGraph, graph_from_edges
from hsdag.ir.graph.reader import load_model

LONG_WAY = graph_from_edges(["Parameter", "Relu", "Add", "Relu", "Add"], [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)])
WITH_WEIGHT = graph_from_edges(["Parameter", "Constant", "Convert", "Relu", "Add"], [(0, 3), (3, 4), (1, 2), (2, 4)])


@pytest.fixture(scope="module")
def graph(tiny_resnet: Path) -> ComputationGraph:
    return graph_of(load_model(tiny_resnet))


def test_the_layer_is_the_longest_way_to_an_op_but_what_is_read_late_lies_before_its_reader() -> None:
    assert draw_layers(LONG_WAY).x.tolist() == [0, 1, 2, 3, 4]
    late = graph_from_edges(["Parameter", "Relu", "Relu", "Parameter", "Add"], [(0, 1), (1, 2), (2, 4), (3, 4)])
    assert draw_layers(late).x.tolist() == [0, 1, 2, 2, 3]
    alone = draw_layers(graph_from_edges(["Parameter"], []))
    assert (len(alone.x), len(alone.route_x)) == (1, 0)


def test_weights_lie_before_their_reader_and_not_where_data_begin() -> None:
    drawing = draw_layers(WITH_WEIGHT)
    assert drawing.x.tolist() == [0.0, -0.2, 0.8, 1.0, 2.0]
    assert (drawing.y[1:3] - drawing.y[4]).tolist() == [-0.5, -0.5]
    assert len({*drawing.y[[0, 3, 4]].tolist()}) == 1  # a straight line


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


def long_route() -> tuple[LayeredDrawing, np.ndarray, np.ndarray]:
    drawing = draw_layers(LONG_WAY)
    return drawing, *drawing.routes((drawing.edge == [0, 4]).all(axis=1))


def test_a_long_edge_goes_around_the_ops_between_its_ends() -> None:
    drawing, x, y = long_route()
    assert x[:-1].tolist() == [0, 1, 2, 3, 4]
    assert abs(y[2] - drawing.y[2]) >= 1.0


def test_of_an_edge_over_many_layers_of_a_large_graph_both_ends_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsdag.commands.report.graph.LARGE", 4)
    monkeypatch.setattr("hsdag.commands.report.graph.LAYERS_SHOWN", 3)
    drawing, x, y = long_route()
    np.testing.assert_allclose(x, [0, 0.9, np.nan, 3.1, 4, np.nan])
    assert [y[0], y[1], y[3], y[4]] == [drawing.y[0], drawing.y[0], drawing.y[4], drawing.y[4]]
    others = drawing.routes(~(drawing.edge == [0, 4]).all(axis=1))[0]
    assert np.isnan(others).sum() == len(drawing.edge) - 1  # each in one piece


def test_ops_are_listed_by_what_they_take_and_weights_at_their_first_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = replace(WITH_WEIGHT, weight_bytes=np.array([0, 8, 0, 1, 2]))
    time_s = np.array([[0, 0], [0, 0], [np.nan, 1e-3], [2e-3, np.nan], [4e-3, 3e-3]])
    placed = PlacedGraph(graph, ("A", "B"), np.array([0, 0, 1, 0, 1]), time_s)
    source = op_source(placed)
    data: dict[str, Any] = source.data
    assert data["name"] == ["op4", "op3", "op2", "op0", "op1"]
    assert data["weight_bytes"].tolist() == [10, 1, 8, 0, 8]
    assert data["times"][:3] == ["A 4 ms, B 3 ms", "A 2 ms", "B 1 ms"]
    assert (data["shape"][0], data["colour"][:2]) == ("1 f32", [COLOURS[1], COLOURS[0]])
    assert data["w"].tolist() == [0.84, 0.84, 0.36, 0.84, 0.36]
    assert placed.crosses.tolist() == [False, False, False, True]  # that of a weight is no transfer
    nowhere = replace(placed, device=np.full(5, -1))
    assert nowhere.cost_s.tolist() == [0, 0, 1e-3, 2e-3, 3e-3]
    axes = []
    for reach, large in ((8.0, 400), (0.0, 400), (0.0, 2)):
        monkeypatch.setattr("hsdag.commands.report.graph.LEAST_REACH", reach)
        monkeypatch.setattr("hsdag.commands.report.graph.LARGE", large)
        monkeypatch.setattr("hsdag.commands.report.graph.LAYERS_SHOWN", 1 if large == 2 else 24)
        figure: Any = graph_figure(placed, source)[1]
        axes.append((figure.x_range.start, figure.x_range.end))
    assert axes == [
        pytest.approx(each) for each in ((-7.1, 8.9), (0.9 - 2.144, 0.9 + 2.144), (0.4 - 1.624, 0.4 + 1.624))
    ]


def test_rows_of_a_small_graph_have_their_height_and_a_large_graph_has_a_largest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placed = PlacedGraph(WITH_WEIGHT, ("A", "B"), np.zeros(5, dtype=np.int64), np.ones((5, 2)))
    heights = []
    for rows in (2.0, 3.5, 100.0):  # on either side of the middle
        monkeypatch.setattr("hsdag.commands.report.graph.LEAST_ROWS", rows)
        figure: Any = graph_figure(placed, op_source(placed))[1]
        heights.append(figure.height)
    assert heights == [140, 245, 560]
