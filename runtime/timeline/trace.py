"""Traces: a timeline as a file for Perfetto and chrome://tracing, in the Chrome trace-event format.

Times are microseconds, rounded to nanoseconds. The format: "Trace Event Format", Google, 2016.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TypeAlias

import numpy as np

from hsdag.ir.files import write_atomically
from hsdag.ir.graph.computation_graph import FloatArray, IntArray
from hsdag.runtime.timeline.timeline import Timeline, lanes

__all__ = ["Timeline", "trace_json", "write_trace"]

Event: TypeAlias = dict[str, object]

DEVICES_PID, LINKS_PID = 1, 2


def write_trace(timeline: Timeline, path: str | Path) -> None:
    """Write a trace atomically. Raises OutputError."""
    write_atomically(Path(path), trace_json(timeline).encode())


def trace_json(timeline: Timeline) -> str:
    """The document of a trace.

    One process holds a thread for each device, another one a thread for each ordered pair of devices that is
    used; where transfers of a pair overlap, the pair gets as many threads as it needs. Arrows lead from the
    producer over the transfer to the first op on the other device that reads it.
    """
    kind = "simulated" if timeline.simulated else "measured"
    links, thread_names = _link_threads(timeline)
    events = [_name("process_name", DEVICES_PID, 0, f"devices ({kind})")]
    events += [_name("thread_name", DEVICES_PID, d, name) for d, name in enumerate(timeline.device_names)]
    if thread_names:
        events.append(_name("process_name", LINKS_PID, 0, f"links ({kind})"))
        events += [_name("thread_name", LINKS_PID, t, name) for t, name in enumerate(thread_names)]
    timed = [*_op_events(timeline), *_transfer_events(timeline, links), *_arrows(timeline, links)]
    events += sorted(timed, key=lambda event: (event["ts"], event["ph"] != "X"))
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"name": timeline.name, "times": kind, "simulated": timeline.simulated},
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"


def _op_events(timeline: Timeline) -> list[Event]:
    ops = timeline.ops
    begin_us, length_us = _microseconds(ops.start_s, ops.end_s)
    events: list[Event] = []
    for op, device, ts, dur in zip(ops.op.tolist(), ops.device.tolist(), begin_us, length_us, strict=True):
        kind = timeline.op_types[op]
        event: Event = {"ph": "X", "name": timeline.op_names[op], "cat": kind or "op", "pid": DEVICES_PID}
        events.append(event | {"tid": device, "ts": ts, "dur": dur, "args": {"type": kind}})
    return events


def _transfer_events(timeline: Timeline, threads: IntArray) -> list[Event]:
    sent, names = timeline.transfers, timeline.device_names
    begin_us, length_us = _microseconds(sent.start_s, sent.end_s)
    events: list[Event] = []
    for r, op in enumerate(sent.op.tolist()):
        args = {
            "bytes": float(sent.size_bytes[r]),
            "from": names[int(sent.src_device[r])],
            "to": names[int(sent.dst_device[r])],
        }
        event: Event = {"ph": "X", "name": timeline.op_names[op], "cat": "transfer", "pid": LINKS_PID}
        events.append(event | {"tid": int(threads[r]), "ts": begin_us[r], "dur": length_us[r], "args": args})
    return events


def _arrows(timeline: Timeline, threads: IntArray) -> list[Event]:
    """Flow events: each binds to the slice of its thread that encloses its time."""
    sent, ops = timeline.transfers, timeline.ops
    readers: dict[tuple[int, int], list[int]] = defaultdict(list)  # op and device -> intervals that read it there
    intervals: dict[int, list[int]] = defaultdict(list)
    for i, op in enumerate(ops.op.tolist()):
        intervals[op].append(i)
    for src, dst in timeline.edges.tolist():
        for i in intervals[dst]:
            readers[src, int(ops.device[i])].append(i)
    begin_us, _ = _microseconds(ops.start_s, ops.end_s)
    sent_us, _ = _microseconds(sent.start_s, sent.end_s)
    events: list[Event] = []
    for r, op in enumerate(sent.op.tolist()):
        flow: Event = {"name": "transfer", "cat": "transfer", "id": r}
        before = [i for i in intervals[op] if ops.device[i] == sent.src_device[r] and ops.end_s[i] <= sent.start_s[r]]
        after = [i for i in readers[op, int(sent.dst_device[r])] if ops.start_s[i] >= sent.end_s[r]]
        producer = max(before, key=lambda i: ops.end_s[i], default=None)
        consumer = min(after, key=lambda i: ops.start_s[i], default=None)
        if producer is None or consumer is None:
            continue
        home, away = int(ops.device[producer]), int(ops.device[consumer])
        link = int(threads[r])
        events.append(flow | {"ph": "s", "pid": DEVICES_PID, "tid": home, "ts": begin_us[producer]})
        events.append(flow | {"ph": "t", "pid": LINKS_PID, "tid": link, "ts": sent_us[r]})
        events.append(flow | {"ph": "f", "bp": "e", "pid": DEVICES_PID, "tid": away, "ts": begin_us[consumer]})
    return events


def _link_threads(timeline: Timeline) -> tuple[IntArray, list[str]]:
    """[R] the thread of each transfer, and the threads' names."""
    sent, names = timeline.transfers, timeline.device_names
    thread = np.zeros(len(sent.op), dtype=np.int64)
    thread_names: list[str] = []
    for src, dst in timeline.used_links:
        rows = np.flatnonzero((sent.src_device == src) & (sent.dst_device == dst))
        lane = lanes(sent.start_s[rows], sent.end_s[rows])
        thread[rows] = len(thread_names) + lane
        label = f"{names[src]} -> {names[dst]}"
        thread_names += [label if i == 0 else f"{label} ({i + 1})" for i in range(int(lane.max()) + 1)]
    return thread, thread_names


def _microseconds(start_s: FloatArray, end_s: FloatArray) -> tuple[list[float], list[float]]:
    """Starts and durations; rounding ends rather than durations keeps neighbours from overlapping."""
    start_us, end_us = np.round(1e6 * start_s, 3), np.round(1e6 * end_s, 3)
    return start_us.tolist(), np.round(end_us - start_us, 3).tolist()


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
