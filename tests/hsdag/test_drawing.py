"""Pictures, the same every time, and one sentence where they cannot be drawn; tables whose cells stay text."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from hsdag.drawing import (
    COLOURS,
    LANES_SHOWN,
    MAX_TYPES,
    OTHER_COLOUR,
    check_picture,
    html_summary,
    html_table,
    link_bars,
    op_bars,
    rows_of,
    type_colours,
    write_gantt,
)
from hsdag.ir.errors import OptionError, OutputError
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.simulator.simulation import simulate
from hsdag.runtime.timeline import Timeline

PNG_HEAD = b"\x89PNG\r\n\x1a\n"


def timeline_of(num_ops: int, types: list[str], num_devices: int = 3) -> Timeline:
    rng = np.random.default_rng(num_ops)
    edges = [(int(rng.integers(0, v)), v) for v in range(1, num_ops)]
    problem = ScheduleProblem.from_arrays(
        rng.random((num_ops, num_devices)),
        edges,
        output_bytes=1.0,
        link_bandwidth_bytes_per_s=4.0,
        labels=OpLabels.empty(num_ops, [types[v % len(types)] for v in range(num_ops)]),
        name="cost is $5 & <free>",
    )
    return simulate(problem, rng.integers(0, num_devices, num_ops)).timeline


def test_the_same_timeline_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("1.svg", "2.svg", "1.png", "2.png"):
        write_gantt(timeline_of(40, ["MatMul", "Add", "$x$"]), tmp_path / name)
    assert (tmp_path / "1.svg").read_bytes() == (tmp_path / "2.svg").read_bytes()
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "2.png").read_bytes()
    assert b"dc:date" not in (tmp_path / "1.svg").read_bytes()
    assert ET.parse(tmp_path / "1.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "1.png").read_bytes().startswith(PNG_HEAD)


def test_the_rarest_of_many_types_share_a_colour() -> None:
    few = type_colours(timeline_of(100, [f"T{i}" for i in range(MAX_TYPES)]))
    assert sorted(few.values()) == sorted(COLOURS)
    many = type_colours(timeline_of(100, [f"T{i}" for i in range(MAX_TYPES + 3)]))
    assert len(set(many.values()) - {OTHER_COLOUR}) == MAX_TYPES - 1
    assert list(many.values()).count(OTHER_COLOUR) == 4


def test_bars_lie_in_their_rows_and_those_of_a_link_do_not_overlap() -> None:
    timeline = timeline_of(60, ["MatMul"])
    rows, ops, sent = rows_of(timeline), op_bars(timeline), link_bars(timeline)
    assert list(rows)[:3] == list(timeline.device_names)
    assert (np.rint((ops.top + ops.bottom) / 2) == timeline.ops.device).all()
    assert (np.abs(ops.bottom - ops.top - 0.8) < 1e-9).all()
    pairs = list(zip(timeline.transfers.src_device.tolist(), timeline.transfers.dst_device.tolist(), strict=True))
    for b, (src, dst) in enumerate(pairs):
        middle = rows[f"{timeline.device_names[src]} → {timeline.device_names[dst]}"]
        assert middle - 0.25 < sent.top[b] < sent.bottom[b] < middle + 0.25
        for other in range(b):
            apart = sent.bottom[b] < sent.top[other] + 1e-9 or sent.bottom[other] < sent.top[b] + 1e-9
            meet = sent.start_s[b] < sent.end_s[other] and sent.start_s[other] < sent.end_s[b]
            assert apart or not meet or pairs[b] != pairs[other] or len(timeline.used_links) < LANES_SHOWN - 2


def test_what_cannot_be_drawn_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"ends in \.png or \.svg"):
        check_picture(Path("g.pdf"))
    with pytest.raises(OutputError, match="cannot be written"):
        write_gantt(timeline_of(4, ["a"]), tmp_path / "none" / "g.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match=r"pip install 'hsdag\[pictures\]'"):
        check_picture(Path("g.png"))


def test_cells_and_headings_are_escaped_figures_aligned_and_the_chosen_row_is_marked() -> None:
    table = html_table(["<b>", "ms"], [["<img src=x>", "+15"], ["b", "2"]], chosen=1)
    assert '<th scope="col">&lt;b&gt;</th>' in table
    assert '<td>&lt;img src=x&gt;</td><td class="figure">+15</td>' in table
    assert '<tr class="chosen"><td>b</td>' in table
    assert html_summary("a < b", ["x"], []) == "<p>a &lt; b</p>"


def test_names_stand_in_the_bars_that_have_room_for_them(tmp_path: Path) -> None:
    for length in (158, 159):  # and a letter of padding, 0.0062 of the width each
        problem = ScheduleProblem.from_arrays([[0.99], [0.01]], [(0, 1)], op_names=("w" * length, "narrow"))
        write_gantt(simulate(problem, [0, 0]).timeline, tmp_path / "g.svg")
        drawn = (tmp_path / "g.svg").read_text()  # which has texts as comments beside their outlines
        assert (f"<!-- {'w' * length} -->" in drawn) == (length == 158)
        assert "<!-- narrow -->" not in drawn
