"""What figures of timelines are made of, and tables in HTML.

Whatever is in a cell of a table stays text. Legend: I bars.
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
"""That colour-blind readers tell apart."""
OTHER_COLOUR, LINK_COLOUR = "#bbbbbb", "#7a7a7a"
MAX_TYPES = 10
"""Entries of the legend; where there are more types, the last entry is all the others."""

BAR, LINK_ROW = 0.8, 0.5
"""Height of a bar in its row; of a link's row beside a device's, which is 1."""
LANES_SHOWN = 8  # transfers that may share a row
MAX_OUTLINED = 600
"""Bars up to which they have an outline: most of more would be narrower than it."""


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
    sent = timeline.transfers
    num_devices = len(timeline.device_names)
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


def type_colours(timeline: Timeline) -> dict[str, str]:
    """Colour by op type, the types that take longest first; types beyond ``MAX_TYPES`` share the last colour."""
    total_s: Counter[str] = Counter()
    for op, seconds in zip(timeline.ops.op.tolist(), (timeline.ops.end_s - timeline.ops.start_s).tolist(), strict=True):
        total_s[timeline.op_types[op]] += seconds
    types = sorted(total_s, key=lambda name: (-total_s[name], name))
    own = len(types) if len(types) <= MAX_TYPES else MAX_TYPES - 1
    return {name: COLOURS[i] if i < own else OTHER_COLOUR for i, name in enumerate(types)}


def shortened(name: str, length: int = 32) -> str:
    """A name as a label, without its middle where it is long: names tell most at their ends."""
    return name if len(name) <= length else f"{name[: length // 2]}…{name[-((length - 1) // 2) :]}"


def in_bytes(size: float) -> str:
    """Return a size in words, in powers of a thousand."""
    power = min(int(np.log10(max(size, 1.0)) // 3), 4)
    return f"{size / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines of text: figures are aligned to the right, the first and the last column to the left."""
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


class Shown(ABC):
    """An answer that is printed, and shown in notebooks, as a few lines and perhaps a table; its JSON form has all."""

    @property
    @abstractmethod
    def said(self) -> Sequence[str]:
        """The answer in sentences."""

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
