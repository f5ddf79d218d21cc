"""How Bokeh's figures look, and those of the comparison and of the progress of a search.

Colours are such that colour-blind readers tell apart, with a hatch beside every colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Any

from hsdag.drawing.gantt import COLOURS
from hsdag.placing.result import Member
from hsdag.reporting.html.content import ReportContent
from hsdag.runtime.objectives import Objective
from hsdag.scoring.recording import Event

if TYPE_CHECKING:
    from bokeh.models import UIElement
    from bokeh.plotting import figure as Figure

HATCHES = (" ", "/", ".", "x", "-", "\\", "o", "|", "+", "*")
"""Of devices, in order; the colours are those of Gantt charts."""

UNPLACED_COLOUR = "#9a9a9a"

OP_SIZE, KNOWN_SIZE = (0.84, 0.7), (0.36, 0.22)
"""Width and height of an op, and of one that depends on no data, in layers."""


MOST_LETTERS = 48


def shortened(text: str) -> str:
    """A name as the label of a row, cut where it would leave no room for the figure."""
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"


def colour_of(index: int) -> str:
    """The colour of a device, a group or a method."""
    return COLOURS[index % len(COLOURS)] if index >= 0 else UNPLACED_COLOUR


def hatch_of(index: int) -> str:
    """The hatch of a device."""
    return HATCHES[index % len(HATCHES)] if index >= 0 else " "


HEIGHT_PX, ROW_PX, EDGE_PX = 300, 24, 70
COMPARED_PX = 30

MOST_SHOWN = 3.0
"""Times the median that the axis of values reaches at most; what is slower stands at its upper end."""

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


def comparison_figure(content: ReportContent) -> UIElement:
    """Ratios with their 95% intervals, the fastest on top; the answer is a diamond, others are circles."""
    from bokeh.models import ColumnDataSource, Span

    compared, versus = content.rows, content.versus
    rows = list(range(len(compared)))
    made = new_figure(
        "comparison",
        EDGE_PX + COMPARED_PX * len(rows),
        wheel=("width",),
        y_range=(len(rows) - 0.5, -0.5),
        x_axis_label=f"times as fast as {versus}" if versus else "times as fast as the answer",
    )
    made.ygrid.visible = False
    made.yaxis.ticker = rows
    made.yaxis.major_label_overrides = {row: shortened(each.name) for row, each in enumerate(compared)}
    made.add_layout(Span(location=1.0, dimension="height", line_dash="dashed", line_color="#8c8c8c"))
    for is_answer, marker, size, colour in ((False, "circle", 9, colour_of(0)), (True, "diamond", 17, colour_of(1))):
        chosen = [(row, each) for row, each in enumerate(compared) if each.is_answer == is_answer]
        ends = [content.interval_of(each) or (each.ratio, each.ratio) for _, each in chosen]
        source = ColumnDataSource(
            {
                "y": [row for row, _ in chosen],
                "ratio": [each.ratio for _, each in chosen],
                "low": [low for low, _ in ends],
                "high": [high for _, high in ends],
            }
        )
        made.segment("low", "y", "high", "y", source=source, line_color=colour, line_width=3)
        made.scatter("ratio", "y", source=source, marker=marker, size=size, fill_color=colour, line_color="white")
    return made


def progress_figures(events: Sequence[Event], turns: Sequence[Member], objective: Objective) -> list[UIElement]:
    """Measured values over seconds of the search, and below them the turns of methods on simulated values."""
    from bokeh.models import Range1d

    if not events and not turns:
        return []
    end_s = max([*(event.elapsed_s for event in events), *(turn.ended_s for turn in turns)]) or 1.0
    shared = Range1d(-0.01 * end_s, 1.02 * end_s)
    made = [_measured(events, objective, shared)] if events else []
    return [*made, *([_turns(turns, objective, shared)] if turns else [])]


def _measured(events: Sequence[Event], objective: Objective, x_range: Any) -> UIElement:
    from bokeh.models import HoverTool

    what, seconds = f"{objective.name}, {objective.shown_unit}", "seconds of the search"
    made = new_figure("progress", HEIGHT_PX, x_range=x_range, x_axis_label=seconds, y_axis_label=what)
    done = [event for event in events if event.score.failure is None]
    top = 1.0
    if done:
        values = [objective.shown_factor * event.score.value for event in done]
        low, high = min(values), max(value for value in values if value <= MOST_SHOWN * median(values))
        made.y_range.update(start=low - 0.1 * (high - low or low), end=high + 0.25 * (high - low or low))
        top = high + 0.15 * (high - low or low)
        best = list(accumulate(values, min))
        steps = [*(event.elapsed_s for event in done), max(event.elapsed_s for event in events)], [*best, best[-1]]
        made.step(*steps, mode="after", line_width=2.5, line_color=colour_of(1), legend_label="best so far")
        dots = made.scatter(
            [event.elapsed_s for event in done],
            [min(value, top) for value in values],
            size=7,
            marker=["circle" if value <= high else "triangle" for value in values],
            fill_color=colour_of(0),
            line_color="white",
            legend_label="measured placement" if max(values) <= high else "measured, ▲: slower than shown",
        )
        dots.data_source.data["value"] = values
        made.add_tools(HoverTool(renderers=[dots], tooltips=[("after", "@x{0.0} s"), (what, "@value{0.0000}")]))
    failed = [event for event in events if event.score.failure is not None]
    if failed:
        places = [event.elapsed_s for event in failed], [top] * len(failed)
        crosses = made.scatter(
            *places, marker="x", size=10, line_color=colour_of(4), line_width=2, legend_label="failed"
        )
        crosses.data_source.data["why"] = [event.score.failure or "" for event in failed]
        made.add_tools(HoverTool(renderers=[crosses], tooltips=[("after", "@x{0.0} s"), ("failed", "@why")]))
    lay_legend(made)
    return made


def _turns(turns: Sequence[Member], objective: Objective, x_range: Any) -> UIElement:
    """A row for each method; a turn that found a better plan is filled, another one is hatched and pale."""
    from bokeh.models import ColumnDataSource, HoverTool

    methods = list(dict.fromkeys(turn.method for turn in turns))
    made = new_figure(
        "methods",
        EDGE_PX + ROW_PX * len(methods),
        wheel=("width",),
        x_range=x_range,
        y_range=(len(methods) - 0.5, -0.5),
        x_axis_label="seconds of the search",
        title="Turns of the methods, on simulated values",
    )
    made.ygrid.visible = False
    made.yaxis.ticker = list(range(len(methods)))
    made.yaxis.major_label_overrides = dict(enumerate(methods))
    shown = [("method", "@method"), ("seconds", "@span"), ("best, simulated", "@values"), ("ending", "@failure")]
    for gained, label in ((True, "found a better plan"), (False, "found none")):
        own = [turn for turn in turns if turn.has_gained == gained]
        if not own:
            continue
        source = ColumnDataSource(
            {
                "left": [turn.began_s for turn in own],
                "right": [turn.ended_s for turn in own],
                "y": [methods.index(turn.method) for turn in own],
                "method": [turn.method for turn in own],
                "span": [f"{turn.began_s:.1f} to {turn.ended_s:.1f}" for turn in own],
                "values": [f"{_shown(turn.before, objective)} → {_shown(turn.after, objective)}" for turn in own],
                "failure": [turn.failure or "none" for turn in own],
            }
        )
        look = {"fill_alpha": 0.9 if gained else 0.25, "hatch_pattern": " " if gained else hatch_of(1)}
        bars = made.hbar(
            "y",
            left="left",
            right="right",
            height=0.7,
            source=source,
            fill_color=colour_of(2),
            line_color=colour_of(2),
            hatch_alpha=0.3,
            legend_label=label,
            **look,
        )
        made.add_tools(HoverTool(renderers=[bars], tooltips=shown))
    lay_legend(made)
    return made


def _shown(value: float | None, objective: Objective) -> str:
    return "nothing" if value is None else objective.text(value)
