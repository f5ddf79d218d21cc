"""The comparison as a figure: how many times as fast as the best single device each candidate is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hsdag.reports.content import Compared
from hsdag.reports.html.theme import new_figure
from hsdag.reports.looks import colour_of, shortened

if TYPE_CHECKING:
    from bokeh.models import UIElement

ROW_PX, EDGE_PX = 30, 70


def comparison_figure(compared: Sequence[Compared], versus: str | None) -> UIElement:
    """Ratios with their 95% intervals, the fastest on top; the answer is a diamond, others are circles."""
    from bokeh.models import ColumnDataSource, Span

    rows = list(range(len(compared)))
    made = new_figure(
        "comparison",
        EDGE_PX + ROW_PX * len(rows),
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
        source = ColumnDataSource(
            {
                "y": [row for row, _ in chosen],
                "ratio": [each.ratio for _, each in chosen],
                "low": [each.ratio if each.low is None else each.low for _, each in chosen],
                "high": [each.ratio if each.high is None else each.high for _, each in chosen],
            }
        )
        made.segment("low", "y", "high", "y", source=source, line_color=colour, line_width=3)
        made.scatter("ratio", "y", source=source, marker=marker, size=size, fill_color=colour, line_color="white")
    return made
