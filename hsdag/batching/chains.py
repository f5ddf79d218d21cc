"""Chains of a batched problem fused: ops that only follow one another share their devices, as one op.

Legend: N ops, M ops of the fused problem, D devices, G groups of inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hsdag.ir.graph import FloatArray, IntArray
from hsdag.placers.exact.batches import BatchedProblem, BatchTable
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


@dataclass(frozen=True, eq=False)
class FusedChains:
    """A smaller problem whose schedules are schedules of the whole; its optimum may be longer, its memory is more."""

    problem: BatchedProblem
    op2chain: IntArray  # [N] to M
    place: IntArray  # [N] place of an op within its chain

    def expanded(self, device: IntArray, start_s: FloatArray, whole: BatchedProblem) -> tuple[IntArray, FloatArray]:
        """Devices [N, G] and starts [N, D] of all ops, from those of chains: [M, G] and [M, D]."""
        devices, chains = device[self.op2chain], np.argsort(self.place, kind="stable")
        starts = start_s[self.op2chain].copy()
        taken = np.zeros_like(start_s)
        counts = (devices[:, :, None] == np.arange(start_s.shape[1])).sum(axis=1)  # [N, D]
        run_s = np.take_along_axis(whole.group_time_s, counts[:, :, None], axis=2)[:, :, 0] + whole.costs.op_overhead_s
        for v in chains.tolist():
            starts[v] += taken[self.op2chain[v]]
            taken[self.op2chain[v]] += run_s[v]
        return devices, starts


def fuse_chains(whole: BatchedProblem) -> FusedChains:
    """Every op that is the only reader of its only input joins it."""
    p = whole.costs
    num_out, num_in = (np.bincount(ends, minlength=p.num_ops) for ends in (p.edge_src, p.edge_dst))
    joins = (num_out[p.edge_src] == 1) & (num_in[p.edge_dst] == 1)
    before = np.full(p.num_ops, -1, dtype=np.int64)
    before[p.edge_dst[joins]] = p.edge_src[joins]
    chain, place, heads = np.empty(p.num_ops, dtype=np.int64), np.zeros(p.num_ops, dtype=np.int64), 0
    for v in p.topological_order.tolist():
        if before[v] >= 0:
            chain[v], place[v] = chain[before[v]], place[before[v]] + 1
        else:
            chain[v], heads = heads, heads + 1
    last = np.zeros(heads, dtype=np.int64)
    np.maximum.at(last, chain, place)
    tail = np.flatnonzero(place == last[chain])
    end = np.empty(heads, dtype=np.int64)
    end[chain[tail]] = tail
    return FusedChains(
        _fused(whole, chain, end, p.edge_src[~joins], p.edge_dst[~joins], p.edge_bytes[~joins]), chain, place
    )


def _fused(
    whole: BatchedProblem, chain: IntArray, end: IntArray, src: IntArray, dst: IntArray, size: FloatArray
) -> BatchedProblem:
    """Times, weights and overheads of a chain add up; what it holds within is taken for part of its result."""
    p, count = whole.costs, len(end)
    times = np.zeros((count, *whole.batches.time_s.shape[1:]))
    np.add.at(times, chain, whole.batches.time_s)
    times += (np.bincount(chain, minlength=count) - 1)[:, None, None] * p.op_overhead_s
    one = np.zeros((count, p.num_devices))
    np.add.at(one, chain, p.time_s)
    weight, held = np.zeros(count), np.zeros(count)
    np.add.at(weight, chain, p.weight_bytes)
    np.add.at(held, chain, whole.held_bytes / whole.batches.group)
    np.add.at(held, chain[dst], -size)
    costs = ScheduleProblem.from_arrays(
        one,
        np.stack([chain[src], chain[dst]], axis=1),
        output_bytes=np.maximum(held, 0.0),
        edge_bytes=size,
        link_latency_s=p.link_latency_s,
        link_bandwidth_bytes_per_s=p.link_bandwidth_bytes_per_s,
        weight_bytes=weight,
        memory_bytes=p.memory_bytes,
        op_overhead_s=p.op_overhead_s,
        name=p.name,
        op_names=[p.op_names[v] for v in end.tolist()],
        device_names=p.device_names,
    )
    table = whole.batches
    return BatchedProblem(costs, BatchTable(table.num_inputs, table.sizes, times, table.group))
