"""Gantt charts: a timeline as a PNG or SVG picture, devices and used links as rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hsdag.drawing.picture import write_picture
from hsdag.ir.graph.computation_graph import BoolArray
from hsdag.runtime.timeline.timeline import OpIntervals, Timeline, TransferIntervals, lanes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_TYPES = 10
"""Entries of the legend; where there are more types, the last entry is all the others."""

COLOURS = ("#4477aa", "#ee8866", "#228833", "#ccbb44", "#aa3377", "#66ccee", "#997700", "#ee6677", "#44bb99", "#aaaa00")
OTHER_COLOUR, LINK_COLOUR = "#bbbbbb", "#7a7a7a"

WIDTH_IN, ROW_IN, EDGE_IN, MAX_HEIGHT_IN = 12.0, 0.5, 1.3, 40.0
BAR, LANES_SHOWN = 0.8, 8
LINK_ROW = 0.5
"""Height of a link's row beside a device's, which is 1."""
MAX_OUTLINED = 600
"""Ops up to which bars have an outline: most of more would be narrower than it."""

LABEL_SHARE = 0.0062
"""Share of the chart's width that one character of a label takes."""

# the largest unit in which the end is at least 1
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def write_gantt(timeline: Timeline, path: str | Path) -> None:
    """Draw a timeline, ops coloured by type; the same timeline gives the same bytes.

    Raises OptionError and OutputError as ``write_picture`` does.
    """
    rows = len(timeline.device_names) + LINK_ROW * len(timeline.used_links)
    height_in = min(EDGE_IN + ROW_IN * max(rows, 2), MAX_HEIGHT_IN)
    write_picture(path, (WIDTH_IN, height_in), lambda figure: _draw(figure.add_subplot(), timeline))


def _draw(axes: Axes, timeline: Timeline) -> None:
    scale_s, unit = next((each for each in _UNITS if timeline.end_s >= each[0]), _UNITS[-1 if timeline.end_s else 0])
    links, num_devices = timeline.used_links, len(timeline.device_names)
    colours = type_colours(timeline)
    ops = timeline.ops
    # no snapping to pixels: bars narrower than one add up to the shade that says how busy a device is
    outline = 0.4 if len(ops.op) <= MAX_OUTLINED else 0.0
    for d in np.unique(ops.device).tolist():
        mine = ops.device == d
        faces = [colours[timeline.op_types[op]] for op in ops.op[mine].tolist()]
        stretches = _stretches(ops, mine, scale_s)
        axes.broken_barh(
            stretches, (d - BAR / 2, BAR), facecolors=faces, edgecolors="white", linewidths=outline, snap=bool(outline)
        )
    centres = [num_devices - 0.5 + LINK_ROW * (row + 0.5) for row in range(len(links))]
    _draw_transfers(axes, timeline, centres, scale_s)
    end = timeline.end_s / scale_s or 1.0
    _write_labels(axes, timeline, scale_s, end)
    names = [*timeline.device_names, *(f"{timeline.device_names[s]} → {timeline.device_names[d]}" for s, d in links)]
    axes.set_yticks([*range(num_devices), *centres], [_short(name) for name in names], fontsize=9)
    axes.set_ylim(num_devices - 0.5 + LINK_ROW * len(links), -0.5)
    axes.set_xlim(0.0, end)
    axes.set_xlabel(f"time in {unit}")
    axes.grid(axis="x", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    kind = "simulated" if timeline.simulated else "measured"
    axes.set_title(f"{_plain(timeline.name)} ({kind}), {timeline.end_s / scale_s:.4g} {unit}", loc="left")
    _write_legend(axes, colours, bool(links))


def _stretches(
    intervals: OpIntervals | TransferIntervals, chosen: BoolArray, scale_s: float
) -> list[tuple[float, float]]:
    """Start and length of the chosen intervals, in units of the time axis."""
    start, end = intervals.start_s[chosen] / scale_s, intervals.end_s[chosen] / scale_s
    return list(zip(start.tolist(), (end - start).tolist(), strict=True))


def _draw_transfers(axes: Axes, timeline: Timeline, centres: list[float], scale_s: float) -> None:
    """Transfers of a pair that overlap share the height of its row, ``LANES_SHOWN`` of them at most."""
    sent = timeline.transfers
    for centre, (src, dst) in zip(centres, timeline.used_links, strict=True):
        chosen = (sent.src_device == src) & (sent.dst_device == dst)
        lane = np.full(len(chosen), -1)
        lane[chosen] = lanes(sent.start_s[chosen], sent.end_s[chosen]) % LANES_SHOWN
        height = LINK_ROW * BAR / (int(lane.max()) + 1)
        for place in range(int(lane.max()) + 1):
            extent = (centre - LINK_ROW * BAR / 2 + place * height, 0.9 * height)
            stretches = _stretches(sent, lane == place, scale_s)
            axes.broken_barh(stretches, extent, facecolors=LINK_COLOUR, edgecolors=LINK_COLOUR, linewidths=0.3)


def type_colours(timeline: Timeline) -> dict[str, str]:
    """Colour by op type, the types that take longest first; types beyond ``MAX_TYPES`` share the last colour."""
    total_s: Counter[str] = Counter()
    for op, seconds in zip(timeline.ops.op.tolist(), (timeline.ops.end_s - timeline.ops.start_s).tolist(), strict=True):
        total_s[timeline.op_types[op]] += seconds
    types = sorted(total_s, key=lambda name: (-total_s[name], name))
    own = len(types) if len(types) <= MAX_TYPES else MAX_TYPES - 1
    return {name: COLOURS[i] if i < own else OTHER_COLOUR for i, name in enumerate(types)}


def _write_labels(axes: Axes, timeline: Timeline, scale_s: float, end: float) -> None:
    """Names inside the bars that are wide enough."""
    ops = timeline.ops
    for op, device, start_s, end_s in zip(ops.op.tolist(), ops.device.tolist(), ops.start_s, ops.end_s, strict=True):
        name = timeline.op_names[op]
        if (len(name) + 1) * LABEL_SHARE * end < (end_s - start_s) / scale_s:
            middle = (start_s + end_s) / 2 / scale_s
            axes.text(middle, device, _plain(name), ha="center", va="center", fontsize=8, clip_on=True)


def _write_legend(axes: Axes, colours: dict[str, str], has_links: bool) -> None:
    from matplotlib.patches import Patch

    own = [(_short(name or "op"), colour) for name, colour in colours.items() if colour != OTHER_COLOUR]
    others = len(colours) - len(own)
    entries = [*own, *([(f"{others} other types", OTHER_COLOUR)] if others else [])]
    entries += [("transfer", LINK_COLOUR)] if has_links else []
    handles = [Patch(facecolor=colour, label=label) for label, colour in entries]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)


def _short(name: str, length: int = 32) -> str:
    return _plain(name if len(name) <= length else f"{name[: length - 1]}…")


def _plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")
