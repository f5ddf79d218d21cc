"""Timelines of devices and links, the simulated one above the measured one, over one time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hsdag.drawing.gantt import LINK_COLOUR, LINK_ROW, MAX_OUTLINED, OTHER_COLOUR, type_colours
from hsdag.reporting.html.figures import lay_legend, new_figure, shortened
from hsdag.runtime.timeline.timeline import Timeline

if TYPE_CHECKING:
    from bokeh.models import UIElement

ROW_PX, EDGE_PX, MAX_HEIGHT_PX = 46, 86, 420
BAR = 0.8


def timeline_figures(timelines: Sequence[Timeline]) -> list[UIElement]:
    """A figure for each timeline; zooming into one zooms into all."""
    from bokeh.models import Range1d

    if not timelines:
        return []
    end_ms = 1e3 * max(timeline.end_s for timeline in timelines) or 1.0
    shared = Range1d(-0.01 * end_ms, 1.02 * end_ms)
    colours = type_colours(timelines[-1])
    figures = [_figure(timeline, shared, colours) for timeline in timelines]
    lay_legend(figures[0])
    for each in figures[1:]:
        each.legend.visible = False
    return figures


def _figure(timeline: Timeline, x_range: Any, colours: Mapping[str, str]) -> Any:
    from bokeh.models import HoverTool

    links, num_devices = timeline.used_links, len(timeline.device_names)
    rows = num_devices + LINK_ROW * len(links)
    kind = "simulated" if timeline.simulated else "measured"
    made = new_figure(
        f"timeline {kind}",
        min(round(EDGE_PX + ROW_PX * rows), MAX_HEIGHT_PX),
        wheel=("width",),
        title=f"{kind.capitalize()}: {1e3 * timeline.end_s:.4g} ms",
        x_range=x_range,
        y_range=(rows - 0.5, -0.5),
        x_axis_label="ms",
    )
    made.ygrid.visible = False
    bars = _op_bars(timeline, colours)
    ops = made.quad(source=bars, fill_color="colour", legend_group="key", **_sides(len(timeline.ops.op)))
    made.add_tools(HoverTool(renderers=[ops], tooltips=[("op", "@name"), ("type", "@type"), ("ms", "@ms{0.0000}")]))
    centres = [num_devices - 0.5 + LINK_ROW * (row + 0.5) for row in range(len(links))]
    if links:
        sent = made.quad(source=_link_bars(timeline, centres), fill_color=LINK_COLOUR, **_sides(0))
        shown = [("output of", "@name"), ("ms", "@ms{0.0000}"), ("bytes", "@size_bytes{0,0}")]
        made.add_tools(HoverTool(renderers=[sent], tooltips=shown))
    names = [*timeline.device_names, *(f"{timeline.device_names[s]} → {timeline.device_names[d]}" for s, d in links)]
    places = [*range(num_devices), *centres]
    made.yaxis.ticker = places
    made.yaxis.major_label_overrides = dict(zip(places, map(shortened, names), strict=True))
    return made


def _sides(num_bars: int) -> dict[str, Any]:
    line = {"line_color": "white", "line_width": 0.5} if 0 < num_bars <= MAX_OUTLINED else {"line_color": None}
    return {"left": "left", "right": "right", "top": "top", "bottom": "bottom", **line}


def _op_bars(timeline: Timeline, colours: Mapping[str, str]) -> Any:
    from bokeh.models import ColumnDataSource

    ops = timeline.ops
    types = [timeline.op_types[op] for op in ops.op.tolist()]
    return ColumnDataSource(
        {
            "left": 1e3 * ops.start_s,
            "right": 1e3 * ops.end_s,
            "top": ops.device - BAR / 2,
            "bottom": ops.device + BAR / 2,
            "ms": 1e3 * (ops.end_s - ops.start_s),
            "name": [timeline.op_names[op] for op in ops.op.tolist()],
            "type": types,
            "colour": [colours.get(each, OTHER_COLOUR) for each in types],
            "key": [each if colours.get(each, OTHER_COLOUR) != OTHER_COLOUR else "other types" for each in types],
        }
    )


def _link_bars(timeline: Timeline, centres: Sequence[float]) -> Any:
    from bokeh.models import ColumnDataSource

    sent, place = timeline.transfers, dict(zip(timeline.used_links, centres, strict=True))
    centre = np.array([place[pair] for pair in zip(sent.src_device.tolist(), sent.dst_device.tolist(), strict=True)])
    return ColumnDataSource(
        {
            "left": 1e3 * sent.start_s,
            "right": 1e3 * sent.end_s,
            "top": centre - LINK_ROW * BAR / 2,
            "bottom": centre + LINK_ROW * BAR / 2,
            "ms": 1e3 * (sent.end_s - sent.start_s),
            "name": [timeline.op_names[op] for op in sent.op.tolist()],
            "size_bytes": sent.size_bytes,
        }
    )
