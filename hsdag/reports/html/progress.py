"""The progress of a search: what was measured when, the best so far, and which method had its turn."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from hsdag.reports.content import Trial, Turn, best_so_far
from hsdag.reports.html.theme import lay_legend, new_figure
from hsdag.reports.looks import colour_of, hatch_of

if TYPE_CHECKING:
    from bokeh.models import UIElement

HEIGHT_PX, ROW_PX, EDGE_PX = 300, 24, 70

MOST_SHOWN = 3.0
"""Times the median that the axis of values reaches at most; what is slower stands at its upper end."""


def progress_figures(trials: Sequence[Trial], turns: Sequence[Turn], value_name: str, unit: str) -> list[UIElement]:
    """Measured values over seconds of the search, and below them the turns of methods on simulated values."""
    from bokeh.models import Range1d

    if not trials and not turns:
        return []
    end_s = max([*(trial.elapsed_s for trial in trials), *(turn.ended_s for turn in turns)]) or 1.0
    shared = Range1d(-0.01 * end_s, 1.02 * end_s)
    made = [_measured(trials, value_name, unit, shared)] if trials else []
    return [*made, *([_turns(turns, unit, shared)] if turns else [])]


def _measured(trials: Sequence[Trial], value_name: str, unit: str, x_range: Any) -> UIElement:
    from bokeh.models import HoverTool

    what, seconds = f"{value_name}, {unit}", "seconds of the search"
    made = new_figure("progress", HEIGHT_PX, x_range=x_range, x_axis_label=seconds, y_axis_label=what)
    done = [trial for trial in trials if trial.value is not None]
    when_s, best = best_so_far(trials)
    top = 1.0
    if done:
        values = [(trial.value or 0.0) for trial in done]
        low, high = min(values), max(value for value in values if value <= MOST_SHOWN * median(values))
        made.y_range.update(start=low - 0.1 * (high - low or low), end=high + 0.25 * (high - low or low))
        top = high + 0.15 * (high - low or low)
        last = max(trial.elapsed_s for trial in trials)
        steps = [*when_s, last], [*best, best[-1]]
        made.step(*steps, mode="after", line_width=2.5, line_color=colour_of(1), legend_label="best so far")
        dots = made.scatter(
            [trial.elapsed_s for trial in done],
            [min(value, top) for value in values],
            size=7,
            marker=["circle" if value <= high else "triangle" for value in values],
            fill_color=colour_of(0),
            line_color="white",
            legend_label="measured placement" if max(values) <= high else "measured, ▲: slower than shown",
        )
        dots.data_source.data["value"] = values
        made.add_tools(HoverTool(renderers=[dots], tooltips=[("after", "@x{0.0} s"), (what, "@value{0.0000}")]))
    failed = [trial for trial in trials if trial.value is None]
    if failed:
        places = [trial.elapsed_s for trial in failed], [top] * len(failed)
        crosses = made.scatter(
            *places, marker="x", size=10, line_color=colour_of(4), line_width=2, legend_label="failed"
        )
        crosses.data_source.data["why"] = [trial.failure or "" for trial in failed]
        made.add_tools(HoverTool(renderers=[crosses], tooltips=[("after", "@x{0.0} s"), ("failed", "@why")]))
    lay_legend(made)
    return made


def _turns(turns: Sequence[Turn], unit: str, x_range: Any) -> UIElement:
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
                "values": [f"{_shown(turn.before, unit)} → {_shown(turn.after, unit)}" for turn in own],
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


def _shown(value: float | None, unit: str) -> str:
    return "nothing" if value is None else f"{value:.4g} {unit}"
