"""Bars and colours of timelines; tables whose cells stay text."""

from __future__ import annotations

import numpy as np

from hsdag.drawing import (
    COLOURS,
    LANES_SHOWN,
    MAX_TYPES,
    OTHER_COLOUR,
    html_summary,
    html_table,
    link_bars,
    op_bars,
    row_middles,
    type_colours,
)
from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.simulator.simulation import simulate
from hsdag.runtime.timeline import Timeline


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


def test_the_rarest_of_many_types_share_a_colour() -> None:
    few = type_colours(timeline_of(100, [f"T{i}" for i in range(MAX_TYPES)]))
    assert sorted(few.values()) == sorted(COLOURS)
    many = type_colours(timeline_of(100, [f"T{i}" for i in range(MAX_TYPES + 3)]))
    assert len(set(many.values()) - {OTHER_COLOUR}) == MAX_TYPES - 1
    assert list(many.values()).count(OTHER_COLOUR) == 4


def test_bars_lie_in_their_rows_and_those_of_a_link_do_not_overlap() -> None:
    timeline = timeline_of(60, ["MatMul"])
    rows, ops, sent = row_middles(timeline), op_bars(timeline), link_bars(timeline)
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


def test_cells_and_headings_are_escaped_figures_aligned_and_the_chosen_row_is_marked() -> None:
    table = html_table(["<b>", "ms"], [["<img src=x>", "+15"], ["b", "2"]], chosen=1)
    assert '<th scope="col">&lt;b&gt;</th>' in table
    assert '<td>&lt;img src=x&gt;</td><td class="figure">+15</td>' in table
    assert '<tr class="chosen"><td>b</td>' in table
    assert html_summary("a < b", ["x"], []) == "<p>a &lt; b</p>"
