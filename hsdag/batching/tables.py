"""What compiled schedulers of batches read of a problem. Legend: N ops, E edges, D devices, G groups of inputs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.evaluators.memory import MEMORY_TOLERANCE
from hsdag.ir.graph import BoolArray, Csr, FloatArray, IntArray
from hsdag.ir.paths import longest_before
from hsdag.placers.exact.batches import BatchedProblem


class Tables(NamedTuple):
    """What does not change."""

    time_s: FloatArray  # [N, D, G + 1], infinite where it is not allowed
    in_first: IntArray  # [N + 1] to E, edges by consumer
    in_op: IntArray  # [E]
    in_bytes: FloatArray  # [E] of one group
    out_first: IntArray  # [N + 1] to E, edges by producer
    src: IntArray  # [E]
    dst: IntArray  # [E]
    out_bytes: FloatArray  # [E] of one group
    latency_s: FloatArray  # [D, D]
    s_per_byte: FloatArray  # [D, D]
    weight_bytes: FloatArray  # [N]
    held_bytes: FloatArray  # [N] of one group
    limit_bytes: FloatArray  # [D]
    tail_s: FloatArray  # [N] what comes after an op at least
    overhead_s: float


def tables_of(problem: BatchedProblem) -> Tables:
    """The tables of one problem."""
    p = problem.costs
    into, out = (Csr.build(p.num_ops, *ends) for ends in ((p.edge_dst, p.edge_src), (p.edge_src, p.edge_dst)))
    times = np.nan_to_num(problem.group_time_s, nan=np.inf)
    least_s = times[:, :, 1:].min(axis=(1, 2))
    return Tables(
        time_s=times,
        in_first=into.indptr,
        in_op=into.indices,
        in_bytes=problem.group_edge_bytes[into.edges],
        out_first=out.indptr,
        src=p.edge_src[out.edges],
        dst=out.indices,
        out_bytes=problem.group_edge_bytes[out.edges],
        latency_s=problem.latency_s.astype(np.float64),
        s_per_byte=problem.s_per_byte,
        weight_bytes=p.weight_bytes.copy(),
        held_bytes=problem.held_bytes,
        limit_bytes=p.memory_bytes * (1 + MEMORY_TOLERANCE),
        tail_s=longest_before(p.topological_order[::-1], out, least_s, np.zeros(len(p.edge_src))),
        overhead_s=float(p.op_overhead_s),
    )


def has_batch(device: IntArray, num_devices: int) -> BoolArray:
    """[N, D] whether a placement [N, G] has a batch of an op on a device."""
    there = np.zeros((len(device), num_devices), dtype=np.bool_)
    there[np.arange(len(device))[:, None], device] = True
    return there
