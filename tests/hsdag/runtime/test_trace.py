"""Timelines and traces: what the Chrome trace-event format demands, and what a run really did."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.simulator.simulation import simulate
from hsdag.runtime.timeline import Timeline, lanes, trace_json, write_trace

Event = dict[str, Any]


def events(timeline: Timeline, phase: str) -> list[Event]:
    return [event for event in json.loads(trace_json(timeline))["traceEvents"] if event["ph"] == phase]


def two_ops() -> Timeline:
    """a on d0 for 2 s, 8 bytes to d1 in 1 s, b on d1 for 3 s."""
    problem = ScheduleProblem.from_arrays(
        [[2.0, 9.0], [9.0, 3.0]],
        [(0, 1)],
        output_bytes=[8, 0],
        link_latency_s=1.0,
        op_names=["a", "b"],
        labels=OpLabels.empty(2, ["MatMul", ""]),
    )
    return simulate(problem, [0, 1]).timeline


@pytest.mark.parametrize("simulated", [True, False])
def test_a_trace_tells_what_a_small_run_did_and_whether_it_is_simulated(simulated: bool, tmp_path: Path) -> None:
    timeline = replace(two_ops(), simulated=simulated)
    a, sent, b = events(timeline, "X")
    assert (a["name"], a["tid"], a["ts"], a["dur"], a["args"]["type"]) == ("a", 0, 0, 2e6, "MatMul")
    assert (sent["name"], sent["ts"], sent["dur"]) == ("a", 2e6, 1e6)
    assert sent["args"] == {"bytes": 8, "from": "d0", "to": "d1"}
    assert (b["name"], b["tid"], b["ts"], b["dur"]) == ("b", 1, 3e6, 3e6)
    assert sent["pid"] != a["pid"] == b["pid"]
    kind = "simulated" if simulated else "measured"
    threads = {("thread_name", name) for name in ("d0", "d1", "d0 -> d1")}
    names = {(e["name"], e["args"]["name"]) for e in events(timeline, "M")}
    assert names == threads | {("process_name", f"devices ({kind})"), ("process_name", f"links ({kind})")}
    write_trace(timeline, tmp_path / "t.json")
    other = json.loads((tmp_path / "t.json").read_text())["otherData"]
    assert (other["simulated"], other["times"]) == (simulated, kind)


def test_transfers_that_overlap_have_threads_of_their_own() -> None:
    """Two results leave d0 at 2 s and 3 s for d1, where they arrive 5 s later, and one for d2."""
    times, edges = np.tile([[2.0], [1.0], [1.0], [0.0], [0.0], [0.0]], 3), [(0, 3), (1, 4), (2, 5)]
    problem = ScheduleProblem.from_arrays(times, edges, link_latency_s=5.0)
    timeline = simulate(problem, [0, 0, 0, 1, 1, 2]).timeline
    names = {e["tid"]: e["args"]["name"] for e in events(timeline, "M") if e["pid"] == 2 and e["name"] == "thread_name"}
    assert names == {0: "d0 -> d1", 1: "d0 -> d1 (2)", 2: "d0 -> d2"}
    sent = [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events(timeline, "X") if e["cat"] == "transfer"]
    assert sent == [(0, "op0", 2e6, 5e6), (1, "op1", 3e6, 5e6), (2, "op2", 4e6, 5e6)]
    assert timeline.end_s == 9.0


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1))
def test_lanes_are_as_few_as_overlap_at_once(pieces: list[tuple[int, int]]) -> None:
    start = np.array([float(a) for a, _ in pieces])
    end = start + np.array([float(b) for _, b in pieces])
    lane = lanes(start, end)
    for i, j in zip(*np.nonzero(lane[:, None] == lane[None, :]), strict=True):
        assert i == j or end[i] <= start[j] or end[j] <= start[i]
    at_once = max(int(((start <= t) & (t < end)).sum()) for t in start)
    assert lane.max() + 1 == at_once


def test_a_timeline_that_cannot_be_is_refused() -> None:
    timeline = two_ops()
    with pytest.raises(ValueError, match="device of timeline 'problem' must be below 2"):
        replace(timeline, ops=replace(timeline.ops, device=np.array([0, 2])))
    with pytest.raises(ValueError, match="begins before 0 or ends before it begins"):
        replace(timeline, ops=replace(timeline.ops, end_s=timeline.ops.start_s - 1))
