"""Layered drawings of graphs: a place for every op, and a route for every edge.

Legend: N ops, E edges between different pairs of ops, P points of routes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from hsdag.drawing import is_installed
from hsdag.ir.errors import OptionError
from hsdag.ir.graph.colocation import known_ops
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.ir.kernels import longest_before

MAX_SWEEPS = 24
"""Sweeps over the layers that order ops by the barycentre of their neighbours."""

ROW = 2.0
"""Between two ops of a layer at least; an op may lie half of it beside those of other layers."""

CORNERS = ((-0.2, -0.5), (-0.2, 0.5), (0.25, -0.5), (0.25, 0.5))
"""Where ops that are known before any data lie, beside the op before their reader: between the rows of other ops."""


@dataclass(frozen=True, eq=False)
class LayeredDrawing:
    """Where ops and edges lie; data flow to the right, one layer a step.

    A route is a polyline; ``route_x`` and ``route_y`` hold the routes of all edges one after another, each closed by
    NaN. ``edge`` [E, 2] has the ops that each route joins, ``route_edge`` [P] the edge that a point belongs to.
    ``is_known`` are ops that depend on no data, such as weights.
    """

    x: FloatArray  # [N]
    y: FloatArray  # [N]
    is_known: BoolArray  # [N]
    edge: IntArray  # [E, 2]
    route_x: FloatArray  # [P]
    route_y: FloatArray  # [P]
    route_edge: IntArray  # [P]

    def routes(self, chosen: BoolArray) -> tuple[FloatArray, FloatArray]:
        """The points of the chosen edges [E]."""
        points = chosen[self.route_edge]
        return self.route_x[points], self.route_y[points]


def layers_of(graph: ComputationGraph, is_known: BoolArray) -> IntArray:
    """[N] the layer of each op: the longest way to it, in edges, from ops that data come from.

    What is known before any data lies one layer before its first reader.
    """
    steps = (~is_known).astype(np.float64)
    before = longest_before(graph.topological_order, graph.predecessors, steps, np.zeros(graph.num_edges))
    layer = before.astype(np.int64)
    for v in graph.topological_order[::-1].tolist():
        if is_known[v]:
            layer[v] = layer[graph.successors.of(v)].min() - 1
    found: IntArray = layer - layer.min(initial=0)
    return found


def draw_layers(graph: ComputationGraph) -> LayeredDrawing:
    """Draw a graph by Sugiyama's method in layers that are known, so that thousands of ops take less than a second.

    What is known before any data is no part of that: it is drawn small, beside the ops that read it.
    Raises OptionError where igraph is not installed.
    """
    if not is_installed("igraph"):
        raise OptionError("graphs are drawn by igraph, which is not installed; run: pip install 'hsdag[report]'")
    import igraph

    is_known = known_ops(graph)
    layer = layers_of(graph, is_known)
    edge = np.unique(np.stack([graph.edge_src, graph.edge_dst], axis=1), axis=0).reshape(-1, 2)
    shown = np.flatnonzero(~is_known)
    index = np.cumsum(~is_known) - 1
    is_drawn = ~is_known[edge].any(axis=1)
    drawn = igraph.Graph(n=len(shown), edges=index[edge[is_drawn]].tolist(), directed=True)
    layout = drawn.layout_sugiyama(layers=layer[shown].tolist(), hgap=ROW, maxiter=MAX_SWEEPS)
    place = np.zeros((graph.num_ops, 2))
    place[shown] = np.asarray(layout.coords, dtype=np.float64).reshape(-1, 2)[:, ::-1]
    _place_known(graph, is_known, layer, place)
    bends: list[list[list[float]]] = [[] for _ in edge]
    for e, found in zip(np.flatnonzero(is_drawn).tolist(), layout.edge_routing, strict=True):
        bends[e] = [[x, y] for y, x in found]
    route, length = _routes(edge, place, bends)
    route_edge = np.repeat(np.arange(len(edge)), length)
    return LayeredDrawing(place[:, 0], place[:, 1], is_known, edge, route[:, 0], route[:, 1], route_edge)


def _place_known(graph: ComputationGraph, is_known: BoolArray, layer: IntArray, place: FloatArray) -> None:
    """Put what is known beside the row of its first reader, which is placed already."""
    taken: Counter[tuple[int, float]] = Counter()
    row = place[:, 1].copy()
    for v in graph.topological_order[::-1].tolist():
        if is_known[v]:
            readers = graph.successors.of(v)
            row[v] = row[readers[np.argmin(layer[readers])]]
            cell = int(layer[v]), float(row[v])
            right, down = CORNERS[taken[cell] % len(CORNERS)]
            taken[cell] += 1
            place[v] = layer[v] + right, row[v] + down


def _routes(edge: IntArray, place: FloatArray, bends: list[list[list[float]]]) -> tuple[FloatArray, list[int]]:
    """[P, 2] the points of all routes, and the number of points of each."""
    points: list[list[float]] = []
    for (tail, head), between in zip(edge.tolist(), bends, strict=True):
        points += [place[tail].tolist(), *between, place[head].tolist(), [np.nan, np.nan]]
    return np.asarray(points, dtype=np.float64).reshape(-1, 2), [len(between) + 3 for between in bends]
