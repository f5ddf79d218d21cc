"""BoundaryCosts: sequential execution as a sum of op times and of what results cost that leave their device.

Legend: N ops, D devices, Q results, R pairs of a result and an op that reads it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import numpy as np

from hsdag.ir.compiled import bare, inlined
from hsdag.ir.graph import FloatArray, IntArray
from hsdag.runtime.problems.schedule_problem import ScheduleProblem


class Launches(Enum):
    """What a launch is charged to."""

    RUNS = "runs"  # every maximal run of ops on one device, in topological order, as in the simulator
    TRANSFERS = "transfers"  # every transfer, on the device that receives it
    NOTHING = "nothing"


class BoundaryCosts(NamedTuple):
    """What a placement takes in sequential execution.

    Result q is of op ``source[q]``, which ascends, and its readers are ``reader[first[q]:first[q + 1]]``, those that
    need most bytes first, each once. A result goes once to every other device with a reader, at the largest size read
    there, and costs ``latency_s[home, away] + size / bandwidth``. An op costs ``change_s`` of its device where the op
    before it in ``order`` is on another one. ``constant_s`` does not depend on the placement.
    """

    time_s: FloatArray  # [N, D], infinite where a device does not support an op; with the launch of the first op
    first: IntArray  # [Q + 1]
    source: IntArray  # [Q]
    reader: IntArray  # [R]
    size_bytes: FloatArray  # [R]
    latency_s: FloatArray  # [D, D]
    s_per_byte: FloatArray  # [D, D]
    order: IntArray  # [N] ops in the order in which they run
    change_s: FloatArray  # [D]
    constant_s: float

    @staticmethod
    def of(problem: ScheduleProblem, launches: Launches = Launches.RUNS) -> BoundaryCosts:
        """The costs of a problem. With launches of runs they are what the simulator says, but for egress links."""
        first, source, reader, size_bytes = readers(problem)
        time_s = np.where(problem.supported, problem.time_s, np.inf)
        latency_s = problem.link_latency_s + problem.transfer_overhead_s
        if launches is Launches.TRANSFERS:
            latency_s = latency_s + problem.launch_s[None, :]
        if launches is Launches.RUNS:
            time_s[problem.topological_order[0]] += problem.launch_s
        off = ~np.eye(problem.num_devices, dtype=np.bool_)
        inverse = np.zeros_like(latency_s)
        inverse[off] = 1.0 / problem.link_bandwidth_bytes_per_s[off]
        return BoundaryCosts(
            time_s=time_s,
            first=first,
            source=source,
            reader=reader,
            size_bytes=size_bytes,
            latency_s=np.where(off, latency_s, 0.0),
            s_per_byte=inverse,
            order=problem.topological_order,
            change_s=problem.launch_s * (launches is Launches.RUNS),
            constant_s=problem.op_overhead_s * (problem.num_ops - 1),
        )

    @property
    def num_ops(self) -> int:
        """N."""
        return len(self.time_s)

    @property
    def num_devices(self) -> int:
        """D."""
        return int(self.time_s.shape[1])

    def scaled(self, factor: float) -> BoundaryCosts:
        """The same with transfers and changes of device ``factor`` times as dear."""
        return self._replace(
            latency_s=factor * self.latency_s,
            s_per_byte=factor * self.s_per_byte,
            change_s=factor * self.change_s,
        )

    def priced(self, held_bytes: FloatArray, s_per_held_byte: FloatArray) -> BoundaryCosts:
        """The same where a device [D] charges for the bytes [N] that an op holds there."""
        return self._replace(time_s=self.time_s + held_bytes[:, None] * s_per_held_byte[None, :])

    def cost_s(self, placement: IntArray) -> float:
        """Seconds of a placement [N]; infinite where an op is not supported."""
        work_s = float(self.time_s[np.arange(self.num_ops), placement].sum())
        reached = np.full(self.num_devices, -1, dtype=np.int64)
        sent_s = _all_sent_s(self, np.ascontiguousarray(placement, dtype=np.int64), reached)
        line = placement[self.order]
        changes_s = float(self.change_s[line[1:][line[1:] != line[:-1]]].sum())
        return self.constant_s + work_s + float(sent_s) + changes_s


def readers(problem: ScheduleProblem) -> tuple[IntArray, IntArray, IntArray, FloatArray]:
    """The ops that read each result: [Q + 1] where they begin, [Q] whose results, [R] the ops, [R] bytes they need.

    Of several edges of a result to one op the largest counts, as in the simulator.
    """
    dst, size = problem.edge_dst, problem.edge_bytes
    source, result = np.unique(np.stack([problem.edge_src, problem.edge_port]), axis=1, return_inverse=True)
    result = result.reshape(-1)
    order = np.lexsort((-size, dst, result))
    kept = np.ones(len(order), dtype=np.bool_)
    kept[1:] = (result[order][1:] != result[order][:-1]) | (dst[order][1:] != dst[order][:-1])
    order = order[kept]
    order = order[np.lexsort((dst[order], -size[order], result[order]))]
    first = np.searchsorted(result[order], np.arange(source.shape[1] + 1)).astype(np.int64)
    return first, source[0].copy(), dst[order].astype(np.int64), size[order].astype(np.float64)


@bare
def _all_sent_s(t: BoundaryCosts, placement: IntArray, reached: IntArray) -> float:
    total_s = 0.0
    for q in range(len(t.source)):
        total_s += sent_s(t, q, placement, reached)
    return total_s


@inlined
def sent_s(t: BoundaryCosts, q: int, placement: IntArray, reached: IntArray) -> float:
    """Seconds of the transfers of result q; ``reached`` [D] is scratch without q in it.

    The first reader found on a device needs most.
    """
    home, total_s = placement[t.source[q]], 0.0
    for k in range(t.first[q], t.first[q + 1]):
        away = placement[t.reader[k]]
        if away != home and reached[away] != q:
            reached[away] = q
            total_s += t.latency_s[home, away] + t.size_bytes[k] * t.s_per_byte[home, away]
    return total_s
