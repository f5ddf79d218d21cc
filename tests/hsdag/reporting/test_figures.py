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


def figure_of(values: list[float]) -> Any:
    """The figure of placements measured one second apart."""
    events = [event(float(k), Score(value / 1e3)) for k, value in enumerate(values)]
    _, figure = progress_figures(events, LATENCY)
    return figure


def test_the_legend_of_a_timeline_has_every_type_that_it_shows() -> None:
    legend: Any = timeline_figures(measured_timeline())[0]
    shown = [unescape(each) for each in re.findall(r"</b> (.*?)</span>", legend.text)]
    assert (set(shown), shown[-1]) == ({"Convolution", "MatMul", f"Relu{EVIL}", "Concat", "transfer"}, "transfer")


def test_all_values_are_inside_the_axes_but_outliers_which_stand_at_the_upper_end_with_their_own_value() -> None:
    similar = figure_of([364.6, 368.0, 432.0])
    assert similar.y_range.start < 364.6
    assert similar.y_range.end > 433.0
    figure = figure_of([10.0, 11.0, 500.0])
    (source,) = [each.data_source for each in figure.renderers if "value" in each.data_source.data]
    assert figure.y_range.end < 20.0
    assert max(source.data["y"]) < figure.y_range.end
    assert list(source.data["value"]) == pytest.approx([10.0, 11.0, 500.0])
    assert list(source.data["marker"]) == ["circle", "circle", "triangle"]
