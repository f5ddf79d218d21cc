"""Timelines: what ran where and when, simulated or measured, and their traces for Perfetto and chrome://tracing.

Traces are in the Chrome trace-event format ("Trace Event Format", Google, 2016), in microseconds, rounded to
nanoseconds.

Legend: N ops, I intervals, R transfers, E edges, D devices.
"""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
from pydantic import ConfigDict, Field, GetPydanticSchema
from pydantic_core import core_schema

from hsdag.base.files import write_atomically
from hsdag.ir.graph.computation_graph import FloatArray, IntArray


def _array(entry: Any, kind: type[np.generic], *width: int) -> GetPydanticSchema:
    """Return the schema of an array in a file, a list of entries."""

    def schema(_: Any, handler: Any) -> core_schema.CoreSchema:
        listed = handler(list[entry])
        written = core_schema.plain_serializer_function_ser_schema(np.ndarray.tolist, return_schema=listed)
        return core_schema.no_info_after_validator_function(
            lambda entries: np.array(entries, dtype=kind).reshape(-1, *width), listed, serialization=written
        )

    return GetPydanticSchema(schema)


_Index = Annotated[int, Field(ge=-1, lt=2**31)]
Indices = Annotated[IntArray, _array(_Index, np.int64)]
Figures = Annotated[FloatArray, _array(Annotated[float, Field(allow_inf_nan=False)], np.float64)]
Edges = Annotated[IntArray, _array(Annotated[list[_Index], Field(min_length=2, max_length=2)], np.int64, 2)]


@dataclass(frozen=True, eq=False)
class OpIntervals:
    """Runs of ops, in any order; an op may run in several parts."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    op: Indices  # [I]
    device: Indices  # [I]
    start_s: Figures  # [I]
    end_s: Figures  # [I]


@dataclass(frozen=True, eq=False)
class TransferIntervals:
    """Transfers of ops' results between two devices, in any order."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    op: Indices  # [R]
    src_device: Indices  # [R]
    dst_device: Indices  # [R]
    start_s: Figures  # [R]
    end_s: Figures  # [R]
    size_bytes: Figures  # [R]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Intervals of ops and transfers by op and device index, with the names of both.

    ``edges`` may be empty: only reports show them. ``simulated`` is False for times measured on devices. Raises
    ValueError when an index names nothing, or an interval is not a finite stretch of time from 0 on.
    """

    name: str
    op_names: tuple[str, ...]  # [N]
    op_types: tuple[str, ...]  # [N], "" where unknown
    device_names: tuple[str, ...]  # [D]
    ops: OpIntervals
    transfers: TransferIntervals
    edges: Edges  # [E, 2] producer and consumer
    simulated: bool

    def __post_init__(self) -> None:
        n, d = len(self.op_names), len(self.device_names)
        for intervals in (self.ops, self.transfers):
            for field, column in vars(intervals).items():
                limit = n if field == "op" else d if field.endswith("device") else None
                if limit is not None and len(column) and (column.min() < 0 or column.max() >= limit):
                    raise ValueError(f"{field} of timeline {self.name!r} must be below {limit}")
            stretch_s = np.stack([intervals.start_s, intervals.end_s])
            if not (
                np.isfinite(stretch_s).all() and (stretch_s >= 0).all() and (np.diff(stretch_s, axis=0) >= 0).all()
            ):
                raise ValueError(f"an interval of timeline {self.name!r} begins before 0 or ends before it begins")

    @property
    def end_s(self) -> float:
        """Return the end of the last interval."""
        return float(np.max(np.concatenate([self.ops.end_s, self.transfers.end_s]), initial=0.0))

    @property
    def used_links(self) -> list[tuple[int, int]]:
        """Return the ordered pairs of devices between which something was sent, sorted."""
        return sorted(set(zip(self.transfers.src_device.tolist(), self.transfers.dst_device.tolist(), strict=True)))


def lanes(start_s: FloatArray, end_s: FloatArray) -> IntArray:
    """Return [I] a lane for each interval, as few as possible, so that no two in one lane overlap; O(I log I)."""
    lane = np.zeros(len(start_s), dtype=np.int64)
    free: list[int] = []  # lanes that nothing occupies
    busy: list[tuple[float, int]] = []  # end and lane
    for i in np.lexsort((end_s, start_s)).tolist():
        while busy and busy[0][0] <= start_s[i]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane[i] = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (float(end_s[i]), int(lane[i])))
    return lane


Event: TypeAlias = dict[str, Any]

DEVICES_PID, LINKS_PID = 1, 2


def write_trace(timeline: Timeline, path: str | Path) -> None:
    """Write a trace atomically. Raises OutputError."""
    write_atomically(Path(path), trace_json(timeline).encode())


def trace_json(timeline: Timeline) -> str:
    """Return the document of a trace.

    One process has a thread for each device, another one a thread for each ordered pair of devices that is
    used; where transfers of a pair overlap, the pair gets as many threads as it needs.
    """
    kind = "simulated" if timeline.simulated else "measured"
    links, thread_names = _link_threads(timeline)
    events = [_name("process_name", DEVICES_PID, 0, f"devices ({kind})")]
    events += [_name("thread_name", DEVICES_PID, d, name) for d, name in enumerate(timeline.device_names)]
    if thread_names:
        events.append(_name("process_name", LINKS_PID, 0, f"links ({kind})"))
        events += [_name("thread_name", LINKS_PID, t, name) for t, name in enumerate(thread_names)]
    events += sorted([*_op_events(timeline), *_transfer_events(timeline, links)], key=lambda event: event["ts"])
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"name": timeline.name, "times": kind, "simulated": timeline.simulated},
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"


def _op_events(timeline: Timeline) -> list[Event]:
    ops, kinds = timeline.ops, timeline.op_types
    rows = zip(ops.op.tolist(), ops.device.tolist(), *_microseconds(ops.start_s, ops.end_s), strict=True)
    return [
        {"ph": "X", "name": timeline.op_names[op], "cat": kinds[op] or "op", "pid": DEVICES_PID, "tid": device}
        | {"ts": ts, "dur": dur, "args": {"type": kinds[op]}}
        for op, device, ts, dur in rows
    ]


def _transfer_events(timeline: Timeline, threads: IntArray) -> list[Event]:
    sent, names = timeline.transfers, timeline.device_names
    columns = (sent.op, threads, sent.size_bytes.astype(float), sent.src_device, sent.dst_device)
    times_us = _microseconds(sent.start_s, sent.end_s)
    return [
        {"ph": "X", "name": timeline.op_names[op], "cat": "transfer", "pid": LINKS_PID, "tid": thread}
        | {"ts": ts, "dur": dur, "args": {"bytes": size, "from": names[src], "to": names[dst]}}
        for op, thread, size, src, dst, ts, dur in zip(*(c.tolist() for c in columns), *times_us, strict=True)
    ]


def _link_threads(timeline: Timeline) -> tuple[IntArray, list[str]]:
    """Return [R] the thread of each transfer, and the threads' names."""
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
    """Return starts and durations; rounding ends rather than durations keeps neighbours from overlapping."""
    start_us, end_us = np.round(1e6 * start_s, 3), np.round(1e6 * end_s, 3)
    return start_us.tolist(), np.round(end_us - start_us, 3).tolist()


def _name(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
