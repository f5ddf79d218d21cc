"""The page of a report: it says what was gained first, and holds all that it needs."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from hsdag.reporting.html import report_html
from hsdag.reporting.html.content import ReportContent
from hsdag.reporting.html.figures import comparison_figure
from hsdag.reporting.html.graph import op_source
from hsdag.reporting.html.page import facts_of
from tests.hsdag.reporting.html.examples import CONTENT, EVIL, FAST, NAMES, RESULT


@pytest.mark.slow
def test_the_page_names_no_other_file(html: str) -> None:
    own = re.sub(r"<script.*?</script>", "", html, flags=re.S)
    assert not re.findall(r"<[a-z][^>]*(?:src|href)=\"(?!#|data:)", own)
    assert "default-src 'none'" in html


def test_names_with_markup_are_escaped_everywhere(html: str) -> None:
    own = re.sub(r"<script(?! type).*?</script>", "", html, flags=re.S)
    assert "<img" not in own
    assert own.count("</script>") == 1


def test_the_speed_up_is_that_of_the_answer_over_the_best_device() -> None:
    first = facts_of(CONTENT)[0]
    assert (first.label, first.value) == ("Speed-up", "1.333×")
    assert "1.283 to 1.383" in first.note


def test_where_the_best_device_is_the_answer_nothing_was_gained() -> None:
    rows = tuple(each.model_copy(update={"is_answer": each.name == FAST}) for each in RESULT.rows)
    assert facts_of(replace(CONTENT, result=RESULT.model_copy(update={"rows": rows})))[0].value == "none"


def test_counts_of_placements_are_apart_by_how_they_ended() -> None:
    tried = facts_of(CONTENT)[-1]
    assert (tried.value, tried.note) == ("2", "1 failed, 1,234 simulated")


def test_simulated_figures_are_called_simulated(html: str) -> None:
    for words in ("Simulated: 7.5 ms", "on simulated values", "best ms, simulated"):
        assert words in html


def test_what_was_not_compared_stands_below_the_figure_of_what_was(html: str) -> None:
    section = html[html.index('id="comparison"') : html.index('id="graph"')]
    assert section.index('class="bk"') < section.index("Not compared")


def test_a_long_name_leaves_room_for_the_figure_beside_it() -> None:
    rows = tuple(each.model_copy(update={"name": "y" * 300}) for each in RESULT.rows)
    content = replace(CONTENT, result=RESULT.model_copy(update={"rows": rows}))
    labels = comparison_figure(content).yaxis[0].major_label_overrides.values()
    assert {len(label) for label in labels} == {48}


def test_an_op_in_no_part_is_in_none() -> None:
    placed = CONTENT.placed
    assert placed is not None
    source = op_source(replace(placed, group=np.array([-1, 0, 1, 2, 3])))
    assert dict(zip(source.data["name"], source.data["group"], strict=True))[NAMES[0]] == "none"


def test_a_run_that_has_only_begun_still_makes_a_page() -> None:
    empty = report_html(ReportContent(name="m", sentence="Nothing has been measured yet."))
    assert "Nothing has been measured yet." in empty
    assert empty.count("<script") == 1


def test_a_graph_without_a_placement_and_without_times_is_drawn() -> None:
    placed = CONTENT.placed
    assert placed is not None
    bare = replace(placed, device=np.full(5, -1), time_s=np.full((5, 2), np.nan))
    page = report_html(ReportContent(name="m", sentence=EVIL, placed=bare))
    assert "not placed" in page
    assert 'id="profile"' not in page
