"""Measured timelines: when a placed model's primitives ran under HETERO, or its parts side by side.

Legend: N ops, A primitives that plugins add by themselves, I intervals.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.ir.errors import SearchError
from hsdag.runtime.measuring.candidate import Candidate, TimelineOf
from hsdag.runtime.measuring.messages import OpTimes
from hsdag.runtime.measuring.worker_client import CandidateFailed
from hsdag.runtime.timeline.timeline import OpIntervals, Timeline, TransferIntervals
from hsdag.search.session import Session


def measured_timeline(session: Session, candidate: Candidate, runs: int = 10) -> Timeline:
    """The median run of a candidate, primitive by primitive; part by part where parts ran side by side.

    HETERO runs one submodel after another and counters give durations alone, so intervals are laid end to end in
    order of execution; what the whole takes longer than its primitives is spread evenly over the starts of
    submodels. A primitive is listed at its heaviest op; those that plugins add, such as layout changes, follow the
    model's ops under names of their own. Raises SearchError when the candidate does not run.
    """
    if candidate.executor == "work-conserving":
        return _side_by_side(session, candidate, runs)
    graph = session.graph
    target, devices = candidate.target, candidate.devices
    first = next(spec for spec in session.devices.all if spec.openvino_name in (devices or (target,)))
    try:
        answer = session.client.call(OpTimes(target, devices, first.openvino_name, runs, 10.0), 300.0)
    except CandidateFailed as failure:
        raise SearchError(f"no trace: {failure.reason}") from failure
    shown = [spec for spec in session.devices.all if spec.openvino_name in (devices or (target,))]
    index = {spec.openvino_name: d for d, spec in enumerate(shown)}
    primitives = answer["primitives"]
    home = _homes(primitives, devices, index)
    names, types = list(graph.op_names), list(graph.op_types)
    rows: list[tuple[int, int, float, float]] = []
    added = 0
    gap_s = max(answer["latency_s"] - sum(p[1] for p in primitives), 0.0) / max(len(home), 1)
    now_s, entered = 0.0, -1
    for ops, seconds, submodel, kind in primitives:
        if seconds <= 0:
            continue
        if submodel != entered:
            now_s, entered = now_s + gap_s, submodel
        if ops:
            op = max(ops, key=lambda v: (graph.flops[v], -graph.position[v]))
        else:
            op, added = len(names), added + 1
            names.append(f"{kind} added by the plugin, {added}")
            types.append(kind)
        rows.append((op, home[submodel], now_s, now_s + seconds))
        now_s += seconds
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    op_idx, device = (np.array(column, dtype=np.int64) for column in columns[:2])
    start_s, end_s = (np.array(column, dtype=np.float64) for column in columns[2:])
    none, no_time = np.zeros(0, dtype=np.int64), np.zeros(0)
    return Timeline(
        name=session.model_record.name,
        op_names=tuple(names),
        op_types=tuple(types),
        device_names=tuple(spec.name for spec in shown),
        ops=OpIntervals(op_idx, device, start_s, end_s),
        transfers=TransferIntervals(none, none, none, no_time, no_time, no_time),
        edges=np.stack([graph.edge_src, graph.edge_dst], axis=1),
        simulated=False,
    )


def _side_by_side(session: Session, candidate: Candidate, runs: int) -> Timeline:
    """When every part ran in the median inference of the work-conserving executor, by its own clock."""
    request = session.runner.request("timeline", candidate)
    try:
        return replace(session.client.call(TimelineOf(request, runs), 300.0), name=session.model_record.name)
    except CandidateFailed as failure:
        raise SearchError(f"no trace: {failure.reason}") from failure


def _homes(primitives: list[list[object]], devices: tuple[str, ...] | None, index: dict[str, int]) -> dict[int, int]:
    """Device index of every submodel, from any op in it."""
    home: dict[int, int] = {}
    for ops, _, submodel, _ in primitives:
        assert isinstance(ops, list)
        assert isinstance(submodel, int)
        home.setdefault(submodel, 0)
        if devices is not None and ops:
            home[submodel] = index[devices[ops[0]]]
    return home
