"""Tables in HTML: what is in a cell stays text."""

from __future__ import annotations

from hsdag.drawing.html_table import html_summary, html_table


def test_cells_and_headings_are_escaped() -> None:
    table = html_table(["<b>"], [["<img src=x>"]])
    assert "&lt;b&gt;" in table
    assert "&lt;img src=x&gt;" in table
    assert "<img" not in table


def test_figures_are_aligned_and_the_chosen_row_is_marked() -> None:
    table = html_table(["name", "ms"], [["a", "1.5"], ["b", "2"]], chosen=1)
    assert '<td class="figure">1.5</td>' in table
    assert '<tr class="chosen"><td>b</td>' in table


def test_a_summary_without_rows_is_the_sentence() -> None:
    assert html_summary("a < b", ["x"], []) == "<p>a &lt; b</p>"


def test_signed_figures_stand_to_the_right_as_others_do() -> None:
    assert '<td class="figure">+15</td>' in html_table(["op", "more"], [["a", "+15"]])
