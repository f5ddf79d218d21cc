"""Draw the placed graph of a report: ops in layers, coloured by device, with a search field.

Legend: N ops, E edges between different pairs of ops, P points of routes, D devices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hsdag.commands.place.run_folder import RunFolder
from hsdag.commands.report.figures import BARE, colour_of, hatch_of, new_figure
from hsdag.ir.graph.colocation import known_ops
from hsdag.ir.graph.computation_graph import BoolArray, ComputationGraph, FloatArray, IntArray
from hsdag.ir.graph.paths import longest_before
from hsdag.ir.placement.homes import op_homes

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, CustomJS, UIElement

OP_SIZE, KNOWN_SIZE = (0.84, 0.7), (0.36, 0.22)
"""Width and height in layers of an op, and of an op that depends on no data."""

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
"""Show at least this many layers, and rows, on either side of the middle."""
ROW_PX = 35  # largest height of a row

STUB = 0.9
"""Length in layers of the pieces drawn at both ends of an edge that spans too many layers."""

LARGE = 400
"""Above this number of ops that depend on data, a drawing counts as large."""

LAYERS_SHOWN = 24
"""Layers of a large graph in view at first and around a found op; edges across more are drawn at both ends only."""

MAX_SWEEPS = 24
"""Most sweeps over the layers to order ops by the barycentre of their neighbours."""

ROW = 2.0
"""Least distance between two ops of a layer; an op may lie half of that away from those of other layers."""

CORNERS = ((-0.2, -0.5), (-0.2, 0.5), (0.25, -0.5), (0.25, 0.5))
"""Positions of ops that depend on no data, relative to the op before their reader: between the rows of other ops."""


@dataclass(frozen=True, eq=False)
class LayeredDrawing:
    """Positions of ops and edges; data flow to the right, one layer per step.

    A route is a polyline. ``route_x`` and ``route_y`` hold the routes of all edges one after another, each terminated
    by NaN. ``edge`` [E, 2] has the two ops of each edge, ``route_edge`` [P] the edge of each point. ``is_known`` marks
    ops that depend on no data, for example weights.
    """

    x: FloatArray  # [N]
    y: FloatArray  # [N]
    is_known: BoolArray  # [N]
    edge: IntArray  # [E, 2]
    route_x: FloatArray  # [P]
    route_y: FloatArray  # [P]
    route_edge: IntArray  # [P]

    def routes(self, chosen: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Return the points of the chosen edges [E]."""
        points = chosen[self.route_edge]
        return self.route_x[points], self.route_y[points]


def layers_of(graph: ComputationGraph, is_known: BoolArray) -> IntArray:
    """Return the layer of each op, [N]: one before its first reader; without readers the longest path to it."""
    steps = (~is_known).astype(np.float64)
    before = longest_before(graph.topological_order, graph.predecessors, steps)
    layer = before.astype(np.int64)
    for v in graph.topological_order[::-1].tolist():
        if len(readers := graph.successors.of(v)):
            layer[v] = layer[readers].min() - 1
    return np.asarray(layer - layer.min(initial=0), dtype=np.int64)


def draw_layers(graph: ComputationGraph) -> LayeredDrawing:
    """Draw a graph by Sugiyama's method with given layers, so that thousands of ops take less than a second.

    Ops that depend on no data are left out of that and drawn small beside their readers. Edges of large graphs that
    span more than ``LAYERS_SHOWN`` layers are left out, too, and drawn only at both ends.
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
    """Place ops that depend on no data beside the row of their first reader, whose place is known."""
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
    """A model's ops, the time of each on every device, and its placement; ``device`` is -1 without a placement."""

    graph: ComputationGraph
    devices: tuple[str, ...]
    device: IntArray  # [N]
    time_s: FloatArray  # [N, D], NaN where it is not known

    @staticmethod
    def of(run: RunFolder) -> PlacedGraph:
        """Return the graph of a search with its answer, or without a placement if there is none yet."""
        devices = run.problem.devices
        device = np.full(run.graph.num_ops, -1, dtype=np.int64)
        if run.placement is not None:
            names = op_homes(run.placement, run.graph)
            devices = (*devices, *sorted(set(names) - set(devices)))
            device = np.array([devices.index(name) for name in names], dtype=np.int64)
        time_s = np.full((run.graph.num_ops, len(devices)), np.nan)
        for d, times in enumerate([] if run.profile is None else run.profile.times):
            time_s[:, d] = times.time_s
        return PlacedGraph(run.graph, devices, device, time_s)

    @cached_property
    def drawing(self) -> LayeredDrawing:
        """Return the positions of ops and edges."""
        return draw_layers(self.graph)

    @cached_property
    def cost_s(self) -> FloatArray:
        """Return [N] the seconds of each op where it is, on its best device if divided or not placed; 0 if unknown."""
        best_s = np.fmin.reduce(self.time_s, axis=1)
        own_s = np.where(self.device >= 0, self.time_s[np.arange(len(best_s)), self.device], np.nan)
        return np.nan_to_num(np.where(np.isnan(own_s), best_s, own_s))

    @property
    def crosses(self) -> BoolArray:
        """Return [E] on which edges of the drawing data go from one device to another."""
        ends = self.device[self.drawing.edge]
        return np.asarray((ends[:, 0] != ends[:, 1]) & ~self.drawing.is_known[self.drawing.edge[:, 0]])

    def name_of(self, device: int) -> str:
        """Return a device's name, or "not placed" for -1."""
        return self.devices[device] if device >= 0 else "not placed"


def op_source(placed: PlacedGraph) -> ColumnDataSource:
    """Return the ops as a data source, those that take longest first."""
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
        "times": [", ".join(texts) or "not known" for texts in times],
        "output_bytes": graph.output_bytes[order],
        "weight_bytes": _read_bytes(graph, drawing.is_known)[order],
        "colour": [colour_of(int(placed.device[v])) for v in ops],
    }
    return ColumnDataSource(columns)


def _read_bytes(graph: ComputationGraph, is_known: BoolArray) -> IntArray:
    """Return bytes of weights that each op holds or reads, [N]; ops that depend on no data pass theirs to a reader."""
    read_bytes = graph.weight_bytes.copy()
    for v in graph.topological_order.tolist():
        if is_known[v] and len(readers := graph.successors.of(v)):
            read_bytes[readers[0]] += read_bytes[v]
    return read_bytes


def graph_figure(placed: PlacedGraph, source: ColumnDataSource) -> list[UIElement]:
    """Return the controls and the graph below them; of a large graph the beginning is in view."""
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
    items = [LegendItem(label=renderer.name, renderers=[renderer]) for renderer in _draw_ops(made, placed, source)]
    made.add_layout(Legend(items=items, orientation="horizontal", padding=4, **BARE), "above")
    _draw_labels(made, source)
    return [row(_search(made, source), sizing_mode="stretch_width", css_classes=["controls"]), made]


def _search(made: Any, source: ColumnDataSource) -> list[UIElement]:
    """Return a search field that finds ops while a user types, buttons for the previous and next one, and a count."""
    from bokeh.models import Button, Div, TextInput

    search = TextInput(title="Search by name or type", placeholder="such as Convolution", width=260, tags=[0])
    count = Div(text="", width=90, align="end", css_classes=["count"])
    objects = {"search": search, "count": count, "ops": source, "figure": made, "layers": LAYERS_SHOWN}
    search.js_on_change("value_input", _script("look_for(0, {})", **objects))
    buttons = []
    for label, step in (("Previous", -1), ("Next", 1)):
        button = Button(label=label, width=80, align="end")
        button.js_on_click(_script(f"look_for({step}, {{}})", **objects))
        buttons.append(button)
    return [search, *buttons, count]


def _script(call: str, **objects: object) -> CustomJS:
    """Return a call of a function of the page; ``{}`` in ``call`` stands for an object with ``objects`` by name."""
    from bokeh.models import CustomJS

    return CustomJS(args=objects, code=call.format("{" + ", ".join(objects) + "}"))


def _extent(places: FloatArray, least: float) -> tuple[float, float]:
    """Return the range that an axis shows at first; a small graph does not fill it."""
    middle = (places.min() + places.max()) / 2
    reach = max(0.52 * float(np.ptp(places)) + 1, least)
    return middle - reach, middle + reach


def _draw_ops(made: Any, placed: PlacedGraph, source: ColumnDataSource) -> list[Any]:
    """Draw the ops, one renderer per device, because a hatch per op would take seconds to draw."""
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
    """Show op types on ops in view once these are wide enough; thousands of texts would be slow to draw."""
    from bokeh.models import ColumnDataSource

    labels = ColumnDataSource({"x": [], "y": [], "type": []})
    made.text("x", "y", text="type", source=labels, text_align="center", text_baseline="middle", text_font_size="10px")
    script = _script("label({})", figure=made, ops=ops, labels=labels)
    for axis in (made.x_range, made.y_range):
        axis.js_on_change("end", script)
