"""The figures of a report as PNG and SVG, drawn by matplotlib from the same values, so that no browser is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hsdag.reports.content import Compared, PlacedGraph, ReportContent, Trial, Turn, best_so_far
from hsdag.reports.gantt import write_gantt
from hsdag.reports.looks import KNOWN_SIZE, OP_SIZE, colour_of, hatch_of, shortened
from hsdag.reports.picture import SUFFIXES, check_picture, write_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, ROW_IN, EDGE_IN = 12.0, 0.34, 1.1
MOST_HEIGHT_IN = 24.0


def write_pictures(content: ReportContent, folder: Path) -> list[Path]:
    """Write every figure that the report has, as .svg and .png. Raises OptionError and OutputError."""
    check_picture(folder / "figure.png")
    drawn: dict[str, Callable[[Path], None]] = {}
    if content.compared:
        drawn["comparison"] = lambda path: _write_comparison(content, path)
    if content.placed is not None:
        placed = content.placed
        drawn["graph"] = lambda path: _write_graph(placed, content.name, path)
    for timeline in content.timelines:
        kind = "simulated" if timeline.simulated else "measured"
        drawn[f"timeline-{kind}"] = lambda path, shown=timeline: write_gantt(shown, path)  # type: ignore[misc]
    if content.trials or content.turns:
        drawn["search"] = lambda path: _write_search(content, path)
    files = []
    for name, write in drawn.items():
        for suffix in SUFFIXES:
            files.append(folder / f"{name}{suffix}")
            write(files[-1])
    return files


def _write_comparison(content: ReportContent, path: Path) -> None:
    size = WIDTH_IN, min(EDGE_IN + ROW_IN * len(content.compared), MOST_HEIGHT_IN)
    versus = content.versus or "the answer"
    write_picture(path, size, lambda figure: _draw_comparison(figure.add_subplot(), content.compared, versus))


def _draw_comparison(axes: Axes, compared: Sequence[Compared], versus: str) -> None:
    axes.axvline(1.0, color="#8c8c8c", linestyle="--", linewidth=1.0)
    for row, each in enumerate(compared):
        colour = colour_of(1 if each.is_answer else 0)
        if each.low is not None and each.high is not None:
            axes.plot([each.low, each.high], [row, row], color=colour, linewidth=3)
        axes.plot([each.ratio], [row], marker="D" if each.is_answer else "o", color=colour, markeredgecolor="white")
    axes.set_yticks(range(len(compared)), [_plain(each.name) for each in compared])
    axes.set_ylim(len(compared) - 0.5, -0.5)
    axes.set_xlabel(_plain(f"times as fast as {versus}, measured, with 95% intervals"))
    _tidy(axes)


def _write_graph(placed: PlacedGraph, name: str, path: Path) -> None:
    x, y = placed.drawing.x, placed.drawing.y
    height_in = 1.0 + WIDTH_IN * float(np.ptp(y) + 3) / float(np.ptp(x) + 3) * 1.5
    size = WIDTH_IN, min(max(height_in, 3.0), MOST_HEIGHT_IN)
    write_picture(path, size, lambda figure: _draw_graph(figure.add_subplot(), placed, name))


def _draw_graph(axes: Axes, placed: PlacedGraph, name: str) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Patch, Rectangle

    drawing, crosses = placed.drawing, placed.crosses
    axes.plot(*drawing.routes(~crosses), color="#8c8c8c", linewidth=0.4)
    axes.plot(*drawing.routes(crosses), color="#d4572f", linewidth=1.2)
    sizes = np.where(drawing.is_known[:, None], KNOWN_SIZE, OP_SIZE)
    handles = []
    for d in np.unique(placed.device).tolist():
        ops = np.flatnonzero(placed.device == d).tolist()
        corners = [(drawing.x[v] - sizes[v, 0] / 2, drawing.y[v] - sizes[v, 1] / 2) for v in ops]
        boxes = [Rectangle(corner, *sizes[v]) for corner, v in zip(corners, ops, strict=True)]
        colour, hatch = colour_of(d), 3 * hatch_of(d).strip() or None
        look = PatchCollection(boxes, facecolor=colour, edgecolor="#333333", linewidth=0, hatch=hatch, zorder=2)
        axes.add_collection(look)
        label = _plain(f"{placed.name_of(d)}: {len(ops)} ops")
        handles.append(Patch(facecolor=colour, edgecolor="#333333", linewidth=0, hatch=hatch, label=label))
    axes.set_ylim(drawing.y.max() + 1.5, drawing.y.min() - 1.5)
    axes.set_xlim(drawing.x.min() - 1.5, drawing.x.max() + 1.5)
    axes.set_axis_off()
    axes.set_title(_plain(name), loc="left")
    axes.legend(handles=handles, loc="upper right", frameon=False, fontsize=8, bbox_to_anchor=(1.0, 1.08), ncols=4)


def _write_search(content: ReportContent, path: Path) -> None:
    methods = len({turn.method for turn in content.turns})
    size = WIDTH_IN, 4.0 + (EDGE_IN + ROW_IN * methods if methods else 0.0)
    write_picture(path, size, lambda figure: _draw_search(figure, content))


def _draw_search(figure: Figure, content: ReportContent) -> None:
    if not content.turns:
        alone = figure.add_subplot()
        _draw_trials(alone, content.trials, f"{content.value_name}, {content.unit}")
        alone.set_xlabel("seconds of the search")
        return
    methods = len({turn.method for turn in content.turns})
    ratios = (4.0, EDGE_IN + ROW_IN * methods)
    trials, turns = figure.subplots(2, 1, sharex=True, height_ratios=ratios)
    turns.set_xlabel("seconds of the search")
    _draw_trials(trials, content.trials, f"{content.value_name}, {content.unit}")
    _draw_turns(turns, content.turns)


def _draw_trials(axes: Axes, trials: Sequence[Trial], what: str) -> None:
    done = [(trial.elapsed_s, trial.value) for trial in trials if trial.value is not None]
    when_s, best = best_so_far(trials)
    if done:
        last = max(trial.elapsed_s for trial in trials)
        steps = [*when_s, last], [*best, best[-1]]
        axes.step(*steps, where="post", color=colour_of(1), linewidth=2, label="best so far")
        axes.plot(
            *zip(*done, strict=True), "o", color=colour_of(0), markeredgecolor="white", label="measured placement"
        )
    failed = [trial.elapsed_s for trial in trials if trial.value is None]
    if failed:
        top = max((value for _, value in done), default=1.0)
        axes.plot(failed, [top] * len(failed), "x", color=colour_of(4), label="failed")
    axes.set_ylabel(what)
    if trials:
        axes.legend(frameon=False, fontsize=8)
    _tidy(axes)


def _draw_turns(axes: Axes, turns: Sequence[Turn]) -> None:
    methods = list(dict.fromkeys(turn.method for turn in turns))
    for turn in turns:
        gained = turn.has_gained
        axes.barh(
            methods.index(turn.method),
            turn.ended_s - turn.began_s,
            left=turn.began_s,
            height=0.7,
            facecolor=colour_of(2) if gained else "white",
            edgecolor=colour_of(2),
            hatch=None if gained else "///",
        )
    axes.set_yticks(range(len(methods)), methods)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.set_title("Turns of the methods, on simulated values; hatched: none better found", loc="left", fontsize=9)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.grid(axis="x", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics, cut where it would leave no room for the figure."""
    return shortened(text).replace("$", r"\$")
