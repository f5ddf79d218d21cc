"""How Bokeh's figures look and are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure

TOOLS = "pan,box_zoom,zoom_in,zoom_out,reset,save"
LEFT_PX = 130
BARE = {"border_line_color": None, "background_fill_color": None}


def new_figure(label: str, height: int, *, wheel: Sequence[str] = ("width", "height"), **properties: Any) -> Figure:
    """An empty figure as wide as its column; the wheel zooms while Ctrl is held, and scrolls the page otherwise.

    Figures begin at the same place from the left, so that time axes lie below each other.
    """
    from bokeh.models import WheelZoomTool
    from bokeh.plotting import figure

    made = figure(height=height, sizing_mode="stretch_width", tools=TOOLS, active_drag="pan", name=label, **properties)
    zoom = WheelZoomTool(dimensions="both" if len(wheel) == 2 else wheel[0], modifiers={"ctrl": True})
    made.add_tools(zoom)
    made.toolbar.logo = None
    made.toolbar.autohide = True
    made.toolbar.active_scroll = zoom
    made.min_border_left = LEFT_PX
    made.xgrid.grid_line_alpha = made.ygrid.grid_line_alpha = 0.6
    made.axis.minor_tick_line_color = None
    made.axis.axis_label_text_font_style = "normal"
    return made


def lay_legend(made: Figure) -> None:
    """Put a figure's legend above it, in one line."""
    legend = made.legend[0]
    legend.update(orientation="horizontal", padding=2, margin=2, location="left", **BARE)
    made.add_layout(legend, "above")
