"""The latency of a placement under HETERO, counted one by one from its submodels."""

from __future__ import annotations

import numpy as np

from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.runtime.problem.schedule_problem import ScheduleProblem


def plain_latency_s(graph: ComputationGraph, submodel: np.ndarray, device: np.ndarray, c: ScheduleProblem) -> float:
    """Seconds of one placement [N] whose ops are in the submodels [N], -1 for those that float, counted one by one."""
    total_s = float(c.time_s[np.arange(graph.num_ops), device].sum())
    total_s += float(sum(c.launch_s[d] for _, d in {(s, d) for s, d in zip(submodel, device, strict=True) if s >= 0}))
    tensors: dict[tuple[int, int], set[int]] = {}
    for e in np.flatnonzero((submodel[graph.edge_src] >= 0) & (submodel[graph.edge_dst] >= 0)).tolist():
        tensors.setdefault((int(graph.edge_src[e]), int(graph.edge_src_port[e])), set()).add(e)
    for (u, _), edges in tensors.items():
        ends = [graph.edge_dst[e] for e in edges if submodel[graph.edge_dst[e]] != submodel[u]]
        away = {int(device[v]) for v in ends} - {int(device[u])} or {int(device[v]) for v in ends}
        size = graph.edge_bytes[next(iter(edges))]
        rate = c.link_bandwidth_bytes_per_s
        total_s += float(sum(c.link_latency_s[device[u], d] + size / rate[device[u], d] for d in away))
    return total_s
