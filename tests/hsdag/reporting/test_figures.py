"""Figures: nothing that was measured is out of sight, and legends have all that is drawn."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest

from hsdag.reporting.figures import progress_figures, timeline_figures
from hsdag.runtime.objectives import LATENCY
from hsdag.scoring.base import Score
from tests.hsdag.reporting.examples import EVIL, event, measured_timeline


def shown_in(legend: Any) -> list[str]:
    return [unescape(each) for each in re.findall(r"</b> (.*?)</span>", legend.text)]


def test_a_timeline_is_in_milliseconds_and_its_legend_has_every_type_that_it_shows() -> None:
    legend, figure = timeline_figures(measured_timeline())
    shown = shown_in(legend)
    assert (set(shown), shown[-1]) == ({"Convolution", "MatMul", f"Relu{EVIL}", "Concat", "transfer"}, "transfer")
    made: Any = figure
    assert (made.x_range.start, made.x_range.end) == pytest.approx((-0.075, 7.65))
    assert (made.y_range.start, made.y_range.end, made.height) == (2.5, -0.5, 224)  # two links below two devices
    ops = made.renderers[0]
    assert [list(ops.data_source.data[side]) for side in ("left", "right", "ms")] == [
        pytest.approx(times) for times in ([0, 4, 4.5, 6.5], [4, 6, 5.5, 7.5], [4, 2, 1, 1])
    ]
    assert ops.glyph.line_color == "white"


@pytest.mark.parametrize(
    ("values", "axis", "top", "best"),
    [
        ([11.0, 10.0, 500.0], (9.9, 11.25), 11.15, [11, 10, 10, 10]),
        ([10.0, 10.0, 30.0], (8.0, 35.0), 33.0, [10] * 4),
        ([10.0, 10.0], (9.0, 12.5), 11.5, [10] * 3),
    ],
)
def test_all_values_are_inside_the_axes_but_outliers_which_stand_at_the_upper_end_with_their_own_value(
    values: list[float], axis: tuple[float, float], top: float, best: list[float]
) -> None:
    events = [event(float(k), Score(value / 1e3)) for k, value in enumerate(values)]
    legend, made = progress_figures([*events, event(9.0, Score.failed("crashed"))], LATENCY)
    figure: Any = made
    assert (figure.y_range.start, figure.y_range.end) == pytest.approx(axis)
    step, dots = (each.data_source.data for each in figure.renderers)
    assert list(step["x"]) == [*range(len(values)), 9.0]
    assert list(step["y"]) == pytest.approx(best)
    assert [*dots["value"], max(dots["y"])] == pytest.approx([*values, min(max(values), top)])
    is_outlier = max(values) > top
    assert list(dots["marker"]) == ["circle"] * (len(values) - 1) + ["triangle" if is_outlier else "circle"]
    assert shown_in(legend) == ["best so far", "measured placement", *["slower than shown"] * is_outlier]
