"""Gantt charts: a timeline as a PNG or SVG picture, devices and used links as rows."""

from __future__ import annotations

import importlib.util
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.placement import write_atomically
from hsdag.runtime.timeline.timeline import Timeline, lanes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
MAX_TYPES = 10
"""Entries of the legend; where there are more types, the last entry is all the others."""

COLOURS = ("#4477aa", "#ee8866", "#228833", "#ccbb44", "#aa3377", "#66ccee", "#997700", "#ee6677", "#44bb99", "#aaaa00")
OTHER_COLOUR, LINK_COLOUR = "#bbbbbb", "#7a7a7a"

WIDTH_IN, ROW_IN, EDGE_IN, MAX_HEIGHT_IN, DPI = 12.0, 0.5, 1.3, 40.0, 130
BAR, LANES_SHOWN = 0.8, 8
LINK_ROW = 0.5
"""Height of a link's row beside a device's, which is 1."""
MAX_OUTLINED = 600
"""Ops up to which bars have an outline: most of more would be narrower than it."""

LABEL_SHARE = 0.0062
"""Share of the chart's width that one character of a label takes."""

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


@dataclass(frozen=True)
class _Bar:
    left: float  # in units of the time axis, as is the width
    width: float
    bottom: float
    height: float
    colour: str

    def corners(self) -> list[tuple[float, float]]:
        right, top = self.left + self.width, self.bottom + self.height
        return [(self.left, self.bottom), (right, self.bottom), (right, top), (self.left, top)]


def check_picture(path: Path) -> None:
    """Raise OptionError unless a picture of this name can be drawn here, before any work is done for it."""
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(f"{path} is not a picture format; name a file that ends in .png or .svg")
    try:
        missing = importlib.util.find_spec("matplotlib") is None
    except ValueError:  # so says a module that is barred
        missing = True
    if missing:
        raise OptionError("pictures need matplotlib, which is not installed; run: pip install 'hsdag[pictures]'")


def write_gantt(timeline: Timeline, path: str | Path) -> None:
    """Draw a timeline and write it atomically; the same timeline gives the same bytes.

    Ops are coloured by type. Raises OptionError for a name that ends in neither .png nor .svg or without
    matplotlib, OutputError when the file cannot be written.
    """
    path = Path(path)
    check_picture(path)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = len(timeline.device_names) + LINK_ROW * len(timeline.used_links)
    height_in = min(EDGE_IN + ROW_IN * max(rows, 2), MAX_HEIGHT_IN)
    kind = path.suffix.lower().removeprefix(".")
    with mpl.rc_context({**mpl.rcParamsDefault, "svg.hashsalt": "hsdag", "path.simplify": False}):
        figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure.add_subplot(), timeline)
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, content.getvalue())


def _draw(axes: Axes, timeline: Timeline) -> None:
    from matplotlib.collections import PolyCollection

    scale_s, unit = _unit(timeline.end_s)
    links, num_devices = timeline.used_links, len(timeline.device_names)
    colours = type_colours(timeline)
    ops = _op_bars(timeline, colours, scale_s)
    sent = _transfer_bars(timeline, scale_s)
    # no snapping to pixels: bars narrower than one add up to the shade that says how busy a device is
    outline = 0.4 if len(ops) <= MAX_OUTLINED else 0.0
    corners, faces = [bar.corners() for bar in ops], [bar.colour for bar in ops]
    axes.add_collection(
        PolyCollection(corners, facecolors=faces, edgecolors="white", linewidths=outline, snap=bool(outline))
    )
    corners = [bar.corners() for bar in sent]
    axes.add_collection(PolyCollection(corners, facecolors=LINK_COLOUR, edgecolors=LINK_COLOUR, linewidths=0.3))
    end = timeline.end_s / scale_s or 1.0
    _write_labels(axes, timeline, ops, end)
    names = [*timeline.device_names, *(f"{timeline.device_names[s]} → {timeline.device_names[d]}" for s, d in links)]
    centres = [*range(num_devices), *(_link_centre(num_devices, j) for j in range(len(links)))]
    axes.set_yticks(centres, [_short(name) for name in names], fontsize=9)
    axes.set_ylim(num_devices - 0.5 + LINK_ROW * len(links), -0.5)
    axes.set_xlim(0.0, end)
    axes.set_xlabel(f"time in {unit}")
    axes.grid(axis="x", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    kind = "simulated" if timeline.simulated else "measured"
    axes.set_title(f"{_plain(timeline.name)} ({kind}), {timeline.end_s / scale_s:.4g} {unit}", loc="left")
    _write_legend(axes, colours, bool(links))


def type_colours(timeline: Timeline) -> dict[str, str]:
    """Colour by op type, the types that take longest first; types beyond ``MAX_TYPES`` share the last colour."""
    total_s: Counter[str] = Counter()
    for op, seconds in zip(timeline.ops.op.tolist(), (timeline.ops.end_s - timeline.ops.start_s).tolist(), strict=True):
        total_s[timeline.op_types[op]] += seconds
    types = sorted(total_s, key=lambda name: (-total_s[name], name))
    own = len(types) if len(types) <= MAX_TYPES else MAX_TYPES - 1
    return {name: COLOURS[i] if i < own else OTHER_COLOUR for i, name in enumerate(types)}


def _op_bars(timeline: Timeline, colours: dict[str, str], scale_s: float) -> list[_Bar]:
    ops = timeline.ops
    left, width = ops.start_s / scale_s, (ops.end_s - ops.start_s) / scale_s
    rows = zip(ops.op.tolist(), ops.device.tolist(), left.tolist(), width.tolist(), strict=True)
    return [_Bar(x, w, row - BAR / 2, BAR, colours[timeline.op_types[op]]) for op, row, x, w in rows]


def _transfer_bars(timeline: Timeline, scale_s: float) -> list[_Bar]:
    """Transfers of a pair that overlap share the height of its row, ``LANES_SHOWN`` of them at most."""
    sent = timeline.transfers
    left, width = sent.start_s / scale_s, (sent.end_s - sent.start_s) / scale_s
    bars = []
    for row, (src, dst) in enumerate(timeline.used_links):
        chosen = np.flatnonzero((sent.src_device == src) & (sent.dst_device == dst))
        lane = lanes(sent.start_s[chosen], sent.end_s[chosen]) % LANES_SHOWN
        height = LINK_ROW * BAR / (int(lane.max()) + 1)
        top = _link_centre(len(timeline.device_names), row) - LINK_ROW * BAR / 2
        for i, place in zip(chosen.tolist(), lane.tolist(), strict=True):
            bars.append(_Bar(float(left[i]), float(width[i]), top + place * height, 0.9 * height, LINK_COLOUR))
    return bars


def _link_centre(num_devices: int, row: int) -> float:
    return num_devices - 0.5 + LINK_ROW * (row + 0.5)


def _write_labels(axes: Axes, timeline: Timeline, bars: list[_Bar], end: float) -> None:
    """Names inside the bars that are wide enough."""
    for op, bar in zip(timeline.ops.op.tolist(), bars, strict=True):
        name = timeline.op_names[op]
        if (len(name) + 1) * LABEL_SHARE * end < bar.width:
            middle = (bar.left + bar.width / 2, bar.bottom + bar.height / 2)
            axes.text(*middle, _plain(name), ha="center", va="center", fontsize=8, clip_on=True)


def _write_legend(axes: Axes, colours: dict[str, str], has_links: bool) -> None:
    from matplotlib.patches import Patch

    own = [(_short(name or "op"), colour) for name, colour in colours.items() if colour != OTHER_COLOUR]
    others = len(colours) - len(own)
    entries = [*own, *([(f"{others} other types", OTHER_COLOUR)] if others else [])]
    entries += [("transfer", LINK_COLOUR)] if has_links else []
    handles = [Patch(facecolor=colour, label=label) for label, colour in entries]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)


def _unit(end_s: float) -> tuple[float, str]:
    """The largest unit in which the end is at least 1, in seconds, and its name."""
    return next((unit for unit in _UNITS if end_s >= unit[0]), _UNITS[0] if end_s == 0 else _UNITS[-1])


def _short(name: str, length: int = 32) -> str:
    return _plain(name if len(name) <= length else f"{name[: length - 1]}…")


def _plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")
