"""Pictures of timelines and of learning as PNG or SVG files, by matplotlib, which is an extra; and tables in HTML.

Whatever is in a cell of a table stays text. Legend: I bars.
"""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hsdag.ir.errors import OptionError
from hsdag.ir.files import write_atomically
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.timeline import Timeline, lanes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
DPI = 130
COLOURS = ("#4477aa", "#ee8866", "#228833", "#ccbb44", "#aa3377", "#66ccee", "#997700", "#ee6677", "#44bb99", "#aaaa00")
"""That colour-blind readers tell apart."""
OTHER_COLOUR, LINK_COLOUR = "#bbbbbb", "#7a7a7a"
MAX_TYPES = 10
"""Entries of the legend; where there are more types, the last entry is all the others."""

GANTT_IN, ROW_IN, EDGE_IN, MAX_HEIGHT_IN = 12.0, 0.5, 1.3, 40.0
BAR, LINK_ROW, LANES_SHOWN = 0.8, 0.5, 8
"""Height of a bar in its row; of a link's row beside a device's, which is 1; transfers that may share a row."""
MAX_OUTLINED = 600
"""Bars up to which they have an outline: most of more would be narrower than it."""
LABEL_SHARE = 0.0062
"""Share of the chart's width that one character of a label takes."""
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def is_installed(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


def check_picture(path: Path) -> None:
    """Raise OptionError unless a picture of this name can be drawn here, before any work is done for it."""
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(f"{path} is not a picture format; name a file that ends in .png or .svg")
    if not is_installed("matplotlib"):
        raise OptionError("pictures need matplotlib, which is not installed; run: pip install 'hsdag[pictures]'")


def _write_picture(path: Path, size_in: tuple[float, float], draw: Callable[[Figure], None]) -> None:
    """Have a figure of so many inches drawn, and write it atomically; the same drawing gives the same bytes.

    Raises OptionError as ``check_picture`` does, OutputError when the file cannot be written.
    """
    check_picture(path)
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kind = path.suffix.lower().removeprefix(".")
    settings = {**mpl.rcParamsDefault, "svg.hashsalt": "hsdag", "path.simplify": False}
    with warnings.catch_warnings(), mpl.rc_context(settings):
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)  # is drawn as a box
        figure = Figure(figsize=size_in, dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        content = io.BytesIO()
        figure.savefig(content, format=kind, metadata={"Date": None} if kind == "svg" else None)
    write_atomically(path, content.getvalue())


class Bars(NamedTuple):
    """Stretches of time in rows, of which the first has its middle at 0."""

    start_s: FloatArray  # [I]
    end_s: FloatArray  # [I]
    top: FloatArray  # [I]
    bottom: FloatArray  # [I]


def op_bars(timeline: Timeline) -> Bars:
    """A bar for each run of an op, in the row of its device."""
    middle = timeline.ops.device.astype(np.float64)
    return Bars(timeline.ops.start_s, timeline.ops.end_s, middle - BAR / 2, middle + BAR / 2)


def link_bars(timeline: Timeline) -> Bars:
    """A bar for each transfer, in the row of its link, whose height is shared by transfers that overlap."""
    sent, num_devices = timeline.transfers, len(timeline.device_names)
    top, height = np.zeros(len(sent.op)), np.zeros(len(sent.op))
    for row, (src, dst) in enumerate(timeline.used_links):
        own = np.flatnonzero((sent.src_device == src) & (sent.dst_device == dst))
        lane = lanes(sent.start_s[own], sent.end_s[own]) % LANES_SHOWN
        height[own] = LINK_ROW * BAR / (lane.max() + 1)
        top[own] = num_devices - 0.5 + LINK_ROW * (row + (1 - BAR) / 2) + lane * height[own]
    return Bars(sent.start_s, sent.end_s, top, top + 0.9 * height)


def rows_of(timeline: Timeline) -> dict[str, float]:
    """The names of devices, and of used links below them, with the middles of their rows."""
    names = timeline.device_names
    found = {name: float(d) for d, name in enumerate(names)}
    for row, (src, dst) in enumerate(timeline.used_links):
        found[f"{names[src]} → {names[dst]}"] = len(names) - 0.5 + LINK_ROW * (row + 0.5)
    return found


def height_of(timeline: Timeline) -> float:
    """The height of all rows, that of a device's being 1."""
    return len(timeline.device_names) + LINK_ROW * len(timeline.used_links)


def type_colours(timeline: Timeline) -> dict[str, str]:
    """Colour by op type, the types that take longest first; types beyond ``MAX_TYPES`` share the last colour."""
    total_s: Counter[str] = Counter()
    for op, seconds in zip(timeline.ops.op.tolist(), (timeline.ops.end_s - timeline.ops.start_s).tolist(), strict=True):
        total_s[timeline.op_types[op]] += seconds
    types = sorted(total_s, key=lambda name: (-total_s[name], name))
    own = len(types) if len(types) <= MAX_TYPES else MAX_TYPES - 1
    return {name: COLOURS[i] if i < own else OTHER_COLOUR for i, name in enumerate(types)}


def write_gantt(timeline: Timeline, path: str | Path) -> None:
    """Draw a timeline, devices and used links as rows, ops coloured by type; equal timelines give equal bytes.

    Raises OptionError as ``check_picture`` does, OutputError when the file cannot be written.
    """
    height_in = min(EDGE_IN + ROW_IN * max(height_of(timeline), 2), MAX_HEIGHT_IN)
    _write_picture(Path(path), (GANTT_IN, height_in), lambda figure: _draw_gantt(figure.add_subplot(), timeline))


def _draw_gantt(axes: Axes, timeline: Timeline) -> None:
    from matplotlib.patches import Patch

    # the largest unit in which the end is at least 1
    scale_s, unit = next((each for each in UNITS if timeline.end_s >= each[0]), UNITS[-1 if timeline.end_s else 0])
    ops, colours, end = timeline.ops, type_colours(timeline), timeline.end_s / scale_s or 1.0
    faces = [colours[timeline.op_types[op]] for op in ops.op.tolist()]
    _add_bars(axes, op_bars(timeline), scale_s, faces, "white", 0.4 if len(faces) <= MAX_OUTLINED else 0.0)
    _add_bars(axes, link_bars(timeline), scale_s, [LINK_COLOUR], LINK_COLOUR, 0.3)
    for op, device, start_s, end_s in zip(ops.op.tolist(), ops.device.tolist(), ops.start_s, ops.end_s, strict=True):
        name = timeline.op_names[op]
        if (len(name) + 1) * LABEL_SHARE * end < (end_s - start_s) / scale_s:
            middle = (start_s + end_s) / 2 / scale_s
            axes.text(middle, device, _plain(name), ha="center", va="center", fontsize=8, clip_on=True)
    rows = rows_of(timeline)
    axes.set_yticks([*rows.values()], [_plain(shortened(name)) for name in rows], fontsize=9)
    axes.set_ylim(height_of(timeline) - 0.5, -0.5)
    axes.set_xlim(0.0, end)
    axes.set_xlabel(f"time in {unit}")
    axes.grid(axis="x", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    kind = "simulated" if timeline.simulated else "measured"
    axes.set_title(f"{_plain(timeline.name)} ({kind}), {timeline.end_s / scale_s:.4g} {unit}", loc="left")
    own = [(_plain(shortened(name or "op")), colour) for name, colour in colours.items() if colour != OTHER_COLOUR]
    others = len(colours) - len(own)
    own += [(f"{others} other types", OTHER_COLOUR)] if others else []
    own += [("transfer", LINK_COLOUR)] if timeline.used_links else []
    handles = [Patch(facecolor=colour, label=label) for label, colour in own]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)


def _add_bars(axes: Axes, bars: Bars, scale_s: float, faces: Sequence[str], edge: str, outline: float) -> None:
    """Without an outline nothing is snapped to pixels: bars narrower than one add up to the shade that says how busy
    a device is."""
    from matplotlib.collections import PolyCollection

    left, right = bars.start_s / scale_s, bars.end_s / scale_s
    corners = [(left, bars.top), (right, bars.top), (right, bars.bottom), (left, bars.bottom)]
    vertices = list(np.stack([np.stack(corner, axis=1) for corner in corners], axis=1))
    look: dict[str, Any] = {"edgecolors": edge, "linewidths": outline, "snap": bool(outline)}
    axes.add_collection(PolyCollection(vertices, facecolors=faces, **look))


def shortened(name: str, length: int = 32) -> str:
    """A name as a label, without its middle where it is long: names tell most at their ends."""
    return name if len(name) <= length else f"{name[: length // 2]}…{name[-((length - 1) // 2) :]}"


def _plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None = None) -> str:
    """A table, its figures aligned to the right, without columns that say nothing; the row ``chosen`` is marked."""
    told = [i for i in range(len(columns)) if any(row[i] not in ("", "-") for row in rows)]
    columns, rows = [columns[i] for i in told], [[row[i] for i in told] for row in rows]
    is_figure = [i > 0 and any(row[i].lstrip("+-")[:1].isdigit() for row in rows) for i in range(len(columns))]
    head = "".join(_cell("th", column, figure) for column, figure in zip(columns, is_figure, strict=True))
    body = []
    for number, row in enumerate(rows):
        mark = ' class="chosen"' if number == chosen else ""
        cells = "".join(_cell("td", cell, figure) for cell, figure in zip(row, is_figure, strict=True))
        body.append(f"<tr{mark}>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n<tbody>{"".join(body)}</tbody></table></div>'


def html_summary(
    sentence: str, columns: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None = None
) -> str:
    """A sentence above a table, as notebooks show a result."""
    return "\n".join([f"<p>{escape(sentence)}</p>", *([html_table(columns, rows, chosen)] if rows else [])])


class Shown:
    """An answer that is printed, and shown in notebooks, as a few lines and perhaps a table; its JSON form has all."""

    @property
    def said(self) -> Sequence[str]:
        """The answer in sentences."""
        raise NotImplementedError

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Titles and cells of what notebooks show below."""
        return [], []

    def __str__(self) -> str:
        return "\n".join(self.said)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({next(iter(self.said), '')!r})"

    def _repr_html_(self) -> str:
        return html_summary(str(self), *self.table())


def _cell(tag: str, text: str, is_figure: bool) -> str:
    kind = ' class="figure"' if is_figure else ""
    scope = ' scope="col"' if tag == "th" else ""
    return f"<{tag}{scope}{kind}>{escape(text)}</{tag}>"
