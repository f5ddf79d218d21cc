"""Timelines and traces: what the Chrome trace-event format demands, and what a run really did."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsdag.runtime.problem.schedule_problem import OpLabels, ScheduleProblem
from hsdag.runtime.problem.semantics import Execution, Links, Semantics
from hsdag.runtime.simulator.simulation import simulate
from hsdag.runtime.timeline import Timeline, lanes, trace_json, write_trace

Event = dict[str, Any]
ROUNDING_US = 1e-6


def random_timeline(
    seed: int, links: Links = Links.INDEPENDENT, how: Execution = Execution.WORK_CONSERVING
) -> Timeline:
    rng = np.random.default_rng(seed)
    n, d = 12, 3
    edges = [(u, v) for v in range(n) for u in range(v) if rng.random() < 0.3]
    problem = ScheduleProblem.from_arrays(
        rng.random((n, d)), edges, output_bytes=rng.random(n), link_latency_s=0.3, link_bandwidth_bytes_per_s=1.0
    )
    return Timeline.of(simulate(problem, rng.integers(0, d, n), Semantics(how, links=links)), problem)


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
    return Timeline.of(simulate(problem, [0, 1]), problem)


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


@given(
    st.integers(0, 2**32),
    st.sampled_from([Links.INDEPENDENT, Links.EGRESS, Links.CHANNEL]),
    st.sampled_from(list(Execution)),
)
def test_nothing_in_a_thread_overlaps_and_times_rise(seed: int, links: Links, how: Execution) -> None:
    threads: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events(random_timeline(seed, links, how), "X"):
        threads[event["pid"], event["tid"]].append(event)
    for thread in threads.values():
        assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in thread)
        for one, other in itertools.pairwise(thread):
            assert one["ts"] <= other["ts"]
            assert one["ts"] + one["dur"] <= other["ts"] + ROUNDING_US


@given(st.integers(0, 2**32))
def test_every_op_and_every_transfer_is_there_once(seed: int) -> None:
    timeline = random_timeline(seed)
    slices = events(timeline, "X")
    ops = [event["name"] for event in slices if event["cat"] != "transfer"]
    assert sorted(ops) == sorted(timeline.op_names)
    sent = sorted(event["args"]["bytes"] for event in slices if event["cat"] == "transfer")
    assert sent == sorted(timeline.transfers.size_bytes.tolist())


def test_a_run_without_transfers_has_no_process_for_links() -> None:
    problem = ScheduleProblem.from_arrays([[1.0], [1.0]], [(0, 1)])
    timeline = Timeline.of(simulate(problem, [0, 0]), problem)
    assert {event["pid"] for event in events(timeline, "X") + events(timeline, "M")} == {1}


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
