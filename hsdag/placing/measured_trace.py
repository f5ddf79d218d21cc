"""Measured timelines: when a placed model's primitives ran under HETERO, or its parts side by side."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hsdag.ir.errors import SearchError
from hsdag.ir.processes import CandidateFailed
from hsdag.placing.session import Session
from hsdag.runtime.measuring.candidate import Candidate
from hsdag.runtime.measuring.messages import ask
from hsdag.runtime.measuring.worker import Worker
from hsdag.runtime.timeline import OpIntervals, Timeline, TransferIntervals


def measured_timeline(session: Session, candidate: Candidate, runs: int = 10) -> Timeline:
    """The median run of a candidate, primitive by primitive; part by part where parts ran side by side.

    HETERO runs one submodel after another and counters give durations alone, so intervals are laid end to end in
    order of execution; what the whole takes longer than its primitives is spread evenly over the starts of
    submodels. A primitive is listed at its heaviest op; those that plugins add, such as layout changes, follow the
    model's ops under names of their own. Raises SearchError when the candidate does not run.
    """
    try:
        if candidate.executor == "work-conserving" or session.is_on_torch:  # by the executor's own clock
            runner = session.runner
            asked = ask(Worker.timeline, runner.hinted(candidate), runs, runner.limits.inference_s)
            return replace(session.client.call(asked, 300.0), name=session.model_record.name)
        used = candidate.devices or (candidate.target,)
        shown = [spec for spec in session.devices.all if spec.openvino_name in used]
        if not shown:
            raise SearchError(f"no trace: {candidate.target} is no device; name one, or a placement")
        plain = Candidate(candidate.target, candidate.devices)
        answer = session.client.call(ask(Worker.op_times, plain, shown[0].openvino_name, runs, 10.0), 300.0)
    except CandidateFailed as failure:
        raise SearchError(f"no trace: {failure.reason}") from failure
    graph, index = session.graph, {spec.openvino_name: d for d, spec in enumerate(shown)}
    primitives: list[tuple[list[int], float, int, str]] = answer["primitives"]
    home = dict.fromkeys((submodel for _, _, submodel, _ in primitives), 0)
    if candidate.devices is not None:
        home |= {submodel: index[candidate.devices[ops[0]]] for ops, _, submodel, _ in primitives if ops}
    names, types = list(graph.op_names), list(graph.op_types)
    rows: list[tuple[int, int, float, float]] = []
    gap_s = max(answer["latency_s"] - sum(p[1] for p in primitives), 0.0) / max(len(home), 1)
    now_s, entered = 0.0, -1
    for ops, seconds, submodel, kind in primitives:
        if seconds <= 0:
            continue
        if submodel != entered:
            now_s, entered = now_s + gap_s, submodel
        op = max(ops, key=lambda v: (graph.flops[v], -graph.position[v]), default=len(names))
        if op == len(names):
            names.append(f"{kind} added by the plugin, {len(names) - graph.num_ops + 1}")
            types.append(kind)
        rows.append((op, home[submodel], now_s, now_s + seconds))
        now_s += seconds
    table = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    none, no_time = np.zeros(0, dtype=np.int64), np.zeros(0)
    return Timeline(
        name=session.model_record.name,
        op_names=tuple(names),
        op_types=tuple(types),
        device_names=tuple(spec.name for spec in shown),
        ops=OpIntervals(table[0].astype(np.int64), table[1].astype(np.int64), table[2], table[3]),
        transfers=TransferIntervals(none, none, none, no_time, no_time, no_time),
        edges=np.stack([graph.edge_src, graph.edge_dst], axis=1),
        simulated=False,
    )
