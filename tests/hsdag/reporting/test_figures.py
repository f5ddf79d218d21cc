"""Figures: legends have all that is drawn."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from hsdag.reporting.figures import timeline_figures
from tests.hsdag.reporting.examples import EVIL, measured_timeline


def test_a_timeline_is_in_milliseconds_and_its_legend_has_every_type_that_it_shows() -> None:
    legend: Any
    legend, figure = timeline_figures(measured_timeline())
    shown = [unescape(each) for each in re.findall(r"</b> (.*?)</span>", legend.text)]
    assert (set(shown), shown[-1]) == ({"Convolution", "MatMul", f"Relu{EVIL}", "Concat", "transfer"}, "transfer")
    made: Any = figure
    assert (made.x_range.start, made.x_range.end) == pytest.approx((-0.075, 7.65))
    assert (made.y_range.start, made.y_range.end, made.height) == (2.5, -0.5, 224)  # two links below two devices
    ops = made.renderers[0]
    assert [list(ops.data_source.data[side]) for side in ("left", "right", "ms")] == [
        pytest.approx(times) for times in ([0, 4, 4.5, 6.5], [4, 6, 5.5, 7.5], [4, 2, 1, 1])
    ]
    assert ops.glyph.line_color == "white"
