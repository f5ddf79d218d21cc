"""Draw timelines and tables: bars, rows and colours of figures, tables as text and as HTML.

Text in cells is escaped. Legend: I bars.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.timeline import Timeline, lanes

COLOURS = ("#4477aa", "#ee8866", "#228833", "#ccbb44", "#aa3377", "#66ccee", "#997700", "#ee6677", "#44bb99", "#aaaa00")
"""Colours of op types, distinguishable by colour-blind readers."""
OTHER_COLOUR, LINK_COLOUR = "#bbbbbb", "#7a7a7a"
MAX_TYPES = 10
"""Most entries in the legend of op types; with more types, the last entry stands for all remaining ones."""

BAR, LINK_ROW = 0.8, 0.5
"""Height of a bar, and of a link's row; the row of a device has height 1."""
LANES_SHOWN = 8  # overlapping transfers drawn side by side in one row; more are drawn over them
MAX_OUTLINED = 600
"""Outline bars only in figures of at most this many; most bars of larger ones are narrower than an outline."""


class Bars(NamedTuple):
    """Time intervals drawn as bars; vertical positions are in rows, and the middle of the first row is at 0."""

    start_s: FloatArray  # [I]
    end_s: FloatArray  # [I]
    top: FloatArray  # [I]
    bottom: FloatArray  # [I]


def op_bars(timeline: Timeline) -> Bars:
    """Return a bar for each run of an op, in the row of its device."""
    middle = timeline.ops.device.astype(np.float64)
    return Bars(timeline.ops.start_s, timeline.ops.end_s, middle - BAR / 2, middle + BAR / 2)


def link_bars(timeline: Timeline) -> Bars:
    """Return a bar for each transfer, in the row of its link; overlapping transfers share the row's height."""
    sent = timeline.transfers
    num_devices = len(timeline.device_names)
    top, height = np.zeros(len(sent.op)), np.zeros(len(sent.op))
    for row, (src, dst) in enumerate(timeline.used_links):
        members = np.flatnonzero((sent.src_device == src) & (sent.dst_device == dst))
        lane = lanes(sent.start_s[members], sent.end_s[members]) % LANES_SHOWN
        height[members] = LINK_ROW * BAR / (lane.max() + 1)
        top[members] = num_devices - 0.5 + LINK_ROW * (row + (1 - BAR) / 2) + lane * height[members]
    return Bars(sent.start_s, sent.end_s, top, top + 0.9 * height)


def row_middles(timeline: Timeline) -> dict[str, float]:
    """Return the vertical middle of each row by name: devices first, then the links that are used."""
    names = timeline.device_names
    middles = {name: float(d) for d, name in enumerate(names)}
    for row, (src, dst) in enumerate(timeline.used_links):
        middles[f"{names[src]} → {names[dst]}"] = len(names) - 0.5 + LINK_ROW * (row + 0.5)
    return middles


def type_colours(timeline: Timeline) -> dict[str, str]:
    """Return a colour for each op type, longest total time first; types beyond ``MAX_TYPES`` share the last colour."""
    total_s: Counter[str] = Counter()
    for op, seconds in zip(timeline.ops.op.tolist(), (timeline.ops.end_s - timeline.ops.start_s).tolist(), strict=True):
        total_s[timeline.op_types[op]] += seconds
    types = sorted(total_s, key=lambda name: (-total_s[name], name))
    num_coloured = len(types) if len(types) <= MAX_TYPES else MAX_TYPES - 1
    return {name: COLOURS[i] if i < num_coloured else OTHER_COLOUR for i, name in enumerate(types)}


def shortened(name: str, length: int = 32) -> str:
    """Shorten a name to a label of at most ``length`` characters by cutting its middle, the least telling part."""
    return name if len(name) <= length else f"{name[: length // 2]}…{name[-((length - 1) // 2) :]}"


def in_bytes(size: float) -> str:
    """Format a size in bytes with a unit, in powers of 1000."""
    power = min(int(np.log10(max(size, 1.0)) // 3), 4)
    return f"{size / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table as lines of text, with the first and last columns left-aligned and the others right-aligned."""
    table = [columns, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(columns))]
    last = len(columns) - 1
    return [
        "  ".join(
            cell.ljust(widths[i]) if i in (0, last) else cell.rjust(widths[i]) for i, cell in enumerate(row)
        ).rstrip()
        for row in table
    ]


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None = None) -> str:
    """Format a table as HTML, without columns that are empty in every row.

    Columns of figures are right-aligned. ``chosen`` is the index of a row to mark.
    """
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
    """Format a sentence above a table as HTML, as notebooks show a result."""
    return "\n".join([f"<p>{escape(sentence)}</p>", *([html_table(columns, rows, chosen)] if rows else [])])


class Displayable(ABC):
    """A result that prints as a few sentences, and that notebooks show with a table; its JSON form is complete."""

    @property
    @abstractmethod
    def said(self) -> Sequence[str]:
        """Return the result in sentences."""

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return column titles and rows of the table that notebooks show below the sentences."""
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
