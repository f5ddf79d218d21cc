"""How figures look: colours that colour-blind readers tell apart, and a hatch beside every colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hsdag.reports.gantt import COLOURS

if TYPE_CHECKING:
    from bokeh.plotting import figure as Figure

HATCHES = (" ", "/", ".", "x", "-", "\\", "o", "|", "+", "*")
"""Of devices, in order; the colours are those of Gantt charts."""

UNPLACED_COLOUR = "#9a9a9a"
TOOLS = "pan,box_zoom,zoom_in,zoom_out,reset,save"
LEFT_PX = 130
BARE = {"border_line_color": None, "background_fill_color": None}


def colour_of(index: int) -> str:
    """The colour of a device, a group or a method."""
    return COLOURS[index % len(COLOURS)] if index >= 0 else UNPLACED_COLOUR


def hatch_of(index: int) -> str:
    """The hatch of a device."""
    return HATCHES[index % len(HATCHES)] if index >= 0 else " "


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
