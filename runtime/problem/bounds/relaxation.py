"""The relaxed problem behind the bounds on a makespan, as flat tables.

Legend: M ops, E edges, D devices, K kinds of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hsdag.ir.graph.computation_graph import BoolArray, FloatArray, IntArray, inverse_of
from hsdag.runtime.problem.schedule_problem import ScheduleProblem


class Neighbours(NamedTuple):
    """The ops on one side of every op, as compiled code reads them: op v has ``indices[indptr[v]:indptr[v + 1]]``.

    Column k of the tables is for v on a device of kind k and its neighbour on the other device that suits best.
    """

    indptr: IntArray  # [M + 1]
    indices: IntArray  # [E]
    sent_s: FloatArray  # [E, K] the transfer between the two, infinite without another device
    apart_s: FloatArray  # [E, K] the transfer and the time of the neighbour

    def of_devices(self, columns: IntArray) -> Neighbours:
        """Return the neighbours with fewer columns of devices."""
        tables = (np.ascontiguousarray(table[:, columns]) for table in (self.sent_s, self.apart_s))
        return Neighbours(self.indptr, self.indices, *tables)


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Ops in topological order between a source and a sink, which take no time and are on whatever device suits best.

    Orders, links that make transfers wait, memory and overheads of transfers are left out, and all edges from one op to
    another are one: none of them makes a schedule shorter. Devices with equal columns in all tables are of one kind.
    """

    kind: IntArray  # [D]
    time_s: FloatArray  # [M, K], infinite where a device does not support an op
    busy_s: FloatArray  # [M, K] with the overhead that follows
    overhead_s: FloatArray  # [M]
    inputs: Neighbours
    outputs: Neighbours

    @staticmethod
    def of(problem: ScheduleProblem) -> Relaxation:
        """Relax a problem in O(E log E + E D^2)."""
        n, d = problem.time_s.shape
        place = inverse_of(problem.topological_order) + 1
        pair, of_pair = np.unique(place[problem.edge_src] * (n + 2) + place[problem.edge_dst], return_inverse=True)
        src, dst = np.divmod(pair, n + 2)
        size_bytes = np.zeros(len(pair))
        np.maximum.at(size_bytes, of_pair.reshape(-1), problem.edge_bytes)  # results are sent side by side
        first, last = (1 + np.flatnonzero(np.bincount(ends, minlength=n + 1)[1:] == 0) for ends in (dst, src))
        size_bytes = np.concatenate([size_bytes, np.full(len(first) + len(last), -1.0)])  # -1: free
        src, dst = np.concatenate([src, 0 * first, last]), np.concatenate([dst, first, 0 * last + n + 1])
        time_s = np.zeros((n + 2, d))
        time_s[1:-1] = np.where(problem.supported, problem.time_s, np.inf)[problem.topological_order]
        overhead_s = np.full(n + 2, problem.op_overhead_s)
        overhead_s[[0, -1]] = 0.0
        latency_s, s_per_byte = problem.link_latency_s, 1.0 / problem.link_bandwidth_bytes_per_s
        ins = _neighbours(dst, src, size_bytes, time_s, latency_s, s_per_byte)
        outs = _neighbours(src, dst, size_bytes, time_s, latency_s.T, s_per_byte.T)
        columns = np.concatenate([time_s, ins.sent_s, ins.apart_s, outs.sent_s, outs.apart_s])
        number = dict[bytes, int]()
        kind = np.array([number.setdefault(column.tobytes(), len(number)) for column in columns.T])
        first_of = np.unique(kind, return_index=True)[1]
        time_s = np.ascontiguousarray(time_s[:, first_of])
        return Relaxation(
            kind=kind,
            time_s=time_s,
            busy_s=time_s + overhead_s[:, None],
            overhead_s=overhead_s,
            inputs=ins.of_devices(first_of),
            outputs=outs.of_devices(first_of),
        )

    @property
    def num_ops(self) -> int:
        """Return M."""
        return len(self.time_s)

    def cheapest(self, prices: FloatArray) -> FloatArray:
        """Return [K] the smallest of ``prices`` [D] of each kind."""
        least = np.full(self.time_s.shape[1], np.inf)
        np.minimum.at(least, self.kind, prices)
        return least


def _neighbours(
    ends: IntArray,
    others: IntArray,
    size_bytes: FloatArray,
    time_s: FloatArray,
    latency_s: FloatArray,
    s_per_byte: FloatArray,
) -> Neighbours:
    """Return the neighbours ``others`` [E] of the ops ``ends`` [E]; ``time_s`` is [M, D].

    Link tables [D, D] have a row for the neighbour's device, and a column for the op's.
    """
    order = np.argsort(ends, kind="stable")
    ends, others, size_bytes = ends[order], others[order], size_bytes[order]
    indptr = np.searchsorted(ends, np.arange(len(time_s) + 1))
    num_devices = time_s.shape[1]
    sent_s, apart_s = np.full((2, len(ends), num_devices), np.inf)
    for d in range(num_devices):
        for g in range(num_devices):
            if g != d:
                run_s, link_s = time_s[others, g], latency_s[g, d] + size_bytes * s_per_byte[g, d]
                np.minimum(sent_s[:, d], np.where(np.isfinite(run_s), link_s, np.inf), out=sent_s[:, d])
                np.minimum(apart_s[:, d], link_s + run_s, out=apart_s[:, d])
    is_free: BoolArray = size_bytes < 0
    sent_s[is_free], apart_s[is_free] = 0.0, time_s[others[is_free]].min(axis=1, keepdims=True)
    return Neighbours(indptr, others, sent_s, apart_s)
