"""The placed graph of a report: ops in layers, coloured by device, with a search that goes to what it finds.

Legend: N ops, E edges between different pairs of ops, P points of routes, D devices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hsdag.ir.graph.colocation import known_ops
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.ir.graph.paths import longest_before
from hsdag.placing.run_folder import RunFolder
from hsdag.reporting.figures import BARE, colour_of, hatch_of, new_figure

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, CustomJS, UIElement

OP_SIZE, KNOWN_SIZE = (0.84, 0.7), (0.36, 0.22)
"""Width and height of an op, and of one that depends on no data, in layers."""

HEIGHT_PX = 560
LOOK = {
    "fill_color": "colour",
    "line_color": None,
    "hatch_color": "black",
    "hatch_alpha": 0.4,
    "hatch_scale": 6,
    "nonselection_fill_alpha": 0.15,
    "nonselection_hatch_alpha": 0.1,
    "selection_line_color": "black",
    "selection_line_width": 2,
}

LEAST_REACH, LEAST_ROWS = 8.0, 3.5
"""Layers, and rows, on both sides of the middle that are shown at least."""
ROW_PX = 35  # the height that a row may have

STUB = 0.9
"""Layers that are drawn at either end of an edge over too many of them."""

LARGE = 400
"""Ops that run on data beyond which a drawing is not taken in at a glance."""

LAYERS_SHOWN = 24
"""Layers of a large graph that are shown at first or around an op that was searched for, and that edges cross."""

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
    """[N] the layer of each op: one before its first reader; of what nobody reads, the longest way to it, in edges."""
    steps = (~is_known).astype(np.float64)
    before = longest_before(graph.topological_order, graph.predecessors, steps, np.zeros(graph.num_edges))
    layer = before.astype(np.int64)
    for v in graph.topological_order[::-1].tolist():
        if len(readers := graph.successors.of(v)):
            layer[v] = layer[readers].min() - 1
    return np.asarray(layer - layer.min(initial=0), dtype=np.int64)


def draw_layers(graph: ComputationGraph) -> LayeredDrawing:
    """Draw a graph by Sugiyama's method in layers that are known, so that thousands of ops take less than a second.

    What is known before any data is no part of that: it is drawn small, beside the ops that read it. Nor are edges of
    large graphs over more than ``LAYERS_SHOWN`` layers, of which both ends are drawn.
    """
    import igraph

    is_known = known_ops(graph)
    layer = layers_of(graph, is_known)
    edge = np.unique(np.stack([graph.edge_src, graph.edge_dst], axis=1), axis=0).reshape(-1, 2)
    shown = np.flatnonzero(~is_known)
    is_long = layer[edge[:, 1]] - layer[edge[:, 0]] > (LAYERS_SHOWN if len(shown) > LARGE else graph.num_ops)
    is_drawn = ~is_known[edge].any(axis=1) & ~is_long
    drawn = igraph.Graph(n=len(shown), edges=(np.cumsum(~is_known) - 1)[edge[is_drawn]].tolist(), directed=True)
    layout = drawn.layout_sugiyama(layers=layer[shown].tolist(), hgap=ROW, maxiter=MAX_SWEEPS)
    place = np.zeros((graph.num_ops, 2))
    place[shown] = np.asarray(layout.coords, dtype=np.float64).reshape(-1, 2)[:, ::-1]
    _place_known(graph, is_known, layer, place)
    bends = dict(zip(np.flatnonzero(is_drawn).tolist(), layout.edge_routing, strict=True))
    gap = [np.nan, np.nan]
    points, route_edge = list[list[float]](), list[int]()
    for e, ends in enumerate(edge.tolist()):
        (x, y), (right, row) = place[ends].tolist()
        between = [[x + STUB, y], gap, [right - STUB, row]] if is_long[e] else [b[::-1] for b in bends.get(e, ())]
        points += [[x, y], *between, [right, row], gap]
        route_edge += [e] * (len(between) + 3)
    route = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    route_of = np.asarray(route_edge, dtype=np.int64)
    return LayeredDrawing(place[:, 0], place[:, 1], is_known, edge, route[:, 0], route[:, 1], route_of)


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


@dataclass(frozen=True, eq=False)
class PlacedGraph:
    """A model's ops, what each takes on every device, and where it is placed.

    ``device`` is -1 for all ops where there is no placement.
    """

    graph: ComputationGraph
    devices: tuple[str, ...]
    device: IntArray  # [N]
    time_s: FloatArray  # [N, D], NaN where it is not known

    @staticmethod
    def of(run: RunFolder) -> PlacedGraph:
        """The graph of a search with its answer, or without a placement while there is none."""
        devices = run.problem.devices
        device = np.full(run.graph.num_ops, -1, dtype=np.int64)
        if run.placement is not None:
            names = run.placement.homes_of(run.graph)
            devices = (*devices, *sorted(set(names) - set(devices)))
            device = np.array([devices.index(name) for name in names], dtype=np.int64)
        time_s = np.full((run.graph.num_ops, len(devices)), np.nan)
        for d, times in enumerate([] if run.profile is None else run.profile.times):
            time_s[:, d] = times.time_s
        return PlacedGraph(run.graph, devices, device, time_s)

    @cached_property
    def drawing(self) -> LayeredDrawing:
        """Where ops and edges lie."""
        return draw_layers(self.graph)

    @cached_property
    def cost_s(self) -> FloatArray:
        """[N] what each op takes where it is, or as a whole at best where it is divided or nowhere; 0 if not known."""
        best_s = np.fmin.reduce(self.time_s, axis=1)
        own_s = np.where(self.device >= 0, self.time_s[np.arange(len(best_s)), self.device], np.nan)
        return np.nan_to_num(np.where(np.isnan(own_s), best_s, own_s))

    @property
    def crosses(self) -> BoolArray:
        """[E] edges of the drawing on which data go from device to device."""
        ends = self.device[self.drawing.edge]
        return np.asarray((ends[:, 0] != ends[:, 1]) & ~self.drawing.is_known[self.drawing.edge[:, 0]])

    def name_of(self, device: int) -> str:
        """A device's name."""
        return self.devices[device] if device >= 0 else "not placed"


def op_source(placed: PlacedGraph) -> ColumnDataSource:
    """The ops, those that take longest first."""
    from bokeh.models import ColumnDataSource

    graph, drawing = placed.graph, placed.drawing
    order = np.argsort(-placed.cost_s, kind="stable")
    ops = order.tolist()
    sizes = np.where(drawing.is_known[order, None], KNOWN_SIZE, OP_SIZE)
    each_s = (zip(placed.devices, row, strict=True) for row in placed.time_s[order].tolist())
    times = [[f"{name} {1e3 * seconds:.4g} ms" for name, seconds in row if np.isfinite(seconds)] for row in each_s]
    columns: dict[str, Any] = {
        "x": drawing.x[order],
        "y": drawing.y[order],
        "w": sizes[:, 0],
        "h": sizes[:, 1],
        "name": [graph.op_names[v] for v in ops],
        "type": [graph.op_types[v] for v in ops],
        "device": [placed.name_of(int(placed.device[v])) for v in ops],
        "shape": [f"{'×'.join(map(str, graph.shape_of(v))) or 'scalar'} {graph.element_types[v]}" for v in ops],
        "times": [", ".join(known) or "not known" for known in times],
        "output_bytes": graph.output_bytes[order],
        "weight_bytes": _read_bytes(graph, drawing.is_known)[order],
        "colour": [colour_of(int(placed.device[v])) for v in ops],
    }
    return ColumnDataSource(columns)


def _read_bytes(graph: ComputationGraph, is_known: BoolArray) -> IntArray:
    """[N] bytes of the weights that each op holds or reads, those of ops before any data at their first reader."""
    found = graph.weight_bytes.copy()
    for v in graph.topological_order.tolist():
        if is_known[v] and len(readers := graph.successors.of(v)):
            found[readers[0]] += found[v]
    return found


def graph_figure(placed: PlacedGraph, source: ColumnDataSource) -> list[UIElement]:
    """The controls above the graph, and the graph itself, a large one at its beginning."""
    from bokeh.layouts import row
    from bokeh.models import Legend, LegendItem, Range1d

    drawing = placed.drawing
    is_first = drawing.x <= LAYERS_SHOWN if int((~drawing.is_known).sum()) > LARGE else np.ones_like(drawing.is_known)
    top, bottom = _extent(drawing.y[is_first], LEAST_ROWS)
    made = new_figure(
        "graph",
        min(HEIGHT_PX, int(ROW_PX * (bottom - top))),
        x_range=Range1d(*_extent(drawing.x[is_first], LEAST_REACH)),
        y_range=Range1d(bottom, top),
        x_axis_location=None,
        y_axis_location=None,
    )
    made.grid.visible = False
    made.toolbar.autohide, made.min_border_left = False, 5
    made.line(*drawing.routes(~placed.crosses), line_color="#8c8c8c", line_width=0.8, line_alpha=0.7)
    made.line(*drawing.routes(placed.crosses), line_color="#d4572f", line_width=2.0)
    items = [LegendItem(label=each.name, renderers=[each]) for each in _draw_ops(made, placed, source)]
    made.add_layout(Legend(items=items, orientation="horizontal", padding=4, **BARE), "above")
    _draw_labels(made, source)
    return [row(_search(made, source), sizing_mode="stretch_width", css_classes=["controls"]), made]


def _search(made: Any, source: ColumnDataSource) -> list[UIElement]:
    """A field that looks for ops while one types, two buttons that go from one to the next, and how many there are."""
    from bokeh.models import Button, Div, TextInput

    search = TextInput(title="Search by name or type", placeholder="such as Convolution", width=260, tags=[0])
    count = Div(text="", width=90, align="end", css_classes=["count"])
    known = {"search": search, "count": count, "ops": source, "figure": made, "layers": LAYERS_SHOWN}
    search.js_on_change("value_input", _script("look_for(0, {})", **known))
    buttons = []
    for label, step in (("Previous", -1), ("Next", 1)):
        button = Button(label=label, width=80, align="end")
        button.js_on_click(_script(f"look_for({step}, {{}})", **known))
        buttons.append(button)
    return [search, *buttons, count]


def _script(call: str, **known: object) -> CustomJS:
    """The call of a function of the page, which takes what is ``known`` by name where there are braces."""
    from bokeh.models import CustomJS

    return CustomJS(args=known, code=call.format("{" + ", ".join(known) + "}"))


def _extent(places: FloatArray, least: float) -> tuple[float, float]:
    """What an axis shows at first; a small graph does not fill it."""
    middle = (places.min() + places.max()) / 2
    reach = max(0.52 * float(np.ptp(places)) + 1, least)
    return middle - reach, middle + reach


def _draw_ops(made: Any, placed: PlacedGraph, source: ColumnDataSource) -> list[Any]:
    """A layer of the figure for each device, because a hatch for each op would take seconds to draw."""
    from bokeh.models import CDSView, GroupFilter, HoverTool

    drawn = []
    for d in np.unique(placed.device).tolist():
        name = placed.name_of(d)
        view = CDSView(filter=GroupFilter(column_name="device", group=name))
        ops = made.rect("x", "y", "w", "h", source=source, view=view, name=name, **LOOK, hatch_pattern=hatch_of(d))
        drawn.append(ops)
    tooltips = [
        ("op", "@name"),
        ("type", "@type"),
        ("device", "@device"),
        ("time", "@times"),
        ("shape", "@shape"),
        ("output", "@output_bytes{0,0} bytes"),
        ("weights", "@weight_bytes{0,0} bytes"),
    ]
    made.add_tools(HoverTool(renderers=drawn, tooltips=tooltips))
    return drawn


def _draw_labels(made: Any, ops: ColumnDataSource) -> None:
    """Types on the ops in view once they are wide enough; thousands of texts would be slow to draw."""
    from bokeh.models import ColumnDataSource

    labels = ColumnDataSource({"x": [], "y": [], "type": []})
    made.text("x", "y", text="type", source=labels, text_align="center", text_baseline="middle", text_font_size="10px")
    script = _script("label({})", figure=made, ops=ops, labels=labels)
    for axis in (made.x_range, made.y_range):
        axis.js_on_change("end", script)
