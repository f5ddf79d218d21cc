"""Draw the figures of a report with Bokeh: the progress of a search, and timelines.

Every colour is accompanied by a hatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Any

from hsdag.drawing import (
    COLOURS,
    LINK_COLOUR,
    LINK_ROW,
    MAX_OUTLINED,
    OTHER_COLOUR,
    Bars,
    link_bars,
    op_bars,
    row_middles,
    shortened,
    type_colours,
)
from hsdag.runtime.objectives import Objective
from hsdag.runtime.timeline import Timeline
from hsdag.search.evaluators.recording import Event

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource, UIElement
    from bokeh.plotting import figure as Figure

HATCHES = (" ", "/", ".", "x", "-", "\\", "o", "|", "+", "*")
"""Hatches of devices, in order; their colours are those of Gantt charts."""

UNPLACED_COLOUR = "#9a9a9a"  # ops that are not placed
MOST_LETTERS = 48  # longest label of a row, so that there is room for the figure


def colour_of(index: int) -> str:
    """Return the colour of a device, group or method; -1 stands for unplaced."""
    return COLOURS[index % len(COLOURS)] if index >= 0 else UNPLACED_COLOUR


def hatch_of(index: int) -> str:
    """Return the hatch of a device; -1 stands for unplaced."""
    return HATCHES[index % len(HATCHES)] if index >= 0 else " "


HEIGHT_PX = 300
TIMELINE_PX, TIMELINE_EDGE_PX, MAX_TIMELINE_PX = 46, 86, 420

MOST_SHOWN = 3.0
"""End the axis of values at this many times the median at most; slower placements are drawn at its upper end."""

TOOLS = "pan,box_zoom,zoom_in,zoom_out,reset,save"
LEFT_PX = 130
BARE = {"border_line_color": None, "background_fill_color": None}


def new_figure(label: str, height: int, *, wheel: str = "both", **properties: Any) -> Figure:
    """Return an empty figure as wide as its column.

    The wheel zooms while Ctrl is held and otherwise scrolls the page. All figures begin at the same distance from the
    left, so that time axes are aligned.
    """
    from bokeh.models import WheelZoomTool
    from bokeh.plotting import figure

    made = figure(height=height, sizing_mode="stretch_width", tools=TOOLS, active_drag="pan", name=label, **properties)
    zoom = WheelZoomTool(dimensions=wheel, modifiers={"ctrl": True})
    made.add_tools(zoom)
    made.toolbar.logo = None
    made.toolbar.autohide = True
    made.toolbar.active_scroll = zoom
    made.min_border_left = LEFT_PX
    made.xgrid.grid_line_alpha = made.ygrid.grid_line_alpha = 0.6
    made.axis.minor_tick_line_color = None
    made.axis.axis_label_text_font_style = "normal"
    return made


def legend_of(entries: Sequence[tuple[str, str, str]]) -> UIElement:
    """Return a legend, to be placed above a figure, of entries (mark, colour, label)."""
    from bokeh.models import Div

    shown = (f'<span><b style="color: {colour}">{mark}</b> {escape(label)}</span>' for mark, colour, label in entries)
    return Div(text=f'<div class="legend">{"".join(shown)}</div>', sizing_mode="stretch_width")


def progress_figures(events: Sequence[Event], objective: Objective) -> list[UIElement]:
    """Return a legend and a figure of measured values over seconds of the search, of which there is at least one."""
    from bokeh.models import HoverTool

    what = f"{objective.name}, {objective.shown_unit}"
    made = new_figure("progress", HEIGHT_PX, x_axis_label="seconds of the search", y_axis_label=what)
    done = [event for event in events if event.score.failure is None]
    values = [objective.shown(event.score.value) for event in done]
    is_rate = objective.shown(2.0) < objective.shown(1.0)
    low, high = min(values), max(value for value in values if is_rate or value <= MOST_SHOWN * median(values))
    spread = high - low or low
    made.y_range.update(start=low - 0.1 * spread, end=high + 0.25 * spread)
    top = high + 0.15 * spread
    best = list(accumulate(values, max if is_rate else min))
    steps = [*(event.elapsed_s for event in done), max(event.elapsed_s for event in events)], [*best, best[-1]]
    made.step(*steps, mode="after", line_width=2.5, line_color=colour_of(1))
    dots = made.scatter(
        [event.elapsed_s for event in done],
        [min(value, top) for value in values],
        size=7,
        marker=["circle" if value <= high else "triangle" for value in values],
        fill_color=colour_of(0),
        line_color="white",
    )
    entries = [("▬", colour_of(1), "best so far"), ("●", colour_of(0), "measured placement")]
    entries += [("▲", colour_of(0), "slower than shown")] if max(values) > high else []
    dots.data_source.data["value"] = values
    made.add_tools(HoverTool(renderers=[dots], tooltips=[("after", "@x{0.0} s"), (what, "@value{0.0000}")]))
    return [legend_of(entries), made]


def timeline_figures(timeline: Timeline) -> list[UIElement]:
    """Return a legend of colours and a figure with a row for each device and link."""
    colours = type_colours(timeline)
    own_colours = {op_type: colour for op_type, colour in colours.items() if colour != OTHER_COLOUR}
    entries = [("■", colour, op_type) for op_type, colour in own_colours.items()]
    entries += [("■", OTHER_COLOUR, "other types")] if len(own_colours) < len(colours) else []
    entries += [("■", LINK_COLOUR, "transfer")] if timeline.used_links else []
    return [legend_of(entries), _timeline(timeline, colours)]


def _timeline(timeline: Timeline, colours: Mapping[str, str]) -> Any:
    """Return the figure of a timeline."""
    from bokeh.models import HoverTool

    height = len(timeline.device_names) + LINK_ROW * len(timeline.used_links)
    made = new_figure(
        "timeline",
        min(round(TIMELINE_EDGE_PX + TIMELINE_PX * height), MAX_TIMELINE_PX),
        wheel="width",
        title=f"Measured: {1e3 * timeline.end_s:.4g} ms",
        x_range=(-0.01e3 * timeline.end_s, 1.02e3 * timeline.end_s or 1.0),
        y_range=(height - 0.5, -0.5),
        x_axis_label="ms",
    )
    made.ygrid.visible = False
    types = [timeline.op_types[op] for op in timeline.ops.op.tolist()]
    names = [timeline.op_names[op] for op in timeline.ops.op.tolist()]
    source = _bars(op_bars(timeline), name=names, type=types, colour=[colours[op_type] for op_type in types])
    line = {"line_color": "white", "line_width": 0.5} if len(types) <= MAX_OUTLINED else {"line_color": None}
    ops = made.quad(source=source, fill_color="colour", **SIDES, **line)
    made.add_tools(HoverTool(renderers=[ops], tooltips=[("op", "@name"), ("type", "@type"), ("ms", "@ms{0.0000}")]))
    if timeline.used_links:
        names = [timeline.op_names[op] for op in timeline.transfers.op.tolist()]
        source = _bars(link_bars(timeline), name=names, size_bytes=timeline.transfers.size_bytes)
        sent = made.quad(source=source, fill_color=LINK_COLOUR, line_color=None, **SIDES)
        shown = [("output of", "@name"), ("ms", "@ms{0.0000}"), ("bytes", "@size_bytes{0,0}")]
        made.add_tools(HoverTool(renderers=[sent], tooltips=shown))
    rows = row_middles(timeline)
    made.yaxis.ticker = list(rows.values())
    made.yaxis.major_label_overrides = {place: shortened(name, MOST_LETTERS) for name, place in rows.items()}
    return made


SIDES = {side: side for side in ("left", "right", "top", "bottom")}


def _bars(bars: Bars, **more: Any) -> ColumnDataSource:
    """Return bars as a data source, in milliseconds, with further columns."""
    from bokeh.models import ColumnDataSource

    left, right = 1e3 * bars.start_s, 1e3 * bars.end_s
    sides = {"left": left, "right": right, "top": bars.top, "bottom": bars.bottom}
    return ColumnDataSource({**sides, "ms": right - left, **more})
