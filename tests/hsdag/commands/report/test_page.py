"""The page of a report: it says what was gained first, holds all that it needs, and lists layers of large graphs."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import numpy as np
import pytest

from hsdag.commands.place.answer import NO_MEMORY
from hsdag.commands.report.figures import timeline_figures
from hsdag.commands.report.graph import PlacedGraph
from hsdag.commands.report.page import MOST, facts_of, in_order, layers_by_name, layers_html, sections_of
from hsdag.commands.report.words import next_steps_of
from hsdag.ir.graph.computation_graph import graph_from_edges
from tests.hsdag.commands.report.examples import (
    BEGUN,
    EVENTS,
    EVIL,
    FAST,
    NAMES,
    PROFILE,
    RESULT,
    RUN,
    Example,
    measured_timeline,
)


def section_of(html: str, key: str) -> str:
    """The HTML of one section."""
    return html[html.index(f'<section id="{key}"') :].partition("</section>")[0]


def test_the_page_names_no_other_file_and_names_with_markup_are_escaped_everywhere(html: str) -> None:
    own = re.sub(r"<script(?! type).*?</script>", "", html, flags=re.S)
    assert not re.findall(r"<[a-z][^>]*(?:src|href)=\"(?!#|data:)", own)
    assert "default-src 'none'" in html
    assert "<img" not in own
    assert own.count("</script>") == 1


def test_every_command_has_a_button_that_copies_it(html: str) -> None:
    steps = [each.code for each in next_steps_of(RUN) if each.code]
    beside = re.findall(r"<pre>([^<]*)</pre><button type=\"button\" class=\"[^\"]*copy\">Copy</button>", html)
    assert [unescape(each) for each in beside] == steps
    assert steps
    assert "navigator.clipboard.writeText(code.textContent)" in html


def test_the_facts_are_the_speed_up_over_the_best_device_and_counts_by_how_placements_ended() -> None:
    first, *_, tried = facts_of(RUN)
    assert (first.label, first.value) == ("Speed-up", "1.333×")
    assert "1.283 to 1.383" in first.note
    assert (tried.value, tried.note) == ("2", "1 failed, 1,234 simulated")
    unfinished = facts_of(Example(EVENTS, PROFILE, None))[-1]
    assert (unfinished.value, unfinished.note) == ("2", "1 failed")


def test_where_no_device_runs_the_model_alone_the_gain_is_that_it_runs_and_the_reason_is_told() -> None:
    placement = RESULT.placement.model_copy(update={"speedup": None})
    result = RESULT.model_copy(update={"placement": placement, "no_single": NO_MEMORY})
    assert facts_of(Example(EVENTS, PROFILE, result))[0] == ("Gain", "runs at all", NO_MEMORY)


def test_an_answer_that_a_ruled_out_device_beats_is_no_speed_up_and_the_best_device_gains_none() -> None:
    rows = tuple(each.model_copy(update={"ratio": 0.75}) if each.is_answer else each for each in RESULT.rows)
    ruled_out = {"rows": rows, "turned_down": {FAST: "a pin"}}
    first = facts_of(Example(EVENTS, PROFILE, RESULT.model_copy(update=ruled_out)))[0]
    assert (first.label, first.value, first.note[:8]) == ("Speed", "0.750×", "that of ")
    rows = tuple(each.model_copy(update={"is_answer": each.name == FAST}) for each in RESULT.rows)
    assert facts_of(Example(EVENTS, PROFILE, RESULT.model_copy(update={"rows": rows})))[0].value == "none"


def test_the_sections_answer_questions_in_the_order_in_which_they_come_up(html: str) -> None:
    keys = ["comparison", "explanation", "graph", "timelines", "search", "tried", "profile", "environment"]
    assert re.findall(r'<section id="(\w+)"', html) == keys
    for words in ("Simulated: ", "Measured: 7.5 ms", "Methods, simulated"):
        assert words in html
    assert "3 placements were tried; 1 failed" in section_of(html, "tried")


def test_a_run_that_has_only_begun_still_makes_a_page() -> None:
    graph, environment = sections_of(BEGUN)
    assert (graph.key, environment.key) == ("graph", "environment")
    (legend,) = graph.figures[-1].above[0].items[:1]
    assert legend.label.value == "not placed"
    assert EVIL not in environment.html


def test_the_answer_of_the_comparison_is_marked(html: str) -> None:
    (row,) = re.findall(r'<tr class="chosen">(.*?)</tr>', html)
    assert 'class="figure">7.5</td>' in row
    assert "1.283..1.383" in row


def test_the_profile_has_the_longest_op_first_with_its_time_on_every_device(html: str) -> None:
    first = re.findall(r"<td.*?>(.*?)</td>", section_of(html, "profile"))[:5]
    assert [unescape(each) for each in first] == [NAMES[1], "Convolution", FAST, "4", "8"]


def test_a_layer_is_the_longest_beginning_of_names_that_leaves_few_layers() -> None:
    names = [
        f"net.block.{k}.{part}/MatMul_{i}" for k in range(30) for part in ("attention", "mlp", "norm") for i in "ab"
    ]
    found = layers_by_name([*names, "Add_7"])
    assert found[:6] == ["net/block/0"] * 6
    assert (len(set(found)), found[-1]) == (31, "other ops")
    assert layers_by_name(names[:36])[0] == "net/block/0/attention"  # of six blocks all parts are few enough
    rotary = ["rotary/cos/input/Sin"] + [f"rotary/sin/{k}/Sin" for k in range(9)]
    mixed = layers_by_name([*(f"net/block/{k % 30}/MatMul_{k}" for k in range(800)), *rotary, "alone/Add"])
    assert mixed[800:] == ["rotary"] + ["rotary/sin"] * 9 + ["other ops"]


def test_ops_whose_names_tell_nothing_are_in_runs_of_their_order() -> None:
    found = layers_by_name([f"Add_{k}" for k in range(2 * MOST + 1)])
    assert found[:4] == ["ops 1 to 3"] * 3 + ["ops 4 to 6"]
    assert found[-1] == f"ops {2 * MOST} to {2 * MOST + 1}"


def test_every_op_that_runs_on_data_is_listed_once_with_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    placed = PlacedGraph.of(RUN)
    assert layers_html(placed) == ""
    monkeypatch.setattr("hsdag.commands.report.page.LARGE", 2)
    html = layers_html(placed)
    listed = re.findall(r"<td>(.*?)</td><td>(.*?)</td><td>(.*?)</td>", html)
    expected = [(NAMES[v], placed.graph.op_types[v], placed.name_of(int(placed.device[v]))) for v in range(len(NAMES))]
    assert sorted(tuple(map(unescape, row)) for row in listed) == sorted(expected)
    assert EVIL not in html


def test_what_is_divided_or_not_placed_takes_what_the_whole_does_at_best() -> None:
    times = np.array([[2.0, 1.0, np.nan], [3.0, 4.0, np.nan], [5.0, np.nan, np.nan], [np.nan, np.nan, np.nan]])
    placed = PlacedGraph(graph_from_edges(["Relu"] * 4, []), ("A", "B", "A+B"), np.array([0, 2, -1, 2]), times)
    assert placed.cost_s.tolist() == [2.0, 3.0, 5.0, 0.0]


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


def test_layers_come_by_kind_as_data_flow_and_by_number_within_a_kind() -> None:
    middle = {"head": 9.0, "layer 10": 3.0, "layer 2": 3.5, "embeddings": 0.0, "layer 1": 2.0}
    assert in_order(middle) == ["embeddings", "layer 1", "layer 2", "layer 10", "head"]
