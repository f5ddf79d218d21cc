"""Peak memory of a simulated run, compiled, with results freed after their last use.

Legend: N ops, D devices, E edges, R transfer records.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hsdag.base.kernels import ZERO, bare, inlined
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.runtime.simulator.machine import ENTRY, Machine, Records, pop, push


class MemoryPeaks(NamedTuple):
    """Bytes of ops, by place in the topological order, and room to compute the memory of devices over time."""

    weight_bytes: FloatArray  # [N]
    output_bytes: FloatArray  # [N]
    peak_bytes: FloatArray  # [D] the result
    resident_bytes: FloatArray  # [D] at the current moment
    changes: Records  # [2 N + 2 E] ENTRY, a heap of what is allocated and freed


def memory_peaks_of(problem: ScheduleProblem) -> MemoryPeaks:
    """Allocate the tables for the runs of one machine."""
    order, d = problem.topological_order, problem.num_devices
    changes = np.zeros(2 * (problem.num_ops + len(problem.edge_src)), ENTRY)
    return MemoryPeaks(problem.weight_bytes[order], problem.output_bytes[order], np.zeros(d), np.zeros(d), changes)


@bare
def find_peaks(m: Machine, peaks: MemoryPeaks) -> None:
    """Fill ``peak_bytes`` with the most bytes held at any time of the run that a machine has recorded.

    Weights are held throughout, results from their op's start to their last use. A result stays at home until its
    consumers there and its transfers have ended; its copy on another device, of the size that is sent, from the start
    of the transfer until the last consumer there has ended. A result that nobody reads is kept.
    """
    size = _allocate_results(m, peaks, ZERO)
    size = _allocate_copies(m, peaks, size)
    for d in range(len(m.devices)):
        peaks.resident_bytes[d] = 0.0
        peaks.peak_bytes[d] = 0.0
    while size > 0:
        now_s = peaks.changes[0].value
        while size > 0 and peaks.changes[0].value == now_s:
            what = pop(peaks.changes, ZERO, size)
            size -= 1
            item = what >> 1
            home = m.ops[item].device if item < len(m.order) else m.records[item - len(m.order)].to
            bytes_ = peaks.output_bytes[item] if item < len(m.order) else m.records[item - len(m.order)].size_bytes
            peaks.resident_bytes[home] += -bytes_ if what & 1 else bytes_
        for d in range(len(m.devices)):
            peaks.peak_bytes[d] = max(peaks.peak_bytes[d], peaks.resident_bytes[d])
    for v in range(len(m.order)):
        peaks.peak_bytes[m.ops[v].device] += peaks.weight_bytes[v]


@inlined
def _note(peaks: MemoryPeaks, size: int, item: int, from_s: float, until_s: float) -> int:
    """Add the allocation of an item and its release, unless it is never freed; return the new size of the heap."""
    push(peaks.changes, ZERO, size, from_s, 2 * item)
    if until_s == np.inf:
        return size + 1
    push(peaks.changes, ZERO, size + 1, until_s, 2 * item + 1)
    return size + 2


@inlined
def _allocate_results(m: Machine, peaks: MemoryPeaks, size: int) -> int:
    """Add the results at home, until their consumers there and their transfers have ended."""
    for row in range(m.run[0].num_records):
        v = m.records[row].op
        m.ops[v].arrival_s = 0.0
    for row in range(m.run[0].num_records):
        v = m.records[row].op
        m.ops[v].arrival_s = max(m.ops[v].arrival_s, m.records[row].end_s)
    for v in range(len(m.order)):
        until_s = np.inf if m.ops[v].first == m.ops[v + 1].first else max(m.spans[v].end_s, m.ops[v].arrival_s)
        for k in range(m.ops[v].first, m.ops[v + 1].first):
            u = m.edges[k].consumer
            if m.ops[u].device == m.ops[v].device:
                until_s = max(until_s, m.spans[u].end_s)
        size = _note(peaks, size, v, m.spans[v].start_s, until_s)
    return size


@inlined
def _allocate_copies(m: Machine, peaks: MemoryPeaks, size: int) -> int:
    for row in range(m.run[0].num_records):
        record = m.records[row]
        until_s = record.end_s
        for k in range(record.port, m.ops[record.op + 1].first):
            u = m.edges[k].consumer
            if m.edges[k].result == record.port and m.ops[u].device == record.to:
                until_s = max(until_s, m.spans[u].end_s)
        size = _note(peaks, size, len(m.order) + row, record.start_s, until_s)
    return size
